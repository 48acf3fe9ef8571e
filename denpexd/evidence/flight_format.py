"""Flight Recorder documents of every version -> core.flight.Dump.

The format is that of PyTorch's torch/csrc/distributed/c10d (TraceUtils.h until 2.5, then FlightRecorder.hpp and
FlightRecorderDetail.hpp), read in its history:

- torch 2.2: a bare list of entries, `seq_id` and `pg_id` for all kinds, no name of the group.
- 1.x: the same in a dict with `version`, `entries`, `nccl_comm_state`; `op_id`, `is_p2p` by name only.
- 2.0: `process_group` (name, description), `collective_seq_id`, `p2p_seq_id`, `is_p2p`, `pg_config`, dtypes.
- 2.1 to 2.4: `pg_status`, `timeout_ms`, JSON beside the pickle. 2.5 to 2.9: `nccl_version`, `thread_id`, `thread_name`.
- 2.10: `comm_lib_version`. Gloo since torch 2.9: state stays "scheduled" for ever, `retired` says that it is done, the
  key of `pg_config` may be "".

Pickles hold tuples and numbers, JSON lists and texts; both are taken. `ranks` is a text like "[0, 1]". What is missing
or of another type is left out: a damaged field never makes a dump useless.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from denpexd.core.flight import Dump, Op, Progress
from denpexd.scan.frames import canonical_path

_SIDES = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)$")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3")
_MOST_RANKS = 1 << 20


def to_dump(document: Mapping[str, Any], rank: int, t: float = 0.0, source: str = "") -> Dump:
    """What a decoded document says; `rank` comes from the name of its file, the document does not hold it."""
    ops: list[Op] = []
    numbers: dict[int, str] = {}
    texts: dict[str, str] = {}
    for place, entry in enumerate(_list(document.get("entries"))):
        if isinstance(entry, Mapping) and (op := _op(entry, place, rank)) is not None:
            ops.append(op)
            name, text = _group(entry, rank)
            if (number := _int(entry.get("pg_id"))) is not None:
                numbers[number] = name
            texts[name] = text or texts.get(name, "")
    ops.sort(key=lambda op: op.record)
    members = _members(document.get("pg_config"), texts)
    progress, unnamed = _progress(document, numbers)
    version = _text(str(document.get("version") or ""))
    return Dump(t, rank, version, tuple(ops), members, texts, progress, unnamed, numbers, source)


def _op(entry: Mapping[str, Any], place: int, rank: int) -> Op | None:
    profiled = entry.get("profiling_name")
    if not isinstance(profiled, str):
        return None
    backend, _, name = _text(profiled).rpartition(":")
    sides = _SIDES.search(name)
    peer, sends = None, False
    if sides is not None:
        name, sends, peer = sides[1], sides[1] == "send", int(sides[4])
    seq = _seq(entry, point_to_point=sides is not None or entry.get("is_p2p") is True)
    if seq is None or (peer is None and entry.get("is_p2p") is True and name not in ("send", "recv")):
        return None  # a batch of sends and receives: its parts are recorded one by one
    record = _int(entry.get("record_id"))
    retired, finished = entry.get("retired") is True, entry.get("state") == "completed"
    gloo = backend == "gloo"
    return Op(
        group=_group(entry, rank)[0],
        seq=seq,
        name=name,
        record=place if record is None else record,
        pending=not finished and not (gloo and retired),
        timed_out=retired and not finished and not gloo,
        sizes=_numels(entry.get("input_sizes")),
        given=_numels(entry.get("output_sizes")),
        dtypes=tuple(_text(d) for d in _list(entry.get("input_dtypes")) if isinstance(d, str)),
        peer=peer,
        sends=sends,
        place=_place(entry.get("frames")),
    )


def _place(frames: object) -> str:
    """The innermost frame of the program's own code."""
    for frame in _list(frames):
        if isinstance(frame, Mapping) and isinstance(path := frame.get("filename"), str):
            short = canonical_path(path)
            if path and not path.startswith("<") and not _INSTALLED.search(path) and not short.startswith("torch/"):
                return _text(f"{short.rsplit('/', 1)[-1]}:{_int(frame.get('line')) or 0} in {frame.get('name') or '?'}")
    return ""


