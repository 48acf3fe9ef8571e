"""Draws docs/images/slack.svg: the Slack message of a recorded hang, block by block, as text in an SVG.

Run by hand where the message has changed: PYTHONPATH=. .venv/bin/python docs/draw_slack.py
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path
from typing import Any

from denpexd.notify.message import Links, message
from denpexd.notify.slack_blocks import blocks

ROOT = Path(__file__).parents[1]
VERDICT = ROOT / "tests" / "data" / "alerts" / "hang.json"
IMAGE = ROOT / "docs" / "images" / "slack.svg"
WIDTH, LEFT, LINE, COLUMNS, CELL = 860, 66, 20, 100, 7.2
MARK = {"🔴": "#dd2e44"}
STYLES = {
    "*": 'font-weight="700"',
    "`": 'font-family="ui-monospace, \'DejaVu Sans Mono\', monospace" font-size="12.5" fill="#c01343"',
    "_": 'font-style="italic"',
    "<": 'fill="#1264a3"',
    "#": 'font-weight="800" font-size="17"',
    "-": 'fill="#616061" font-size="12.5"',
    "": "",
}
MARKS = re.compile(r"(\*[^*\n]+\*|`[^`\n]+`|_\([^)]+\)_|<[^|>]+\|[^>]+>)")


def spans(line: str) -> Iterator[tuple[str, str]]:
    """Style and text of each piece of a line of mrkdwn."""
    for part in MARKS.split(line):
        if part.startswith("<"):
            yield "<", part[1:-1].partition("|")[2]
        elif part[:1] in ("*", "`", "_") and part[-1] == part[0] and len(part) > 2:
            yield part[0], part[1:-1]
        elif part:
            yield "", part


def lines(text: str, columns: int = COLUMNS) -> list[str]:
    """The text in lines that fit; code blocks become code, line by line."""
    text = re.sub(r"```(.*?)```", lambda m: "\n".join(f"`{line}`" for line in m[1].splitlines()), text, flags=re.S)
    return [piece for line in text.split("\n") for piece in textwrap.wrap(line, columns) or [""]]


class Drawing:
    """Lines from top to bottom."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.y = 46.0

    def write(self, line: str, x: float = LEFT, style: str = "") -> None:
        """One line at the present height."""
        pieces = "".join(f"<tspan {STYLES[own or style]}>{escape(unescape(text))}</tspan>" for own, text in spans(line))
        self.rows.append(f'<text x="{x}" y="{self.y:.0f}" xml:space="preserve">{pieces}</text>')

    def block(self, block: dict[str, Any]) -> None:
        """A block of Block Kit."""
        if block["type"] == "header":
            mark, _, text = block["text"]["text"].partition(" ")
            self.rows.append(f'<circle cx="{LEFT + 7}" cy="{self.y - 6:.0f}" r="7" fill="{MARK[mark]}"/>')
            for line in textwrap.wrap(text, 72, initial_indent="\u00a0" * 5):
                self.write(line, style="#")
                self.y += LINE + 2
        elif "fields" in block:
            for pair in zip(block["fields"][::2], [*block["fields"][1::2], None], strict=False):
                top = self.y
                ends = [self.column(field["text"], n, top) for n, field in enumerate(pair) if field]
                self.y = max(ends)
        else:
            style = "-" if block["type"] == "context" else ""
            parts = [block["text"]] if "text" in block else block["elements"]
            columns = 1000 if style else COLUMNS  # links take less room than they have characters
            for line in (each for part in parts for each in lines(part["text"], columns)):
                self.write(line, style=style)
                self.y += LINE
        self.y += 8

    def column(self, text: str, number: int, top: float) -> float:
        """A field in its column; where it ends."""
        self.y = top
        for line in lines(text, 48):
            self.write(line, LEFT + number * 390)
            self.y += LINE
        return self.y + 4


def main() -> int:
    """Draw it."""
    links = Links(
        "https://denpexd.example.com", "https://runbooks.example.com/{failure}", {"dashboard": "https://grafana/d/x"}
    )
    verdict = json.loads(VERDICT.read_text("utf-8"))
    drawing = Drawing()
    drawing.write("*denpexd*  APP")
    drawing.y += LINE + 4
    for block in blocks(message(verdict, links)):
        drawing.block(block)
    height = drawing.y + 4
    face = "-apple-system, 'Segoe UI', 'Lato', 'DejaVu Sans', sans-serif"
    page = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" font-family="{face}" '
        'font-size="14" fill="#1d1c1d">',
        "<title>An alert of denpexd in Slack</title>",
        f'<rect width="{WIDTH}" height="{height:.0f}" rx="8" fill="#ffffff" stroke="#dddddd"/>',
        '<rect x="18" y="26" width="36" height="36" rx="6" fill="#14171c"/>',
        '<text x="36" y="51" text-anchor="middle" font-weight="800" font-size="20" fill="#ff7b72">d</text>',
        *drawing.rows,
        "</svg>",
    ]
    IMAGE.write_text("\n".join(page) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
