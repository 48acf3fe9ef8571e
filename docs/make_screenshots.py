"""Draws docs/images: what `denpexd demo`, `doctor`, `status` and `top` show in a terminal, as text in SVGs.

Run by hand where they have changed, on a machine where port 9464 is free: .venv/bin/python docs/make_screenshots.py
"""

import asyncio
import contextlib
import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from itertools import takewhile
from pathlib import Path

from denpexd.client import Client
from denpexd.clock import SystemClock
from denpexd.demo import play
from denpexd.doctor import as_text as doctors_page
from denpexd.doctor import examine
from denpexd.settings import load
from denpexd.status import Asked, Standing
from denpexd.status import as_text as status_page
from denpexd.top import Top

IMAGES = Path(__file__).parent / "images"
URL = "http://127.0.0.1:9464"
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


def svg(command: str, lines: list[str]) -> str:
    """The command and what it prints, in a window as wide as the longest line."""
    lines = [f"$ {command}", "", *lines]
    shown = [[piece for piece in pieces(line) if piece.text.strip()] for line in lines]
    columns = max(piece.column + len(piece.text) for line in shown for piece in line)
    width, height = columns * CELL + 2 * MARGIN, len(lines) * LINE + BAR + MARGIN
    lights = zip(("#ff5f56", "#ffbd2e", "#27c93f"), range(20, 60, 18), strict=False)
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'font-family="ui-monospace, \'DejaVu Sans Mono\', Menlo, Consolas, monospace" font-size="14">',
        f"<title>{escape(command)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACK}"/>',
        *(f'<circle cx="{x}" cy="17" r="6" fill="{color}"/>' for color, x in lights),
        *(drawn(piece, BAR + (n + 0.7) * LINE) for n, line in enumerate(shown) for piece in line),
        "</svg>",
    ]
    return "\n".join(rows) + "\n"


def draw(command: str, text: str) -> None:
    """Write the picture of a command that is named after it."""
    name = command.split()[1].replace("demo", "report")
    (IMAGES / f"{name}.svg").write_text(svg(command, text.strip("\n").split("\n")), encoding="utf-8")


def demo() -> int:
    """Play the default incident and draw it; the demo's exit code."""
    screen = io.StringIO()
    with contextlib.redirect_stdout(screen):
        code = asyncio.run(play(None, speed=4.0, keep=False, color=True))
    draw("denpexd demo", "\n".join(takewhile(lambda line: UNTIL not in line, screen.getvalue().split("\n"))).rstrip())
    return code


@contextlib.contextmanager
def daemon() -> Iterator[Client]:
    """The daemon of a demo that goes on, with its incident open."""
    command = [sys.executable, "-m", "denpexd", "demo", "--keep", "--speed", "10"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, Client(URL) as client:
        assert process.stdout is not None
        for line in process.stdout:
            if "goes on" in line:
                break
        yield client
        process.terminate()


class Later(Asked):
    """The demo plays faster than time, so its incident was told in the future: seen from a while after that."""

    def look(self) -> Standing:
        """How it stands, two minutes on."""
        found = super().look()
        return replace(found, now=max((float(v["opened_t"]) for v in found.incidents), default=found.now) + 137)


async def live(client: Client) -> None:
    """Draw `denpexd top`."""
    app = Top(Later(client, SystemClock()), every=60)
    async with app.run_test(size=(104, 18)) as pilot:
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        picture = app.export_screenshot(title="denpexd top")
    # No font is fetched from the network by who looks at it.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    (IMAGES / "top.svg").write_text(picture.replace("Fira Code", "DejaVu Sans Mono"), encoding="utf-8")


def main() -> int:
    """Draw them all."""
    IMAGES.mkdir(exist_ok=True)
    code = demo()
    with daemon() as client:
        draw("denpexd status", status_page(Later(client, SystemClock()).look(), color=True, width=100))
        asyncio.run(live(client))
    with tempfile.TemporaryDirectory(prefix="denpexd-") as folder:
        Path(folder, "rank0.log").write_text("step 1 loss 2.3\n")
        sinks = [{"type": "console"}, {"type": "alertmanager", "url": "http://127.0.0.1:9093"}]
        values = {"paths": [folder], "sinks": sinks, "state_dir": f"{folder}/state"}
        found = asyncio.run(examine(lambda: load(None, overrides=values, environ={}), SystemClock()))
    draw("denpexd doctor /logs -c denpexd.yaml", doctors_page(found, color=True, width=100).replace(folder, "/logs"))
    return code


if __name__ == "__main__":
    sys.exit(main())
