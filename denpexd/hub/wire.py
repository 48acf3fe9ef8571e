"""What nodes and hubs say to each other, as bytes: batches of events, and the word of a hub to the nodes of its jobs.

Events only, never logs: a line travels if a rule looks for it, redacted and cut as everywhere. What is read back is
checked, because it comes over a network.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from denpexd.core.events import Blind, Event, Want
from denpexd.errors import CaseError, WireError
from denpexd.journal import packed, unpacked

VERSION = 1
PARTITIONS = 16
SUBJECTS = "denpexd.events.>"
MOST_BYTES = 512 * 1024  # of one message; a server takes 1 MiB unless it is told otherwise
MOST_INFLATED = 32 * 1024**2
MOST_WORLD = 10_000_000  # ranks of a job
MOST_RANKS = 65_536  # of one node, or in one wish
_TEXTS = (
    "key", "job", "failure", "title", "category", "severity", "certainty", "state", "event", "domain", "quick_answer",
    "summary", "root_cause", "fallback", "mitigation", "verification", "prevention", "resume_safe",
)  # fmt: skip
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(("opened_t", "updated_t", "revision", "attempt"), (int, float)),
    **dict.fromkeys(("nodes", "sent", "tags", "acknowledged", "history"), dict),
    "changed": (dict, type(None)),
}
_INNER: Mapping[str, type] = {
    **dict.fromkeys(("initiating_ranks", "collateral_ranks", "unheard_ranks"), int),
    **dict.fromkeys(("aliases", "against", "references", "related"), str),
    **dict.fromkeys(("evidence", "stacks", "missing", "alternatives", "remediation"), dict),
}
_LATEST = 1e11  # seconds; a calendar ends a little later
_LARGEST = 2**53  # a number beyond it is none of ours, and breaks whoever takes it for a float
_PACK_FROM = 1024  # bytes below which compressing is not worth it
_PLAIN, _PACKED = b"\x00", b"\x01"

Verdict = Mapping[str, Any]


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=10).hexdigest()


def partition(job: str) -> int:
    """Which of the PARTITIONS a job belongs to: the same for everybody, for ever."""
    return int(_digest(job), 16) % PARTITIONS


def subject(job: str) -> str:
    """Where a job's events go: its own subject below that of its partition."""
    return f"denpexd.events.{partition(job)}.{_digest(job)}"


def events_of(part: int) -> str:
    """All jobs of a partition."""
    return f"denpexd.events.{part}.>"


def word_of(part: int) -> str:
    """Where the hub that has a partition speaks to its nodes."""
    return f"denpexd.hub.{part}"


def name_of(key: str) -> str:
    """A key of an incident as a key of NATS, which knows fewer letters."""
    return _digest(key)


@dataclass(frozen=True, slots=True)
class Row:
    """What one transaction of a node wrote about one job: its batches in order.

    `start` names the run of the node's daemon and `number` counts its rows, so that a repeat is known as one, and a
    gap as a loss.
    """

    start: str
    number: int
    batches: Sequence[Sequence[Event]]


@dataclass(frozen=True, slots=True)
class Message:
    """From a node, of one job. `sent`: by the node's clock, which also gave the events their time, in seconds.

    `ranks`: those that live on the node; `leaving`: the node's daemon ends in order; `told`: verdicts of incidents that
    the node told of on its own.
    """

    node: str
    job: str
    sent: float
    ranks: tuple[int, ...] = ()
    world_size: int | None = None
    rows: Sequence[Row] = ()
    told: Sequence[Verdict] = ()
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """From the hub that has a partition: it is there, which incidents it tells of, and what it wants to know.

    `epoch` grows with every owner; `told`: by incident the least that makes it known again, and which message of
    which sink was the last: {"key", "job", "failure", "opened_t", "revision", "sent": {sink: [revision, event]}}.
    """

    hub: str
    epoch: int
    told: Sequence[Verdict] = ()
    wants: Sequence[tuple[str, Want]] = field(default_factory=tuple)


def lines(batches: Sequence[Sequence[Event]]) -> str:
    """Batches as text, one a line: how a row waits in the state of a node."""
    return "\n".join(json.dumps([packed(e) for e in b], separators=(",", ":"), ensure_ascii=False) for b in batches)


def encode_message(message: Message, rows: Sequence[tuple[str, int, str]]) -> bytes:
    """`rows` as (start, number, `lines`), instead of those of the message."""
    head = {
        "v": VERSION,
        "node": message.node,
        "job": message.job,
        "sent": message.sent,
        "ranks": list(message.ranks),
        "world_size": message.world_size,
        "told": list(message.told),
        "leaving": message.leaving,
    }
    text = json.dumps(head, separators=(",", ":"))
    told = (
        f"[{json.dumps(start)},{number},[{','.join(line for line in text.split(chr(10)) if line)}]]"
        for start, number, text in rows
    )
    return _bytes(f'{text[:-1]},"rows":[{",".join(told)}]}}')


