"""An incident as a Markdown page for the review after it: impact, timeline, cause, fix, what was not known. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from denpexd.notify.markdown import changes_md, doubts_md, md, prose, quotes_md, stacks_md, steps_md
from denpexd.notify.message import few, idle, where
from denpexd.notify.policy import Verdict
from denpexd.notify.render import history, who
from denpexd.notify.text import cut, excerpt, items, moment, one_line, rank_words, ranks

_LONG = 160


@dataclass(frozen=True, slots=True)
class Told:
    """One message that went to a receiver. `at`: Unix seconds; `state`: pending, sent or dead."""

    at: float
    sink: str
    event: str
    reason: str
    state: str
    error: str = ""


def postmortem(verdict: Verdict, told: Sequence[Told] = ()) -> str:
    """The page; `told`: the messages about this incident, where they are known."""
    closed = verdict.get("state") == "closed"
    title = md(verdict.get("title") or verdict.get("failure"))
    lines = [f"# Post-mortem: {title} in {md(verdict.get('job'))}", ""]
    lines += [prose(verdict.get("summary") or verdict.get("quick_answer")), ""]
    state = "closed" if closed else "**still open**: this page is not final"
    lines += [f"Incident `{_code(verdict.get('key'))}`, {state}. Written by denpexd from what it had kept; texts in "
              "brackets are for you to fill in.", ""]  # fmt: skip
    lines += ["## Impact", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {md(value)} |" for name, value in _impact(verdict, closed) if value]
    lines += ["", "## Timeline", "", "| when | who | what |", "|---|---|---|"]
    lines += [f"| {md(at)} | {md(whom)} | {md(what)} |" for at, whom, what in _timeline(verdict, told, closed)]
    cause = prose(verdict.get("root_cause")) or "It is not known."
    lines += ["", "## Cause", "", f"{cause}", "", f"Certainty: {md(verdict.get('certainty'))}."]
    lines += quotes_md(verdict) + stacks_md(verdict) + changes_md(verdict) + steps_md(verdict)
    lines += ["", "## Action items", "", *_actions(verdict)]
    lines += _unknown(verdict)
    return "\n".join(lines) + "\n"


def _code(value: object) -> str:
    return one_line(value).replace("`", "'")


def _impact(verdict: Verdict, closed: bool) -> list[tuple[str, str]]:
    opened, updated, stopped = (verdict.get(name) for name in ("opened_t", "updated_t", "stopped_t"))
    begin = stopped if isinstance(stopped, int | float) else opened
    lasted = ""
    if isinstance(begin, int | float) and isinstance(updated, int | float):
        lasted = _span(updated - begin) + ("" if closed else f" until it last changed, {moment(updated)}")
    step = verdict.get("step")
    return [
        ("Job", f"{one_line(verdict.get('job'))}, attempt {one_line(verdict.get('attempt'))}"),
        ("Severity", one_line(verdict.get("severity"))),
        ("Began", moment(begin)),
        ("Ended", moment(updated) if closed else ""),
        ("Lasted", lasted),
        ("Started by", who(verdict) + where(verdict)),
        ("Only victims", _many(verdict, "collateral_ranks")),
        ("Not heard", _many(verdict, "unheard_ranks")),
        ("GPU time lost", idle(verdict)),
        ("Last step seen", one_line(step)),
        ("Resume from the last checkpoint", one_line(verdict.get("resume_safe"))),
        ("A matter of", one_line(verdict.get("domain"))),
        ("Seen before", history(verdict)),
    ]


def _many(verdict: Verdict, name: str) -> str:
    found = ranks(verdict, name)
    return few(found) if found else ""


def _span(seconds: float) -> str:
    """`2 h 05 min`, `45 s`."""
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


def _timeline(verdict: Verdict, told: Sequence[Told], closed: bool) -> list[tuple[str, str, str]]:
    """When, who, what, in order of time; what happened in one moment in the order cause, verdict, message."""
    found: list[tuple[float, int, str, str]] = []

    def add(at: object, order: int, whom: str, what: str) -> None:
        if isinstance(at, int | float):
            found.append((float(at), order, whom, what))

    step = one_line(verdict.get("step"))
    add(verdict.get("stopped_t"), 0, "job", "last progress" + (f", step {step}" if step else ""))
    for item in items(verdict, "evidence"):
        add(item.get("t"), 1, _witness(item), _said(item))
    certainty = one_line(verdict.get("certainty"))
    add(verdict.get("opened_t"), 2, "denpexd", f"opens the incident; as known at the end: {certainty}")
    taken = verdict.get("acknowledged")
    if isinstance(taken, Mapping):
        note = one_line(taken.get("note"))
        add(taken.get("t"), 3, one_line(taken.get("by")), "takes it on" + (f": {note}" if note else ""))
    for one in told:
        fate = {"sent": "", "pending": " (not sent yet)"}.get(one.state, f" (given up: {one_line(one.error)})")
        why = "" if one.reason in ("first", one.event) else f", {one.reason}"
        add(one.at, 3, one.sink, f"is told: {one.event}{why}{fate}")
    if closed:
        add(verdict.get("updated_t"), 4, "denpexd", "closes the incident")
    return [(moment(at), whom, what) for at, _, whom, what in sorted(found, key=lambda one: one[:2])]


def _witness(item: Mapping[str, object]) -> str:
    rank = item.get("rank")
    return rank_words([rank]) if isinstance(rank, int) else "job"


def _said(item: Mapping[str, object]) -> str:
    quote = next((line.strip() for line in reversed(excerpt(str(item.get("text", "")))) if line.strip()), "")
    means = one_line(item.get("means"))
    return f"{means}: {cut(quote, _LONG)}" if means else cut(quote, _LONG)


def _actions(verdict: Verdict) -> list[str]:
    failure = one_line(verdict.get("failure"))
    wanted = [("Prevent it", verdict.get("prevention")), ("If the fix does not hold", verdict.get("fallback"))]
    lines = [f"- [ ] {name}: {prose(text)} (owner: [ ])" for name, text in wanted if text]
    lines += [f"- [ ] Know it next time: {md(i.get('fact'))}. {md(i.get('how'))}" for i in items(verdict, "missing")]
    if not isinstance(verdict.get("acknowledged"), Mapping):
        command = f"denpexd ack {_code(verdict.get('key'))} --note TEXT"
        lines.append(f"- [ ] Note what mended it: `{command}`; denpexd then tells whether it holds")
    return [*lines, f"- [ ] Watch whether `{failure}` comes back after the fix (owner: [ ], until: [ ])"]


def _unknown(verdict: Verdict) -> list[str]:
    lines = [f"- {md(i.get('fact'))}" for i in items(verdict, "missing")]
    if unheard := ranks(verdict, "unheard_ranks"):
        lines.append(f"- What {md(few(unheard))} did: nothing was heard of {'it' if len(unheard) == 1 else 'them'}.")
    if not ranks(verdict, "initiating_ranks"):
        lines.append("- Which rank started it.")
    lines = lines or ["- Nothing that the verdict asked for was missing."]
    return ["", "## What was not known", "", *lines, *doubts_md(verdict)]
