"""How the ranks of a job were started, against its last good run and against each other. Pure.

A rank's facts are names and texts: `command`, `driver`, `nccl`, `git.commit`, `package.torch`, `env.NCCL_DEBUG`. What
stands before the dot is the kind. That a name is missing means something only where others of its kind were seen:
where nobody could look, nothing is known.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from denpexd.core.numbers import ranks_named
from denpexd.core.records import Facts
from denpexd.core.state import JobState

HIDDEN = "hidden:"  # begins the value of a secret
MOST = 40  # differences that are told
SAME_FOR_NOBODY = frozenset({"env.CUDA_VISIBLE_DEVICES", "env.HIP_VISIBLE_DEVICES", "env.ROCR_VISIBLE_DEVICES"})
# What is looked at first: the more a change of it explains, the earlier it stands.
_FIRST = (
    *("nccl", "package.nvidia-nccl", "driver", "torch", "package.torch", "cuda"),
    *("git.", "command", "nodes", "image."),
)
_STATED = {"nccl_version": "nccl", "torch_version": "torch", "cuda_version": "cuda", "driver_version": "driver"}
_TITLES = {"nccl": "NCCL", "torch": "PyTorch", "cuda": "CUDA", "python": "Python", "git.commit": "commit"}
_TITLES |= {"git.branch": "branch", "image.os": "operating system", "package.torch": "PyTorch", "cwd": "working folder"}


def known(job: JobState) -> dict[int, Facts]:
    """The facts of each rank: what was collected, and what its log says of versions and settings."""
    launch = job.launch
    found: dict[int, Facts] = {}
    for rank, state in job.ranks.items():
        if rank < 0:
            continue
        said = {_STATED[n]: v for seen in state.seen.values() for n, v in seen.fields.items() if n in _STATED}
        collected = launch.now.get(rank, {})
        if not any(name.startswith("env.") for name in collected):
            said |= {f"env.{name}": value for name, (value, _) in state.settings.items()}
        if said or collected:
            found[rank] = {**collected, **said}
    return {**{rank: facts for rank, facts in launch.now.items() if rank not in found}, **found}


def changed(job: JobState) -> dict[str, object] | None:
    """The verdict's field `changed`; None where nothing is known of how the job was started."""
    now = known(job)
    if not now:
        return None
    nodes = {rank: state.node for rank, state in job.ranks.items() if state.node}
    launch = job.launch
    since = None
    if launch.before:
        attempt, at = launch.about.get("attempt", ""), launch.about.get("at", "")
        since = {"attempt": int(attempt) if attempt.isdecimal() else None, "at": at}
    return {
        "since": since,
        "differences": differences(launch.before, now, nodes)[:MOST],
        "unequal": unequal(now, nodes)[:MOST],
    }


def differences(
    before: Mapping[int, Facts], now: Mapping[int, Facts], nodes: Mapping[int, str]
) -> list[dict[str, object]]:
    """What differs from the last good run, each change once with its ranks. New ranks are held against most others."""
    if not before:
        return []
    usual = {name: _usual([_value(facts, name) for facts in before.values()]) for name in _names(before.values())}
    pairs: dict[tuple[str, str, str], list[int]] = {}
    for was, is_, ranks in _together(before, now):
        for name in {*(usual if was is None else was), *is_}:
            old = usual.get(name) if was is None else _value(was, name)
            new = _value(is_, name)
            if old is not None and new is not None and old != new:
                pairs.setdefault((name, old, new), []).extend(ranks)
    found: dict[tuple[str, str, str], dict[str, object]] = {}
    for (name, old, new), ranks in sorted(pairs.items(), key=lambda pair: (_place(pair[0][0]), pair[1])):
        same = title(name), old, new  # a library and the package it comes from tell the same
        if same not in found or len(ranks) > len(_ranks(found[same])):
            where = _where(sorted(ranks), now, nodes)
            text = _change(name, old, new) + (f" on {where}" if where else "")
            values = {"before": old or None, "now": new or None}
            found[same] = {"name": name, **values, "ranks": sorted(ranks), "text": text}
    return list(found.values())


def unequal(now: Mapping[int, Facts], nodes: Mapping[int, str]) -> list[dict[str, object]]:
    """What is not the same for all ranks, with the ranks of each value, the fewest first."""
    found: dict[str, dict[str, object]] = {}
    groups = [(facts, ranks) for _, facts, ranks in _together({}, now)]
    for name in sorted(_names(now.values()) - SAME_FOR_NOBODY, key=_place):
        values: dict[str, list[int]] = {}
        for facts, ranks in groups:
            if (value := _value(facts, name)) is not None:
                values.setdefault(value, []).extend(ranks)
        if len(values) < 2:
            continue
        rows = sorted(
            ((value, sorted(ranks)) for value, ranks in values.items()), key=lambda row: (len(row[1]), row[1])
        )
        said = [f"{_shown(value)} on {_where(ranks, now, nodes)}" for value, ranks in rows[:4]]
        text = f"{title(name)} differs: {', '.join(said)}" + (", ..." if len(rows) > 4 else "")
        found.setdefault(
            text, {"name": name, "values": [{"value": v or None, "ranks": r} for v, r in rows], "text": text}
        )
    return list(found.values())


