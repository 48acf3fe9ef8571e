"""An incident and its rule's texts -> the verdict of docs/verdict.schema.json, as plain JSON-ready values.

Nothing is decided here. Placeholders of the texts are filled with ranks; what is unknown is called unknown.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from denpexd.core.candidate import Candidate
from denpexd.core.evidence import Evidence, beginning
from denpexd.core.incident import Incident
from denpexd.core.launch import changed
from denpexd.core.numbers import ranks_named, ranks_text
from denpexd.core.rule import Entry
from denpexd.core.stands import groups, worker
from denpexd.core.state import JobState
from denpexd.core.testimony import is_hang

MAX_EVIDENCE = 12
MAX_TEXT = 2000
MAX_PLACES = 3
_SAME_MEANING = 4  # quotes that mean the same
_SHOWN = 8  # ranks in a command
_TELLING = 20  # characters that do not stand in another line by chance
_LONG = 300  # what one quote means, in characters
_PLACE = re.compile(r"\{([a-z_]+)\}")
_SEVERAL = re.compile(r"\b([Rr])ank (\d+(?:[-,]\d+)+)")
# Several ranks as the subject of a sentence: not "the GPU of ranks 0-3 is full".
_SUBJECT = re.compile(
    r"((?:\bRanks|(?:^|[.:;,(] ?|\b(?:while|when|because|but|that|if|until|where|whether|so) )ranks) \d[\d,-]* )"
    r"([a-z]+s)\b"
)
_PLURALS = {"is": "are", "was": "were", "has": "have", "does": "do"}
_NO_VERBS = {"always", "as", "its", "perhaps", "plus", "sometimes", "this", "thus"}


def verdict(incident: Incident, job: JobState, now: float, *, event: str, state: str) -> dict[str, object]:
    """The whole verdict. `event`: opened | updated | closed; `state`: open | closed; times on the events' axis."""
    c = incident.candidate
    entry = c.rule.entry
    unheard, stacks, hang = _unheard(job), groups(job), is_hang(c, job)
    fill = _filler(c, job, unheard)
    return {
        "key": incident.key,
        "job": job.job,
        "attempt": incident.attempt,
        "failure": c.rule.id,
        "title": entry.title,
        "category": entry.category,
        "severity": entry.severity,
        "certainty": c.certainty,
        "state": state,
        "opened_t": round(incident.opened_t, 3),
        "updated_t": round(now, 3),
        "stopped_t": None if incident.stopped_t is None else round(incident.stopped_t, 3),
        "revision": incident.revision,
        "event": event,
        "aliases": list(entry.aliases),
        "domain": entry.domain,
        "initiating_ranks": list(c.initiating),
        "collateral_ranks": list(c.collateral),
        "unheard_ranks": unheard,
        "nodes": {str(r): s.node for r, s in sorted(job.ranks.items()) if s.node and r >= 0},
        "step": max((s.step for s in job.ranks.values() if s.step is not None), default=None),
        "hang": hang,
        "quick_answer": " ".join([fill(entry.quick_answer), *(_places(c, job, stacks) if hang else ())]),
        "summary": summary(incident, job, now),
        "evidence": [_quote(e) for e in _chosen(c.evidence)],
        "stacks": stacks,
        "changed": changed(job),
        "against": against(c, job),
        "missing": missing(c, job, unheard, fill),
        "alternatives": [{"failure": f, "why_not": why} for f, why in incident.alternatives],
        **_advice(entry, fill),
    }


def _filler(c: Candidate, job: JobState, unheard: Sequence[int]) -> Callable[[str], str]:
    """What puts ranks in the places of a text."""
    names = {
        "initiating": _who(c.initiating) if c.initiating else _process(c, job, "unknown ({})") or "unknown",
        "collateral": _who(c.collateral),
        "unheard": _who(unheard),
        **{role: _who(ranks) for role, ranks in c.roles.items()},
    }
    return lambda text: _of_several(_PLACE.sub(lambda m: names.get(m[1], m[0]), text))


def _of_several(text: str) -> str:
    """`Rank 0-3 was`, as a text for one rank has it, becomes `Ranks 0-3 were`."""
    return _SUBJECT.sub(lambda m: m[1] + _plural(m[2]), _SEVERAL.sub(r"\1anks \2", text))