def decode_message(data: bytes) -> Message:
    """The inverse; WireError for anything else, also for events that this version does not know."""
    found = _content(data)
    try:
        return Message(
            str(found["node"]),
            str(found["job"]),
            _time(found["sent"]),
            _ranks(found["ranks"]),
            None if found["world_size"] is None else _count(found["world_size"], MOST_WORLD),
            [Row(str(s), _count(n), [[_event(e) for e in batch] for batch in b if batch]) for s, n, b in found["rows"]],
            [told_by(verdict, str(found["job"])) for verdict in found["told"]],
            bool(found["leaving"]),
        )
    except (CaseError, AttributeError, KeyError, OverflowError, TypeError, ValueError) as wrong:
        raise WireError(f"not a message of a node: {wrong}") from None


def encode_word(word: Word) -> bytes:
    wants = [[job, want.t, want.kind, list(want.ranks), want.why] for job, want in word.wants]
    told = {"v": VERSION, "hub": word.hub, "epoch": word.epoch, "told": list(word.told), "wants": wants}
    return _bytes(json.dumps(told, separators=(",", ":")))


def decode_word(data: bytes) -> Word:
    """The inverse; WireError for anything else."""
    found = _content(data)
    try:
        wants = [
            (str(job), Want(_time(t), str(kind), _ranks(ranks), str(why)))
            for job, t, kind, ranks, why in found["wants"]
        ]
        return Word(str(found["hub"]), _count(found["epoch"]), [told_by(each) for each in found["told"]], wants)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as wrong:
        raise WireError(f"not the word of a hub: {wrong}") from None


def _time(value: Any) -> float:
    if not abs(t := float(value)) <= _LATEST:  # also where it is no number
        raise ValueError(f"{str(value)[:40]} is no time")
    return t


def _event(given: Any) -> Event:
    event = unpacked(given)
    _time(event.t)
    if isinstance(event, Blind):
        _time(event.since)
    return event


def _count(value: Any, most: int = _LARGEST) -> int:
    if not -1 <= (number := int(value)) <= most:
        raise ValueError(f"{str(value)[:40]} is not a number up to {most}")
    return number


def _ranks(given: Any) -> tuple[int, ...]:
    if len(given) > MOST_RANKS:
        raise ValueError(f"{len(given)} ranks")
    return tuple(_count(rank, MOST_WORLD) for rank in given)


def told_by(given: Any, job: str | None = None) -> dict[str, Any]:
    """A verdict, or as much of one as another daemon tells, of this job; ValueError and the like for anything else.

    It is shown, sent and stored as if it were ours, so every part must be of its kind.
    """
    told: dict[str, Any] = dict(given)
    for name, value in told.items():
        if (kind := _KINDS.get(name)) is not None and not isinstance(value, kind):
            raise ValueError(f"{name} is {str(value)[:40]!r}")
        if (inner := _INNER.get(name)) is not None and not all(isinstance(each, inner) for each in value):
            raise ValueError(f"{name} has something else in it")
    if job is not None and told.get("job", job) != job:
        raise ValueError("it tells of another job")
    for name in told.keys() & {"opened_t", "updated_t"}:
        told[name] = _time(told[name])
    for name in told.keys() & {"revision", "attempt"}:
        told[name] = _count(told[name])
    for name in told.keys() & {"initiating_ranks", "collateral_ranks", "unheard_ranks"}:
        _ranks(told[name])
    for last in told.get("sent", {}).values():
        for name, value in last.items():
            if name == "at":
                _time(value)
            elif name not in ("event", "acknowledged"):
                _count(value)
    return told


def _bytes(text: str) -> bytes:
    raw = text.encode("utf-8", "backslashreplace")
    return _PLAIN + raw if len(raw) < _PACK_FROM else _PACKED + zlib.compress(raw, 1)


def _content(data: bytes) -> dict[str, Any]:
    try:
        if data[:1] == _PACKED:
            inflate = zlib.decompressobj()
            raw = inflate.decompress(data[1:], MOST_INFLATED)
            if inflate.unconsumed_tail:
                raise WireError(f"more than {MOST_INFLATED} bytes")
        else:
            raw = data[1:]
        found = json.loads(raw)
    except (ValueError, zlib.error, RecursionError) as wrong:
        raise WireError(f"not ours: {wrong}") from None
    if not isinstance(found, dict) or found.get("v") != VERSION:
        raise WireError(f"of another version than {VERSION}: {str(found)[:40]}")
    return found