def _seq(entry: Mapping[str, Any], *, point_to_point: bool) -> int | None:
    keys = ("p2p_seq_id", "seq_id") if point_to_point else ("collective_seq_id", "seq_id")
    return next((number for key in keys if (number := _int(entry.get(key))) is not None), None)


def _group(entry: Mapping[str, Any], rank: int) -> tuple[str, str]:
    """Name and description of its group. Versions before 2.0 only number it, and each process numbers its own groups:
    all but the default group stay the rank's own.
    """
    named = entry.get("process_group")
    if isinstance(named, str):
        return _text(named), ""
    parts = [_text(str(part)) for part in _list(named)]
    if parts and parts[0]:
        return parts[0], parts[1] if len(parts) > 1 else ""
    number = _int(entry.get("pg_id"))
    return f"#{number} of rank {rank}" if number else "0", ""


def _members(config: object, texts: dict[str, str]) -> dict[str, tuple[int, ...]]:
    """Global ranks by group. An unnamed one is the default group of gloo."""
    found: dict[str, tuple[int, ...]] = {}
    for key, group in config.items() if isinstance(config, Mapping) else ():
        if not isinstance(group, Mapping):
            continue
        name = _text(str(key)) or "0"
        ranks = group.get("ranks")
        if whole := _ranks(ranks if isinstance(ranks, str) else str(_list(ranks))):
            found[name] = whole
        text = group.get("desc")
        if isinstance(text, str) and not texts.get(name):
            texts[name] = _text(text)
    return found


@lru_cache(256)  # all members tell the same, and then hold it once
def _ranks(text: str) -> tuple[int, ...]:
    numbers = (int(number) for number in re.findall(r"(?<![\w.-])\d{1,7}(?![\w.])", text))
    return tuple(number for number in numbers if number < _MOST_RANKS)


def _progress(
    document: Mapping[str, Any], numbers: Mapping[int, str]
) -> tuple[dict[str, Progress], dict[int, Progress]]:
    """`pg_status` is kept by number of the group; which group that is, the entries say, or else the order of creation:
    groups have increasing names and numbers.
    """
    status = document.get("pg_status")
    known: dict[int, Progress] = {}
    for key, said in status.items() if isinstance(status, Mapping) else ():
        number = _int(key)
        if number is not None and isinstance(said, Mapping):
            last = [_int(said.get(f"last_{what}_collective")) for what in ("enqueued", "completed")]
            known[number] = Progress(*(-1 if n is None else n for n in last))
    names = {**_in_order(document.get("pg_config"), known, numbers), **numbers}
    named = {names[number]: said for number, said in known.items() if number in names}
    return named, {number: said for number, said in known.items() if number not in names}


def _in_order(config: object, known: Mapping[int, Progress], numbers: Mapping[int, str]) -> dict[int, str]:
    names = [_text(str(key)) for key in config] if isinstance(config, Mapping) else []
    if len(names) != len(known) or not all(name.isdigit() for name in names):
        return {}
    paired = dict(zip(sorted(known), sorted(names, key=int), strict=True))
    return paired if all(paired.get(n, name) == name for n, name in numbers.items()) else {}


def _numels(sizes: object) -> tuple[int, ...]:
    """Elements of each tensor from its sizes."""
    found = []
    for shape in _list(sizes):
        count = 1
        for side in _list(shape):
            count *= max(0, _int(side) or 0)
        found.append(min(count, 1 << 62))
    return tuple(found)


@lru_cache(1024)  # of a thousand dumps all name the same operations and groups
def _text(value: str) -> str:
    """Fit for a terminal: dumps are data of strangers."""
    return "".join(char if char.isprintable() else "?" for char in value[:200])


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _int(value: object) -> int | None:
    """A number, also where JSON wrote it as a text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return None
