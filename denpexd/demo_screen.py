"""What the demo shows: plain text for 80 to 120 columns, with colour where the terminal has it."""

import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from denpexd.core.events import Want
from denpexd.playback import Received

# A rank in the grid: the letter of its state, and its colour.
STATES = {
    "running": ("r", "32"),
    "silent": ("s", "33"),
    "waiting": ("w", "33"),
    "failed": ("F", "1;31"),
    "gone": ("g", "31"),
    "unheard": ("u", "2"),
    "done": ("d", "36"),
}
ALERT_KEYS = (
    "event",
    "key",
    "revision",
    "job",
    "failure",
    "severity",
    "certainty",
    "hang",
    "initiating_ranks",
    "collateral_ranks",
)
ALERT_HEADERS = ("Content-Type", "User-Agent", "Idempotency-Key")
METRICS = ("denpexd_suspected_hangs_total", "denpexd_incident_open")
REST = "What happened"  # the first headline of a report after its summary
Said = Sequence[tuple[str, tuple[int, ...]]]


class Screen:
    """Prints to `out`, top to bottom; nothing is drawn over."""

    def __init__(self, out: TextIO, *, color: bool) -> None:
        self._out, self._color, self._reported = out, color, False
        self._width = max(40, min(120, shutil.get_terminal_size((100, 24)).columns))

    def title(self, name: str, title: str) -> None:
        """What is played."""
        self._line()
        self._line(self._paint(f"denpexd demo  {name}", "1"))
        self._line(f"  {title}.")
        self._line()

    def places(self, what: str, folder: Path, url: str) -> None:
        """Where everything is, and how to read the grid."""
        files = sorted(path.name for path in (folder / "logs").iterdir())
        self._pair("played", what)
        self._pair("logs", f"{folder}/logs/  {files[0]} ... {files[-1]}")
        self._pair("state", f"{folder}/state/denpexd.sqlite")
        self._pair("web", url)
        self._line()
        legend = "  ".join(f"{self._paint(letter, style)} {state}" for state, (letter, style) in STATES.items())
        self._line(f"  {legend}")
        self._line()

    def row(self, t: float, job: Mapping[str, Any] | None, wants: Sequence[Want]) -> None:
        """The ranks now, one letter each, and what the daemon has just asked for; nothing before there are ranks."""
        if job is None or not job["ranks"]:
            return
        ranks = job["ranks"]
        grid = "".join(self._paint(*STATES[rank["state"]]) for rank in ranks)
        silent = [rank["silent_for"] for rank in ranks if rank["silent_for"] is not None]
        facts = []
        if job["step"] is not None:
            facts.append(f"step {job['step']}")
        if job["phase"]:
            facts.append(str(job["phase"]))
        if silent and min(silent) >= 1.0:
            facts.append(f"last line {min(silent):2.0f} s ago")
        text = f"  {t:5.0f} s  {grid}{' ' * max(1, 10 - len(ranks))}{'  '.join(facts)}"
        if wants:
            kinds = " and ".join(sorted({"stacks" if want.kind == "stacks" else "processes" for want in wants}))
            text += self._paint(f"  > denpexd looks at the {kinds} of the ranks", "36")
        self._line(text)

    def report(self, text: str) -> None:
        """What the console sink printed; of an update only the beginning, the rest was on the screen before."""
        self._line()
        lines = text.rstrip("\n").split("\n")
        if self._reported:
            self._line(self._paint("Updated:", "1"))
            lines = lines[: next((n for n, line in enumerate(lines) if REST in line), len(lines))]
        self._reported = True
        self._line("\n".join(lines).rstrip("\n"))
        self._line()

    def alert(self, request: Received, number: int) -> None:
        """The last of `number` requests as it arrived."""
        self._head("The alert" + (f", last of {number}," if number > 1 else "") + " as a webhook received it")
        self._line(f"  {self._paint(f'{request.method} {request.path}', '36')}")
        for name in ALERT_HEADERS:
            self._line(f"  {name}: {request.header(name)}")
        self._line()
        body = request.json
        shown = [f'  "{key}": {json.dumps(body[key], ensure_ascii=False)},' for key in ALERT_KEYS if key in body]
        for line in ["{", *shown, f"  ... and {len(body) - len(shown)} more keys", "}"]:
            self._line(f"  {line}")

    def asked(self, url: str, metrics: str, incidents: int) -> None:
        """What the daemon answers to whoever asks."""
        self._head("What the daemon answers")
        self._pair("console", url)
        self._command(f"curl -s {url}metrics | grep -E '^({'|'.join(METRICS)})'")
        for line in metrics.splitlines():
            if line.startswith(METRICS):
                self._line(f"  {line}")
        self._command(f"curl -s {url}api/v1/incidents | jq '.incidents | length'")
        self._line(f"  {incidents}")

    def truth(self, right: bool, failure: str, ranks: tuple[int, ...], said: Said) -> None:
        """Whether the daemon found what was recorded."""
        self._head("What was really wrong (the daemon was not told)")
        self._line(f"  {failure}, started by {_ranks(ranks)}")
        if right:
            self._verdict(True, "found")
        else:
            self._verdict(False, "not found; denpexd said " + _said(said))

    def healthy(self, right: bool, why: str, said: Said) -> None:
        """Why it was right to say nothing."""
        self._head("What was really wrong (the daemon was not told)")
        self._line("  nothing")
        if right:
            self._verdict(True, "nothing was reported")
            self._line()
            self._text(why)
        else:
            self._verdict(False, "a false alarm: " + _said(said))

    def kept(self) -> None:
        """That it goes on."""
        self._line("  The daemon goes on; Ctrl-C ends it and removes its files.")
        self._line()

    def _verdict(self, right: bool, text: str) -> None:
        self._line("  " + self._paint(f"{'✔' if right else '✘'} {text}", "1;32" if right else "1;31"))

    def _head(self, text: str) -> None:
        self._line()
        self._line(self._paint(text, "1"))

    def _pair(self, name: str, text: str) -> None:
        self._line(f"  {self._paint(f'{name:<8}', '2')} {text}")

    def _command(self, text: str) -> None:
        self._line(f"  {self._paint(f'$ {text}', '36')}")

    def _text(self, text: str) -> None:
        for line in textwrap.wrap(text, self._width - 4):
            self._line(f"  {line}")

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._color else text

    def _line(self, text: str = "") -> None:
        self._out.write(text + "\n")
        self._out.flush()


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else "no rank"


def _said(said: Said) -> str:
    return "; ".join(f"{failure}, started by {_ranks(ranks)}" for failure, ranks in said) or "nothing"
