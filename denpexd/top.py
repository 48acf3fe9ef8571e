"""`denpexd top`: jobs, their ranks and open incidents of a running daemon, live on a terminal.

Everything comes over the HTTP API, asked in a thread every few seconds; a daemon that does not answer is shown as such
and asked again. Nothing of what a job wrote is taken for markup: all of it is put into Text objects as it stands.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar, Protocol

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static
from textual.worker import get_current_worker

from denpexd.errors import DenpexdError
from denpexd.notify.render import acknowledged, kind_word, report, who
from denpexd.notify.text import one_line, printable
from denpexd.status import JOB_HEAD, Standing, Verdict, in_order, job_cells, waits_for
from denpexd.web.page import duration

CELLS = {
    "running": ("r", "green"),
    "silent": ("s", "yellow"),
    "waiting": ("w", "yellow"),
    "failed": ("F", "bold white on red"),
    "gone": ("g", "red"),
    "unheard": ("u", "dim"),
    "done": ("d", "cyan"),
}
_SEVERITIES = {"critical": "bold red", "high": "red", "medium": "yellow", "low": "cyan"}
_STATES = {"failed": "bold red", "gone": "red", "stalled": "yellow", "running": "green", "done": "cyan"}
_INCIDENTS = ("SINCE", "SEVERITY", "JOB", "WHO", "CERTAINTY", "WHAT")


class Source(Protocol):
    """Whom `top` asks; called in a thread. All raise DaemonError where nobody answers."""

    def look(self) -> Standing:
        """All but the ranks."""
        ...

    def ranks(self, job: str) -> Sequence[Mapping[str, Any]]:
        """The ranks of a job, by number."""
        ...

    def acknowledge(self, key: str) -> None:
        """Take an incident on."""
        ...


class Detail(ModalScreen[None]):
    """One incident, as the report of the terminal says it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Back")]

    def __init__(self, verdict: Verdict) -> None:
        super().__init__()
        self._verdict = verdict

    def compose(self) -> ComposeResult:
        """The report, to be scrolled."""
        width = max(40, self.app.size.width - 6)
        with VerticalScroll(id="detail"):
            yield Static(Text.from_ansi(printable(report(self._verdict, color=True, width=width))))
        yield Footer()


class Top(App[None]):
    """The live view. `every`: seconds between two looks."""

    TITLE = "denpexd"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; }
    #jobs { height: auto; max-height: 40%; }
    #grid { height: 1fr; min-height: 4; padding: 0 1; border-top: solid $primary; }
    #incidents { height: auto; max-height: 40%; border-top: solid $primary; }
    #detail { padding: 1 2; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("tab", "focus_next", "Next table", show=False),
        Binding("enter", "detail", "Explain", priority=True),
        Binding("a", "acknowledge", "Take on"),
        Binding("r", "now", "Look now"),
        Binding("space", "pause", "Pause"),
        Binding("e", "export", "Save a picture", show=False),
    ]

    def __init__(self, source: Source, *, every: float = 2.0) -> None:
        super().__init__()
        self._source, self._every, self._paused = source, every, False
        self._standing: Standing | None = None
        self._ranks: Sequence[Mapping[str, Any]] = ()
        self._trouble = ""
        self._ranks_of: str | None = None
        self._shown = Text()
        # Held, not looked for by name: that would search the screen of a detail while one is shown.
        self._head, self._cells = Static(id="head"), Static(id="ranks")
        self._jobs = DataTable[Text](id="jobs", cursor_type="row")
        self._incidents = DataTable[Text](id="incidents", cursor_type="row")
        self._grid = VerticalScroll(self._cells, id="grid")

    def compose(self) -> ComposeResult:
        """Head, jobs, ranks of the chosen job, incidents."""
        yield from (self._head, self._jobs, self._grid, self._incidents)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self._jobs.add_columns(*JOB_HEAD)
        self._incidents.add_columns(*_INCIDENTS)
        self._jobs.focus()
        self._show()
        self.set_interval(self._every, self._again)
        self._look()

    def on_resize(self) -> None:
        """The grid has another width."""
        self._show_ranks()

    # --- asking -----------------------------------------------------------------------------------------------------

    def _again(self) -> None:
        if not self._paused:
            self._look()

    @work(thread=True, exclusive=True)
    def _look(self) -> None:
        worker, standing, trouble = get_current_worker(), None, ""
        ranks: Sequence[Mapping[str, Any]] = ()
        chosen = self._chosen_job()
        try:
            standing = self._source.look()
            names = [str(job["job"]) for job in in_order(standing)]
            job = chosen if chosen in names else next(iter(names), None)
            ranks = self._source.ranks(job) if job is not None else ()
        except DenpexdError as error:
            trouble = str(error)
        if not worker.is_cancelled:
            self.call_from_thread(self._take, standing, ranks, trouble)

    def _take(self, standing: Standing | None, ranks: Sequence[Mapping[str, Any]], trouble: str) -> None:
        # A daemon that does not answer: what was known last stays on the screen, said to be old.
        self._standing, self._trouble = standing or self._standing, trouble
        self._ranks = ranks if standing is not None else self._ranks
        self._show()

    # --- keys -------------------------------------------------------------------------------------------------------

    def action_now(self) -> None:
        """Look at once."""
        self._look()

    def action_pause(self) -> None:
        """Hold the picture, or go on."""
        self._paused = not self._paused
        self._show_head()

    def action_detail(self) -> None:
        """Explain the chosen incident, or come back from that."""
        if isinstance(self.screen, Detail):
            self.pop_screen()
        elif (verdict := self._chosen_incident()) is not None:
            self.push_screen(Detail(verdict))

    @work(thread=True)
    def action_acknowledge(self) -> None:
        """Take the chosen incident on: who was told of it is told so, and reminders stop."""
        if (verdict := self._chosen_incident()) is None:
            return
        try:
            self._source.acknowledge(str(verdict["key"]))
        except DenpexdError as error:
            self.notify(str(error), severity="error", markup=False)
        self.call_from_thread(self._look)

    def _chosen_incident(self) -> Verdict | None:
        row, known = self._incidents.cursor_row, self._standing.incidents if self._standing else ()
        return known[row] if 0 <= row < len(known) else None

    def action_export(self) -> None:
        """Save what is seen as an SVG in the working folder."""
        self.notify(f"saved: {self.save_screenshot()}")

    def on_data_table_row_selected(self, chosen: DataTable.RowSelected) -> None:
        """A click on a row: an incident is explained, a job shows its ranks."""
        if chosen.data_table is self._incidents:
            self.action_detail()
        else:
            self._look()

    def on_data_table_row_highlighted(self, chosen: DataTable.RowHighlighted) -> None:
        """Another job was chosen: its ranks are wanted now."""
        if chosen.data_table is self._jobs and self._chosen_job() not in (None, self._ranks_of):
            self._look()

    # --- drawing ----------------------------------------------------------------------------------------------------

    def _chosen_job(self) -> str | None:
        return None if (job := self._chosen()) is None else str(job["job"])

    def _chosen(self) -> Mapping[str, Any] | None:
        if self._standing is None:
            return None
        jobs, row = in_order(self._standing), self._jobs.cursor_row
        return jobs[row] if 0 <= row < len(jobs) else None

    def _show(self) -> None:
        self._show_head()
        if self._standing is not None:
            _fill(self._jobs, [job_row(job) for job in in_order(self._standing)])
            _fill(self._incidents, [incident_row(v, self._standing.now) for v in self._standing.incidents])
        self._ranks_of = self._chosen_job()
        self._show_ranks()

    def _show_head(self) -> None:
        head, standing = Text(), self._standing
        if standing is not None:
            version = standing.label("denpexd_build_info", "version")
            head.append(f"denpexd {version} ", "bold").append(f"at {standing.url}  ")
            number = len(standing.incidents)
            said = f"{number} open incident{'' if number == 1 else 's'}" if number else "nothing is open"
            head.append(said, "bold red" if number else "green")
        elif not self._trouble:
            head.append("asking the daemon ...", "dim")
        if self._paused:
            head.append("  paused", "bold yellow")
        for why in ([self._trouble] if self._trouble else []) + list(standing.why if standing else ()):
            head.append(f"\n▲ {one_line(why)}", "red")
        self._head.update(head)

    def _show_ranks(self) -> None:
        # An update before the first layout would not know its width.
        width = max(8, self._grid.size.width - 2)
        waits = "" if (job := self._chosen()) is None else waits_for(job)
        shown = Text(f"{waits}\n" if waits else "", "yellow") + grid(self._ranks, width)
        if shown != self._shown:  # of 16,384 ranks the layout takes half a second
            self._shown = shown
            self._cells.update(shown)


