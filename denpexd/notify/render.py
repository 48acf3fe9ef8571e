"""A verdict for people: the report in a terminal. Pure.

The first line is the answer. Everything quoted from a job is escaped for its destination here; secrets were taken
out before (`redact`).
"""

import re
from collections.abc import Mapping, Sequence

from denpexd.notify.policy import Verdict
from denpexd.notify.text import (
    HEAD,
    UNEQUAL,
    cells,
    changes,
    cut,
    cut_chars,
    excerpt,
    explain_command,
    items,
    moment,
    one_line,
    rank_words,
    ranks,
    string,
    visible,
    wrap,
)

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STYLES = {"critical": "1;31", "high": "31", "medium": "33", "low": "36", "closed": "32"}
_STYLES |= {"confirmed": "32", "likely": "33", "undetermined": "35", "head": "1", "dim": "2", "command": "36"}
_STYLES |= {"read-only": "32", "config": "33", "restart": "33", "disruptive": "31"}


class Page:
    """Lines of a report or an encyclopedia entry, with or without colour."""

    def __init__(self, color: bool, width: int, whole: bool = False) -> None:
        self.color, self.width, self.whole = color, max(40, width), whole
        self.lines: list[str] = []

    def cut(self, text: str, width: int) -> str:
        return text if self.whole else cut(text, width)

    def paint(self, text: str, style: str) -> str:
        code = _STYLES.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code and text else text

    def head(self, text: str) -> None:
        self.lines += ["", self.paint(text, "head")]

    def text(self, text: str, indent: str = "  ", hang: str | None = None, style: str = "") -> None:
        self.lines += [self.paint(line, style) for line in wrap(text, self.width, indent, hang)]

    def line(self, text: str, hang: str = "  ") -> None:
        """One line with colours in it; without them and wrapped where it has no room."""
        plain = _COLOUR.sub("", text)
        if self.whole or cells(plain) <= self.width:
            self.lines.append(text)
        else:
            self.text(plain, "", hang)

    def section(self, head: str, text: str) -> None:
        if text:
            self.head(head)
            self.text(text)

    def command(self, text: str, indent: str = "     ") -> None:
        # Never cut or wrapped: it is there to be copied.
        for line in visible(text).splitlines():
            self.lines.append(indent + self.paint(f"$ {line}", "command"))


def kind_word(verdict: Verdict) -> str:
    """HANG, or the category in capitals, or CLOSED."""
    if verdict.get("state") == "closed":
        return "CLOSED"
    return "HANG" if verdict.get("hang") else one_line(verdict.get("category") or "failure").upper()


def who(verdict: Verdict) -> str:
    """`rank 0 of 4`, `ranks 2,5`, or that no rank can be named."""
    initiating = ranks(verdict, "initiating_ranks")
    if not initiating:
        return "rank not determined"
    nodes = verdict.get("nodes")
    known = {int(rank) for rank in nodes if str(rank).isdigit()} if isinstance(nodes, Mapping) else set()
    world = known.union(initiating, ranks(verdict, "collateral_ranks"), ranks(verdict, "unheard_ranks")) - {-1}
    whole = max(world) == len(world) - 1  # of some pasted lines the world size is not known
    return rank_words(initiating) + (f" of {len(world)}" if whole and len(world) > len(initiating) else "")


def report(
    verdict: Verdict, *, color: bool, width: int, whole: bool = False, also: Sequence[tuple[str, str]] = ()
) -> str:
    """The whole report for a terminal of `width` columns, without a line end at the end.

    `also`: further facts by name, at most 10 characters, never cut.
    `whole`: headline and facts are not cut, for a file or a pipe, where nothing runs over an edge.
    """
    page = Page(color, width, whole)
    page.lines.append(_first_line(verdict, page))
    page.text(string(verdict, "quick_answer"))
    _facts(verdict, page, also)
    page.section("What happened", string(verdict, "root_cause"))
    _evidence(verdict, page)
    _stacks(verdict, page)
    _changes(verdict, page)
    _against(verdict, page)
    _missing(verdict, page)
    _remedy(verdict, page)
    _links(verdict, page)
    return "\n".join(page.lines)


