"""What every receiver is told of an incident, in the order somebody wants it at 3 a.m. Pure.

Texts are safe to show on one line (`text.one_line`) but not yet escaped for a destination; each sink does that.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from denpexd.notify.policy import Verdict
from denpexd.notify.render import acknowledged, history, kind_word, origin, who
from denpexd.notify.text import (
    UNIX_SINCE,
    cut,
    cut_chars,
    excerpt,
    explain_command,
    items,
    moment,
    one_line,
    rank_words,
    ranks,
    short,
    string,
    unmentioned,
)

FACTS = (
    *("job", "started by", "victims", "not heard", "since", "idle so far"),
    *("seen before", "acknowledged", "severity", "certainty", "a matter of"),
)
"""The names of all facts, in the order in which they are told."""
TITLE = 250
SENTENCES = 2
QUOTES, QUOTED = 3, 300
STEPS, STEP, COMMAND = 8, 400, 1000
RANKS, NODES = 120, 4
URL = 2000  # characters; longer ones no receiver follows
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9`\"'(])")
# The job may well go on training with these.
_GOES_ON = frozenset({"performance", "numerics", "serving"})


@dataclass(frozen=True, slots=True)
class Links:
    """Where people read on. `console`: base URL or None; `runbooks`: URL with {failure}; `more`: further, by name."""

    console: str | None = None
    runbooks: str | None = None
    more: Mapping[str, str] = field(default_factory=dict)

    def of(self, verdict: Verdict) -> list[tuple[str, str]]:
        """Name and URL of each, with job, failure and key of the incident in their places."""
        names = {"job": verdict.get("job"), "failure": verdict.get("failure"), "key": verdict.get("key")}
        found = []
        if self.console:
            path = quote(one_line(names["key"]), safe="/")
            found.append(("console", f"{self.console.rstrip('/')}/incidents/{path}"))
        if self.runbooks and explain_command(names["failure"]):
            found.append(("runbook", runbook_url(self.runbooks, quote(one_line(names["failure"]), safe=""))))
        for name, url in self.more.items():
            for place, value in names.items():
                url = url.replace(f"{{{place}}}", quote(one_line(value), safe=""))
            found.append((name, url))
        return [(name, url) for name, url in found if len(url) <= URL]


@dataclass(frozen=True, slots=True)
class Quote:
    """A line of evidence: where it stands, what it says, what it means."""

    origin: str
    text: str
    means: str


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do; `risk`: read-only, config, restart or disruptive."""

    do: str
    risk: str
    command: str


@dataclass(frozen=True, slots=True)
class Message:
    """All that is told. `headline`: the answer in one line; `facts`: what somebody asks next, by name."""

    headline: str
    answer: str
    closed: bool
    severity: str
    failure: str
    key: str
    job: str
    facts: list[tuple[str, str]]
    cause: str
    evidence: list[Quote]
    changed: list[str]
    missing: list[str]
    steps: list[Step]
    verification: str
    resume_safe: str
    links: list[tuple[str, str]]

    @property
    def title(self) -> str:
        """The headline with the job, for where nothing else names it."""
        kind, _, rest = self.headline.partition(" ")
        return f"{kind} {self.job} {rest}" if self.job else self.headline


def message(verdict: Verdict, links: Links | None = None, now: float | None = None) -> Message:
    """What is told of an incident; `now` on the axis of the verdict's times, None: when this revision was made."""
    closed = verdict.get("state") == "closed" or verdict.get("event") == "closed"
    title = one_line(verdict.get("title") or verdict.get("failure"))
    certainty = one_line(verdict.get("certainty"))
    told = one_line(verdict.get("quick_answer") or verdict.get("summary"))
    return Message(
        headline=f"{kind_word(verdict)} {who(verdict)}{where(verdict)}: {title}"
        + (f" ({certainty})" * bool(certainty)),
        answer=f"Closed at {moment(verdict.get('updated_t'))}. {told}".strip() if closed else told,
        closed=closed,
        severity=one_line(verdict.get("severity")),
        failure=one_line(verdict.get("failure")),
        key=one_line(verdict.get("key")),
        job=one_line(verdict.get("job")),
        facts=facts(verdict, now),
        cause=" ".join(_SENTENCE.split(one_line(verdict.get("root_cause")))[:SENTENCES]),
        evidence=[_quoted(item) for item in items(verdict, "evidence")[:QUOTES]],
        changed=short(verdict),
        missing=[_wanted(item) for item in items(verdict, "missing")[:QUOTES]],
        steps=[_step(step) for step in items(verdict, "remediation")[:STEPS]],
        verification=cut_chars(string(verdict, "verification"), COMMAND),
        resume_safe=one_line(verdict.get("resume_safe")),
        links=(links or Links()).of(verdict),
    )


def facts(verdict: Verdict, now: float | None = None) -> list[tuple[str, str]]:
    """Job, ranks with their nodes, step, since when, GPU-hours, certainty, whose it is: what is known of these."""
    attempt, step = (one_line(verdict.get(name)) for name in ("attempt", "step"))
    initiating, collateral = ranks(verdict, "initiating_ranks"), ranks(verdict, "collateral_ranks")
    unheard = ranks(verdict, "unheard_ranks")
    domain, certainty = one_line(verdict.get("domain")), one_line(verdict.get("certainty"))
    told = (
        one_line(verdict.get("job")) + (f", attempt {attempt}" if attempt not in ("", "0") else ""),
        (few(initiating) if initiating else "no rank can be named") + where(verdict),
        few(collateral) if collateral else "",
        few(unheard) if unheard else "",
        moment(verdict.get("opened_t")) + (f", step {step}" if step else ""),
        idle(verdict, now),
        history(verdict),
        acknowledged(verdict),
        one_line(verdict.get("severity")),
        certainty,
        domain,
    )
    return [(name, value) for name, value in zip(FACTS, told, strict=True) if value]