def job_row(job: Mapping[str, Any]) -> list[Text]:
    """One line of the table of jobs."""
    name, state, step, usual, stands = job_cells(job)
    styled = Text(name), Text(state, _STATES.get(state, "")), Text(step), Text(usual), Text(stands, "yellow")
    counts = job["counts"]
    ranks = Text("  ").join(Text(f"{counts[s]} {s}", style) for s, (_, style) in CELLS.items() if counts.get(s))
    return [*styled, ranks]


def incident_row(verdict: Verdict, now: float) -> list[Text]:
    """One line of the table of incidents."""
    severity = one_line(verdict.get("severity"))
    since = max(0.0, now - float(verdict.get("opened_t") or now))
    taken = acknowledged(verdict)
    return [
        Text(duration(since)),
        Text(severity, _SEVERITIES.get(severity, "")),
        Text(one_line(verdict.get("job"))),
        Text(who(verdict)),
        Text(one_line(verdict.get("certainty"))),
        Text(f"({taken}) " if taken else "", "green") + Text(f"{kind_word(verdict)}: {one_line(verdict.get('title'))}"),
    ]


def grid(ranks: Sequence[Mapping[str, Any]], width: int) -> Text:
    """One letter a rank, as many a line as a power of two fits, with the number of the first rank of each line."""
    if not ranks:
        return Text("no rank yet", "dim")
    digits = len(str(ranks[-1]["rank"]))
    room = max(1, width - digits - 1)
    wide = next(n for n in (128, 64, 32, 16, 8, 4, 2, 1) if n <= room)
    text = Text()
    for at in range(0, len(ranks), wide):
        text.append(f"{ranks[at]['rank']:>{digits}} ", "dim")
        for state, alike in groupby(rank["state"] for rank in ranks[at : at + wide]):
            letter, style = CELLS[state]
            text.append(letter * len(list(alike)), style)
        text.append("\n")
    return text.append("  ".join(f"{letter} {state}" for state, (letter, _) in CELLS.items()), "dim")


def _fill(table: DataTable[Text], rows: Sequence[Sequence[Text]]) -> None:
    """New rows, the cursor where it was."""
    at = table.cursor_row
    table.clear()
    for row in rows:
        table.add_row(*row)
    if rows:
        table.move_cursor(row=min(at, len(rows) - 1))