def _plural(verb: str) -> str:
    if verb in _NO_VERBS or verb.endswith("ss"):
        return verb
    return _PLURALS.get(verb) or (verb[:-2] if verb.endswith(("sses", "shes", "ches", "xes", "zzes")) else verb[:-1])


def _advice(entry: Entry, fill: Callable[[str], str]) -> dict[str, object]:
    """What the rule says of cause and remedy."""
    return {
        "root_cause": fill(entry.root_cause),
        "remediation": [
            {"do": fill(s.do), "risk": s.risk} | ({"command": fill(s.command)} if s.command else {})
            for s in entry.remediation
        ],
        **{name: fill(getattr(entry, name)) for name in ("fallback", "mitigation", "verification", "prevention")},
        "references": list(entry.references),
        "related": list(entry.related),
        "resume_safe": entry.resume_safe,
    }


def summary(incident: Incident, job: JobState, now: float) -> str:
    """One paragraph for a person: who, since when, at which step, how many ranks idle."""
    c = incident.candidate
    ranks = job.universe
    world = f" of {len(ranks)}" if ranks and ranks[-1] == len(ranks) - 1 else ""
    several = "ranks" if len(c.initiating) > 1 else "rank"
    nobody = "no rank can be named as the one that started it"
    nobody = _process(c, job, "the process {} (no line tells its rank)") or nobody
    who = f"{several} {ranks_text(c.initiating)}" if c.initiating else nobody
    parts = [f"{c.rule.entry.title}: {who}{world}."]
    if len(c.collateral) == 1:
        parts.append(f"Rank {c.collateral[0]} only waits, or fails as a consequence.")
    elif c.collateral:
        parts.append(f"Ranks {ranks_text(c.collateral)} only wait, or fail as a consequence.")
    if finding := _finding(c, job):
        parts.append(finding)
    step = max((s.step for s in job.ranks.values() if s.step is not None), default=None)
    if step is not None:
        parts.append(f"Last step seen: {step}.")
    if c.rule.stops and job.moved_t is not None and now > job.moved_t:
        parts.append(f"No progress for {now - job.moved_t:.0f} s.")
    if incident.found_at_start:
        parts.append("Found in the logs when denpexd started.")
    return " ".join(parts)


def _places(c: Candidate, job: JobState, stacks: Sequence[Mapping[str, object]]) -> list[str]:
    """Sentences: where in the program's own code those who started it stand, as looks since their last move show."""
    said = []
    for group in stacks:
        ranks = sorted({*c.initiating}.intersection(cast(list[int], group["ranks"])))
        if ranks and group["under"]:
            said.append(
                f"Rank{'s' * (len(ranks) > 1)} {ranks_text(ranks)} stand{'s' * (len(ranks) == 1)} in {group['under']}."
            )
    workers = ((r, place) for r in c.initiating if r in job.ranks and (place := worker(job, job.ranks[r])))
    said += [f"A DataLoader worker of rank {r} is in {place}." for r, place in workers]
    return said[:MAX_PLACES]


def _finding(c: Candidate, job: JobState) -> str:
    """Of ranks that left no trace at all while others wait: that is a trace. "" where most of them are that silent."""
    ranks, unheard = job.universe, _unheard(job)
    open_ = not c.initiating or c.rule.precision == "symptom" or not set(unheard).isdisjoint(c.initiating)
    if not unheard or 2 * len(unheard) > len(ranks) or not c.rule.stops or c.rule.correlation is None or not open_:
        return ""
    it = "it" if len(unheard) == 1 else "they"
    said = f"{ranks_named(unheard).capitalize()} left no trace: no log line, no stack or dump, no process"
    return f"{said}." if set(unheard) == set(c.initiating) else f"{said}; {it} may be what the others wait for."


def _unheard(job: JobState) -> list[int]:
    return [r for r in job.universe if r not in job.ranks or not job.ranks[r].heard]