def _first_line(verdict: Verdict, page: Page) -> str:
    closed = verdict.get("state") == "closed"
    style = "closed" if closed else string(verdict, "severity")
    certainty = one_line(verdict.get("certainty") or "undetermined")
    mark = "✔" if closed else "●"
    plain = f"{mark} {kind_word(verdict)}  {who(verdict)}  "
    room = page.width - cells(plain) - len(certainty) - 4
    start = page.paint(f"{mark} {kind_word(verdict)}", style)
    title = one_line(verdict.get("title") or verdict.get("failure"))
    if room < 20 and not page.whole:  # no room beside it
        below = "\n".join(page.paint(line, "head") for line in wrap(title, page.width, "  "))
        return f"{start}  {who(verdict)}  ({page.paint(certainty, certainty)})\n{below}"
    title = page.cut(title, room)
    return f"{start}  {who(verdict)}  {page.paint(title, 'head')}  ({page.paint(certainty, certainty)})"


def _facts(verdict: Verdict, page: Page, also: Sequence[tuple[str, str]]) -> None:
    nodes = verdict.get("nodes")
    at = {str(rank): node for rank, node in nodes.items()} if isinstance(nodes, Mapping) else {}
    initiating = ranks(verdict, "initiating_ranks")
    on = sorted({one_line(at[str(r)]) for r in initiating if str(r) in at})
    collateral, unheard = ranks(verdict, "collateral_ranks"), ranks(verdict, "unheard_ranks")
    attempt = verdict.get("attempt")
    rows = (
        ("job", one_line(verdict.get("job")) + (f", attempt {attempt}" if attempt not in (None, 0) else "")),
        ("started by", (rank_words(initiating) if initiating else "") + (f" on {', '.join(on)}" if on else "")),
        ("victims", rank_words(collateral) if collateral else ""),
        ("not heard", rank_words(unheard) if unheard else ""),
        ("step", one_line(verdict.get("step"))),
        ("since", moment(verdict.get("opened_t"))),
        (
            "severity",
            f"{one_line(verdict.get('severity'))}, a matter of {one_line(verdict.get('domain') or 'unknown')}",
        ),
        ("seen before", history(verdict)),
        ("taken on", acknowledged(verdict)),
        ("incident", f"{one_line(verdict.get('key'))}, revision {one_line(verdict.get('revision'))}"),
    )
    page.lines.append("")
    named = [(f"{name:<10} ", value) for name, value in rows if value]
    page.lines += [f"  {page.paint(name, 'dim')}{page.cut(value, page.width - 2 - len(name))}" for name, value in named]
    # Links among the further ones are there to be copied: never cut.
    page.lines += [f"  {page.paint(f'{name:<10} ', 'dim')}{value}" for name, value in also if value]


def history(verdict: Verdict) -> str:
    """How often this was seen before, where, and what was done about it; empty where nothing is known."""
    known = verdict.get("history")
    return cut_chars(one_line(known.get("text")), 300) if isinstance(known, Mapping) else ""


def acknowledged(verdict: Verdict) -> str:
    """`by anna: cable swapped`; empty where nobody has taken it on."""
    said = verdict.get("acknowledged")
    if not isinstance(said, Mapping):
        return ""
    note = one_line(said.get("note"))
    return cut_chars(f"by {one_line(said.get('by')) or 'somebody'}" + (f": {note}" if note else ""), 400)


def _evidence(verdict: Verdict, page: Page) -> None:
    found = items(verdict, "evidence")
    if not found:
        return
    page.head("Evidence")
    for number, item in enumerate(found):
        page.lines += [""] if number else []
        page.line("  " + page.paint(origin(item), "dim"), "    ")
        page.lines += ["  │ " + cut(line, page.width - 4) for line in excerpt(str(item.get("text", "")))]
        if means := one_line(item.get("means")):
            page.text(means, "  └ ", "    ")