def _together(before: Mapping[int, Facts], now: Mapping[int, Facts]) -> list[tuple[Facts | None, Facts, list[int]]]:
    """Ranks whose facts are the same objects, then and now: those of a large job are few."""
    groups: dict[tuple[int, int], tuple[Facts | None, Facts, list[int]]] = {}
    for rank, facts in sorted(now.items()):
        was = before.get(rank)
        groups.setdefault((id(was), id(facts)), (was, facts, []))[2].append(rank)
    return list(groups.values())


def _ranks(told: Mapping[str, object]) -> list[object]:
    ranks = told["ranks"]
    return ranks if isinstance(ranks, list) else []


def title(name: str) -> str:
    """A name for people."""
    if name.startswith("package.nvidia-nccl"):
        return "NCCL"
    kind, _, rest = name.partition(".")
    return _TITLES.get(name) or (rest if kind in ("env", "package", "image") else name)


def _names(all_facts: Iterable[Facts]) -> set[str]:
    different = {id(facts): facts for facts in all_facts}
    return {name for facts in different.values() for name in facts}


def _place(name: str) -> tuple[int, str]:
    first = next((at for at, start in enumerate(_FIRST) if name.startswith(start)), len(_FIRST))
    return first + (name.startswith("package.") and first == len(_FIRST)), name


def _value(facts: Facts, name: str) -> str | None:
    """The value; "" where it is certain that there is none, None where nobody could look."""
    if name in facts:
        return facts[name]
    kind = name.partition(".")[0] + "."
    return "" if "." in name and any(other.startswith(kind) for other in facts) else None


def _usual(values: Iterable[str | None]) -> str | None:
    seen = Counter(value for value in values if value is not None)
    return max(sorted(seen), key=lambda value: seen[value]) if seen else None


def _change(name: str, was: str, is_: str) -> str:
    if name == "command":
        return f"command: {_parts(_options(was), _options(is_))}"
    if name == "nodes":
        return f"nodes: {_parts(dict.fromkeys(was.split(','), ''), dict.fromkeys(is_.split(','), ''))}"
    if HIDDEN in (was[: len(HIDDEN)], is_[: len(HIDDEN)]):
        return f"{title(name)} {'has another value' if was and is_ else 'new' if is_ else 'gone'} (which is hidden)"
    if name == "git.commit":
        was, is_ = was[:12], is_[:12]
    if not was:
        return f"{title(name)} new: {_short(is_)}"
    if not is_:
        return f"{title(name)} gone: was {_short(was)}"
    return f"{title(name)} {_short(was)} -> {_short(is_)}"


def _options(command: str) -> dict[str, str]:
    """Options with their values, and words that stand alone, in order."""
    found: dict[str, str] = {}
    last = ""
    for word in command.split():
        name, _, value = word.partition("=")
        if word.startswith("-"):
            found[name], last = value, "" if value else name
        elif last:
            found[last], last = word, ""
        else:
            found[word] = ""
    return found


def _parts(was: Mapping[str, str], is_: Mapping[str, str]) -> str:
    """What of an enumeration is new, gone, or has another value."""
    said = [f"{n} {was[n] or 'alone'} -> {v or 'alone'}" for n, v in is_.items() if n in was and was[n] != v]
    come = [f"{name} {value}".strip() for name, value in is_.items() if name not in was]
    gone = [f"{name} {value}".strip() for name, value in was.items() if name not in is_]
    said += [f"new {' '.join(come)}"] * bool(come) + [f"gone {' '.join(gone)}"] * bool(gone)
    return _short(", ".join(said), 400) or "the same words in another order"


def _shown(value: str) -> str:
    return "a hidden value" if value.startswith(HIDDEN) else _short(value) or "none"


def _short(text: str, most: int = 120) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _where(ranks: Sequence[int], now: Mapping[int, Facts], nodes: Mapping[int, str]) -> str:
    """Which part of the job; empty for all of it, a node where it is exactly its ranks."""
    if len(ranks) == len(now):
        return ""
    on = {nodes.get(rank) for rank in ranks}
    whole = [rank for rank in now if nodes.get(rank) in on]
    if None not in on and sorted(whole) == sorted(ranks):
        names = sorted(node for node in on if node)
        return f"node{'s' if len(names) > 1 else ''} {', '.join(names[:4])}" + (", ..." if len(names) > 4 else "")
    return ranks_named(ranks)