def where(verdict: Verdict) -> str:
    """` on gpu-a, gpu-b`: the nodes of those who started it; empty where none is known."""
    nodes = verdict.get("nodes")
    if not isinstance(nodes, Mapping):
        return ""
    found = {str(nodes[str(rank)]) for rank in ranks(verdict, "initiating_ranks") if str(rank) in nodes}
    on = [cut_chars(one_line(node), 80) for node in sorted(found)[:NODES]]
    more = f" and {len(found) - NODES} more nodes" if len(found) > NODES else ""
    return f" on {', '.join(on)}{more}" if on else ""


def few(found: Sequence[int]) -> str:
    """`ranks 0-3,7`; of very many pieces the first, and how many ranks there are."""
    text = rank_words(found)
    if len(text) <= RANKS:
        return text
    return f"{text[:RANKS].rpartition(',')[0]},… ({len(found):,} ranks)"


def idle(verdict: Verdict, now: float | None = None) -> str:
    """GPU-hours that the job has stood still, and what that assumes; empty where it may well have gone on."""
    opened, updated = verdict.get("opened_t"), verdict.get("updated_t")
    if one_line(verdict.get("category")) in _GOES_ON or not isinstance(opened, int | float):
        return ""
    until = now if now is not None and verdict.get("state") != "closed" and opened >= UNIX_SINCE else updated
    since = verdict.get("stopped_t")
    begin = float(since) if isinstance(since, int | float) else float(opened)
    world, hours = known_ranks(verdict), (until - begin) / 3600 if isinstance(until, int | float) else 0.0
    total = world * hours
    if total < 0.05:
        return ""
    amount = f"{total:,.0f}" if total >= 10 else f"{total:.2g}"
    standing = isinstance(since, int | float) or verdict.get("hang")
    if_so = "no rank has worked since" if standing else "at most, if no rank has worked since"
    return f"{amount} GPU-hour{'s' * (amount != '1')} ({world:,} ranks x {hours:.2g} h; one GPU a rank, {if_so})"


def known_ranks(verdict: Verdict) -> int:
    """How many ranks the verdict knows of, at most the world size."""
    nodes = verdict.get("nodes")
    known = {int(rank) for rank in nodes if str(rank).isdecimal()} if isinstance(nodes, Mapping) else set[int]()
    for name in ("initiating_ranks", "collateral_ranks", "unheard_ranks"):
        known |= {rank for rank in ranks(verdict, name) if rank >= 0}
    return len(known)


def runbook_url(base: str, failure: str) -> str:
    """The page of a failure: in place of `{failure}`, or at the end where the base does not say so."""
    return base.replace("{failure}", failure) if "{failure}" in base else f"{base.rstrip('/')}/{failure}"


def summary_text(verdict: Verdict, limit: int, links: Links | None = None, now: float | None = None) -> tuple[str, str]:
    """`text` of a verdict."""
    return text(message(verdict, links, now), limit)


def text(told: Message, limit: int) -> tuple[str, str]:
    """Title (at most 250 characters) and plain body (at most `limit`), the important first; nothing calls anybody."""
    title = cut_chars(f"[{told.severity}] {told.title}" if told.severity else told.title, TITLE)
    parts = [told.answer]
    if not told.closed:
        parts.append("\n".join(f"{name}: {value}" for name, value in told.facts if name not in ("job", "severity")))
        parts += [f"Why: {told.cause}"] if told.cause else []
        parts += [_numbered(told.steps)] if told.steps else []
        parts += [f"Check: {told.verification}"] if told.verification else []
        parts += [f"Resume from the last checkpoint: {told.resume_safe}"] if told.resume_safe else []
        parts += [f"{q.origin}\n> {q.text}\n  {q.means}".rstrip() for q in told.evidence]
        parts += told.changed
        parts += [f"Missing: {wanted}" for wanted in told.missing]
    else:
        parts.append("\n".join(f"{name}: {value}" for name, value in told.facts if name in ("idle so far",)))
    links = [f"{name}: {url}" for name, url in told.links]
    tail = "  |  ".join(filter(None, (explain_command(told.failure), f"incident {told.key}")))
    body = [unmentioned(part) for part in parts if part]
    return cut_chars(unmentioned(title), TITLE), _fit(body, unmentioned("\n".join([*links, tail])), limit)


def _numbered(steps: Sequence[Step]) -> str:
    lines = [
        f"{number}. {step.do}" + (f"\n   $ {step.command}" if step.command else "")
        for number, step in enumerate(steps, 1)
    ]
    return "What to do:\n" + "\n".join(lines)


def _fit(body: Sequence[str], tail: str, limit: int) -> str:
    # The last part names the incident and is kept; what does not fit before it is cut.
    room = limit - len(tail) - 2
    if room < 40:
        return cut_chars("\n\n".join([*body, tail.rpartition("\n")[2]]), limit)
    return "\n\n".join([cut_chars("\n\n".join(body), room), tail] if body else [tail])


def _quoted(item: Mapping[str, object]) -> Quote:
    lines = excerpt(str(item.get("text", "")))
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return Quote(cut_chars(origin(item), QUOTED), cut(last, QUOTED), cut_chars(one_line(item.get("means")), QUOTED))


def _wanted(item: Mapping[str, object]) -> str:
    fact, how = one_line(item.get("fact") or item.get("text")), one_line(item.get("how"))
    return cut_chars(f"{fact} ({how})" if how else fact, 400)


def _step(item: Mapping[str, object]) -> Step:
    do, command = cut_chars(one_line(item.get("do")), STEP), cut_chars(string(item, "command"), COMMAND)
    return Step(do, one_line(item.get("risk")), command)
