"""Draws docs/images/report.svg: what `denpexd demo` prints in a terminal, with its colours, as text in an SVG.

Run by hand where the report has changed: .venv/bin/python docs/make_screenshots.py
"""

import asyncio
import contextlib
import io
import re
import sys
from dataclasses import dataclass
from html import escape
from itertools import takewhile
from pathlib import Path

from denpexd.demo import play

IMAGE = Path(__file__).parent / "images" / "report.svg"
COMMAND = "$ denpexd demo"
UNTIL = "How to check that it worked"  # the sections from here on are left out of the picture
CELL, LINE, MARGIN, BAR = 8.4, 19, 18, 34
FACE, BACK = "#d6dbe3", "#14171c"
COLORS = {
    "31": "#ff7b72",
    "32": "#7ee787",
    "33": "#e3b341",
    "35": "#d2a8ff",
    "36": "#79c0ff",
}
SEQUENCE = re.compile(r"\x1b\[([0-9;]*)m")


@dataclass(frozen=True)
class Piece:
    """Text of one style at a column."""

    column: int
    text: str
    style: tuple[str, ...]


def pieces(line: str) -> list[Piece]:
    """A line with escape sequences as pieces of plain text."""
    found: list[Piece] = []
    column, style = 0, tuple[str, ...]()
    for number, part in enumerate(SEQUENCE.split(line)):
        if number % 2:
            style = tuple(code for code in part.split(";") if code not in ("", "0"))
        elif part:
            found.append(Piece(column, part, style))
            column += len(part)
    return found


def drawn(piece: Piece, y: float) -> str:
    """One piece as an SVG text element, stretched to its cells whatever the font."""
    fill = next((COLORS[code] for code in piece.style if code in COLORS), FACE)
    weight = ' font-weight="bold"' if "1" in piece.style else ""
    opacity = ' opacity="0.6"' if "2" in piece.style else ""
    x, width = MARGIN + piece.column * CELL, len(piece.text) * CELL
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs" '
        f'fill="{fill}"{weight}{opacity} xml:space="preserve">{escape(piece.text)}</text>'
    )


def svg(lines: list[str]) -> str:
    """The lines in a window as wide as the longest."""
    shown = [[piece for piece in pieces(line) if piece.text.strip()] for line in lines]
    columns = max(piece.column + len(piece.text) for line in shown for piece in line)
    width, height = columns * CELL + 2 * MARGIN, len(lines) * LINE + BAR + MARGIN
    lights = zip(("#ff5f56", "#ffbd2e", "#27c93f"), range(20, 60, 18), strict=False)
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'font-family="ui-monospace, \'DejaVu Sans Mono\', Menlo, Consolas, monospace" font-size="14">',
        f"<title>{escape(COMMAND)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACK}"/>',
        *(f'<circle cx="{x}" cy="17" r="6" fill="{color}"/>' for color, x in lights),
        *(drawn(piece, BAR + (n + 0.7) * LINE) for n, line in enumerate(shown) for piece in line),
        "</svg>",
    ]
    return "\n".join(rows) + "\n"


def main() -> int:
    """Play the default incident and draw it; the demo's exit code."""
    screen = io.StringIO()
    with contextlib.redirect_stdout(screen):
        code = asyncio.run(play(None, speed=4.0, keep=False, color=True))
    lines = screen.getvalue().strip("\n").split("\n")
    kept = "\n".join(takewhile(lambda line: UNTIL not in line, lines)).rstrip().split("\n")
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(svg([COMMAND, "", *kept]), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