def against(c: Candidate, job: JobState) -> list[str]:
    """What speaks against the verdict, in words; worthless witnesses are named as such."""
    said = list(c.against)
    hang = is_hang(c, job)
    for r, s in sorted(job.ranks.items()):
        if "launcher_root" in s.states and c.initiating and r not in c.initiating and (hang or s.reported):
            worth = (
                "the first process that ended, which proves nothing in a hang" if hang else "a rank that lost another"
            )
            said.append(f"the launcher's summary names rank {r} as root cause; it names {worth}")
    if c.rule.precision != "exact":
        return said
    for r in c.initiating:
        state = job.ranks.get(r)
        timed_out = state is not None and "timeout" in state.states  # whoever stands in a collective reports that
        if state and state.reported and not timed_out and state.reported.t < c.cause_t - 1.0:
            said.append(f"rank {r} had already reported a failed peer: {beginning(state.reported.text, 200)}")
    return said


def missing(c: Candidate, job: JobState, unheard: Sequence[int], fill: Callable[[str], str]) -> list[dict[str, str]]:
    """Facts that would decide or confirm, each with the command that supplies it."""
    wanted: list[dict[str, str]] = []
    if c.certainty != "confirmed":
        wanted += [{"fact": fill(fact), "how": fill(how)} for fact, how in c.rule.entry.missing]
    if unheard and c.rule.correlation is not None:
        wanted.append(
            {
                "fact": f"anything from {ranks_named(unheard)}: no log line, no stack or dump, no process",
                "how": f"give denpexd their logs, or run it on their node; there: {_find(unheard)}",
            }
        )
    denied = {
        e.text: e.means for s in job.ranks.values() for name, e in s.states.items() if name.startswith("unavailable")
    }
    wanted += [
        {"fact": f"evidence that could not be collected: {why}", "how": how} for why, how in sorted(denied.items())
    ]
    return wanted


def _find(ranks: Sequence[int]) -> str:
    """A command that prints the stacks of these ranks on the node where they live."""
    names = "|".join(map(str, ranks[:_SHOWN]))
    mine = f"tr '\\0' '\\n' </proc/$p/environ | grep -qxE 'RANK=({names})'"
    return f"for p in $(pgrep -f python); do {mine} && py-spy dump --nonblocking --pid $p; done"


def _who(ranks: Sequence[int]) -> str:
    return ranks_text(ranks) if ranks else "unknown"


def _process(c: Candidate, job: JobState, text: str) -> str:
    """The text with the process that the first evidence is of, where its line names one instead of a rank."""
    known = job.processes.speakers
    process = next((known[e.source, e.offset] for e in c.evidence if (e.source, e.offset) in known), None)
    return text.format(process) if process is not None else ""


def _chosen(evidence: Sequence[Evidence]) -> list[Evidence]:
    """A few quotes, initiators' first: every distinct text of a rank once, with what it means. At most MAX_EVIDENCE."""
    per_meaning: dict[str, int] = {}
    chosen: list[Evidence] = []
    for e in evidence:
        if per_meaning.get(e.means, 0) >= _SAME_MEANING:
            continue
        at = next((at for at, known in enumerate(chosen) if _same_line(known, e)), None)
        if at is None:
            chosen.append(e)
        else:
            same = chosen[at]
            if same.text in e.text and e.text != same.text:
                same = chosen[at] = e.saying(same.means)
            if e.means in same.means or len(same.means) > _LONG:
                continue
            # It says the same and more.
            chosen[at] = e if e.means.startswith(same.means) else same.saying(f"{same.means}; {e.means}")
        per_meaning[e.means] = per_meaning.get(e.means, 0) + 1
    return chosen[:MAX_EVIDENCE]


def _same_line(a: Evidence, b: Evidence) -> bool:
    """Or an exception and the lines that tell of it, which have more of its text or less."""
    if a.rank != b.rank:
        return False
    short, long = sorted((a.text, b.text), key=len)
    return a.text[:80] == b.text[:80] or (a.source == b.source and len(short) >= _TELLING and short in long)


def _quote(e: Evidence) -> dict[str, object]:
    return {
        "rank": e.rank,
        "source": e.source,
        "offset": e.offset,
        "t": round(e.t, 3),
        "text": beginning(e.text, MAX_TEXT),
        "means": e.means,
    }