def origin(item: Mapping[str, object]) -> str:
    rank = item.get("rank")
    where = "launcher" if rank == -1 else f"rank {one_line(rank)}"
    if source := one_line(item.get("source")):
        where += f"  {source}" + (f", byte {one_line(item['offset'])}" if item.get("offset") else "")
    return where + (f"  {when}" if (when := moment(item.get("t"))) else "")


def standing(verdict: Verdict) -> list[tuple[str, str]]:
    """Groups of ranks with equal stacks: which ranks, and where they stand."""
    rows = []
    for group in items(verdict, "stacks"):
        under, state = one_line(group.get("under")), one_line(group.get("state"))
        at = one_line(group.get("at"))
        at += (f" under {under}" if under and under != at else "") + (f", {state}" if state else "")
        rows.append((rank_words(ranks(group, "ranks")), at))
    return rows


def _stacks(verdict: Verdict, page: Page) -> None:
    rows = standing(verdict)
    if not rows:
        return
    page.head("Where the ranks stand")
    widest = min(24, max(len(name) for name, _ in rows))
    for name, at in rows:
        page.text(at, f"  {name:<{widest}}  ", " " * (widest + 4))


def _changes(verdict: Verdict, page: Page) -> None:
    for head, lines in zip((HEAD, UNEQUAL), changes(verdict), strict=True):
        page.lines += ["", page.paint(head, "head")] if lines else []
        for line in lines:
            page.text(line, "  - ", "    ")


def _against(verdict: Verdict, page: Page) -> None:
    against, others = items(verdict, "against"), items(verdict, "alternatives")
    if against:
        page.head("What speaks against it")
    for item in against:
        page.text(f"{one_line(item.get('text'))} {one_line(item.get('means'))}".strip(), "  - ", "    ")
    if others:
        page.head("What else it could be, and why it is not")
    for item in others:
        page.text(f"{one_line(item.get('failure'))}: {one_line(item.get('why_not'))}", "  - ", "    ")


def _missing(verdict: Verdict, page: Page) -> None:
    wanted = items(verdict, "missing")
    if wanted:
        page.head("What is missing")
    for item in wanted:
        page.text(one_line(item.get("fact") or item.get("text")), "  - ", "    ")
        page.text(one_line(item.get("how")), "    → ", "      ")


def _remedy(verdict: Verdict, page: Page) -> None:
    steps = items(verdict, "remediation")
    if steps or string(verdict, "fallback") or string(verdict, "mitigation"):
        page.head("What to do")
    for number, step in enumerate(steps, 1):
        risk = one_line(step.get("risk"))
        page.text(
            one_line(step.get("do") or step.get("text")) + (f" [{risk}]" if risk else ""), f"  {number}. ", "     "
        )
        if risk and page.color:
            page.lines[-1] = page.lines[-1].replace(f"[{risk}]", page.paint(f"[{risk}]", risk))
        page.command(string(step, "command"))
    for label, name in (("To save this run", "mitigation"), ("If that does not help", "fallback")):
        if text := one_line(verdict.get(name)):
            page.text(f"{label}: {text}", "  ", "  ")
    if safe := one_line(verdict.get("resume_safe")):
        page.text(f"Resume from the last checkpoint: {safe}", "  ", "  ")
    if command := string(verdict, "verification"):
        page.head("How to check that it worked")
        page.command(command, "  ")
    page.section("How to prevent it", one_line(verdict.get("prevention")))


def _links(verdict: Verdict, page: Page) -> None:
    references = verdict.get("references")
    urls = [one_line(url) for url in references] if isinstance(references, list | tuple) else []
    explain = explain_command(verdict.get("failure"))
    if urls or explain:
        page.head("More")
    page.command(explain, "  ")
    page.lines += [f"  {url}" for url in urls]
