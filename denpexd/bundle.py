"""What a bug report about one incident holds, as names and bytes: the case that `replay` plays, and pages for people.

Everything is redacted here, once, whatever it comes from. A bundle is a case folder (`recording.read_case`): case.yaml
and journal.jsonl are what the verdict followed from; the rest explains it to somebody who was not there.
"""

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import Any

import yaml

from denpexd import __version__
from denpexd.catalog.packs import Packs
from denpexd.core.cadence import Limits
from denpexd.core.events import Event, Frame, Frames, Tick
from denpexd.core.flight import Dump
from denpexd.errors import CaseError
from denpexd.journal import decode, packed
from denpexd.notify.redact import redact, redact_value, redact_verdict
from denpexd.notify.render import report
from denpexd.tape import Cut

FORMAT = 1
PACKAGES = ("google-re2", "hyperscan", "py-spy", "pyyaml", "pydantic", "watchdog", "apprise", "uvicorn", "starlette")
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")
_WIDTH = 110

Verdict = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Material:
    """What is known of an incident when a bundle is made, or of a job without one. Texts may hold secrets.

    `lines`: quoted lines with what stands around them, by a name for the file; `more`: further files, JSON-ready.
    """

    verdict: Verdict | None
    cut: Cut
    config: str = ""
    versions: Mapping[str, object] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)
    note: str = ""


def files(material: Material) -> dict[str, bytes]:
    """The bundle, redacted."""
    cut = material.cut
    job = redact(cut.job)[0]
    verdict = None if material.verdict is None else redact_verdict(material.verdict)[0]
    what, name = ("job", job) if verdict is None else ("incident", str(verdict["key"]))
    texts = {
        "README.txt": _readme(f"{what} {name}", cut, material.note),
        "case.yaml": yaml.safe_dump(_case(name, job, cut), sort_keys=False, allow_unicode=True),
        "journal.jsonl": "".join(f"{line}\n" for line in _journal(cut)),
        **({} if verdict is None else _said(verdict)),
        "versions.json": _json(material.versions),
        "config.yaml": redact(material.config)[0],
    }
    texts |= {f"stacks/{name}": text for name, text in _stacks(cut)}
    texts |= {f"dumps/rank{dump.rank}.json": _json(packed(dump)) for dump in _dumps(cut)}
    texts |= {f"lines/{safe(name)}": redact(text)[0] for name, text in material.lines.items()}
    texts |= {safe(name): _json(value) for name, value in material.more.items()}
    return {name: text.encode("utf-8", "replace") for name, text in texts.items() if text}


def renewed(kept: Mapping[str, bytes], verdict: Verdict) -> dict[str, bytes]:
    """A bundle of before with the verdict as it is now."""
    new = _said(redact_verdict(verdict)[0])
    return {**kept, **{name: text.encode("utf-8", "replace") for name, text in new.items()}}


def _said(verdict: Verdict) -> dict[str, str]:
    page = report(verdict, color=False, width=_WIDTH, whole=True) + "\n"
    return {"verdict.json": _json(verdict), "report.txt": page}


def _json(value: object) -> str:
    return json.dumps(redact_value(value)[0], indent=2, ensure_ascii=False) + "\n"


def safe(name: str) -> str:
    """A text as the name of a file: redacted, then without anything that a file system could take ill."""
    return _SAFE.sub("-", redact(name)[0]).strip("-.")[:100] or "unnamed"


def file_name(key: str) -> str:
    """The name of an incident's bundle; keys that were shortened stay different."""
    plain = safe(key)
    return plain if plain == key else f"{plain}-{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:8]}"


def versions_of(engine: str, packs: Packs) -> dict[str, object]:
    """What made the verdict: program, libraries, rules."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    about = {s.pack.name: {"kind": s.pack.kind, "rules": s.rules, "errors": len(s.errors)} for s in packs.states}
    return {
        "denpexd": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "engine": engine,
        "packages": found,
        "rules": about,
    }


def from_journal(job: str, start: float, limits: Limits, lines: Iterable[str]) -> Cut:
    """A recording made of the journal of the state, for an incident that nothing else was kept of.

    Seconds and batches are those of a replay, so it need not give quite the same verdict.
    """
    events = list[Event]()
    for line in lines:
        try:
            of, event = decode(line)
        except CaseError:
            continue
        if of == job:
            events.append(event)
    batches: list[Sequence[Event]] = []
    now = int(events[0].t) if events else int(start)
    for second, group in groupby(sorted(events, key=lambda e: e.t), key=lambda e: int(e.t)):
        batches += [[Tick(float(t))] for t in range(max(now, second - 3600), second)]
        batches.append(list(group))
        now = second
    batches += [[Tick(float(t))] for t in range(now + 1, now + 60)] if events else []
    return Cut(job, start, limits, (), batches)


def _case(name: str, job: str, cut: Cut) -> dict[str, Any]:
    return {
        "bundle": FORMAT,
        "id": name,
        "job": job,
        "start": cut.start,
        "since": cut.since,
        "until": cut.until,
        "limits": asdict(cut.limits),
    }


def _journal(cut: Cut) -> Iterator[str]:
    """The recording, a batch a line."""

    def line(content: Mapping[str, object]) -> str:
        return json.dumps(redact_value(content)[0], separators=(",", ":"), ensure_ascii=False)

    yield line({"before": [packed(event) for event in cut.before]})
    for batch in cut.batches:
        yield line({"events": [packed(event) for event in batch]})
    if cut.finished is not None:
        yield line({"finished": cut.finished})


def _stacks(cut: Cut) -> Iterator[tuple[str, str]]:
    """The last stack of each rank and kind, in the form py-spy prints."""
    last: dict[tuple[int, str], Frames] = {}
    for batch in (cut.before, *cut.batches):
        last |= {(event.rank, event.kind): event for event in batch if isinstance(event, Frames)}
    for (rank, kind), look in sorted(last.items()):
        threads = [("MainThread", look.frames), *look.others]
        text = "\n".join(_thread(label, frames) for label, frames in threads)
        head = f"rank {rank}, {kind}, t {look.t:.3f}, state {look.state or 'unknown'}, source {look.source or kind}\n"
        yield f"rank{rank}.{safe(kind)}.txt", redact(head + text)[0]


def _dumps(cut: Cut) -> list[Dump]:
    """The last Flight Recorder dump of each rank."""
    found = (event for batch in (cut.before, *cut.batches) for event in batch if isinstance(event, Dump))
    return list({dump.rank: dump for dump in found}.values())


def _thread(label: str, frames: Sequence[Frame]) -> str:
    lines = [f"    {frame.function} ({frame.path}:{frame.line})" for frame in frames]
    return "\n".join([f'Thread 0 (recorded): "{label}"', *lines])


def _readme(about: str, cut: Cut, note: str) -> str:
    return "\n".join(
        [
            f"denpexd {__version__}: {about}",
            "",
            *([note, ""] if note else []),
            "report.txt, verdict.json   what was said last",
            "case.yaml, journal.jsonl   what the core was fed: denpexd replay FILE gives the verdict again",
            f"                           ({cut.until - cut.since:.0f} s in {len(cut.batches)} batches,"
            f" after {len(cut.before)} events of before)",
            "stacks/, dumps/, lines/    stacks and Flight Recorder dumps as seen, quoted log lines in their place",
            "versions.json, config.yaml what made the verdict",
            "launch.json                how the job was started, and what had changed since its last good run",
            "",
            "Secrets were replaced by [REDACTED:kind] before this was written; read it before you pass it on.",
            "",
        ]
    )
