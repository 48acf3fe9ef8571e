"""py-spy dumps that a person pasted or saved: several processes one after the other, as text."""

import re
from dataclasses import replace
from itertools import pairwise

from denpexd.core.events import UNKNOWN_RANK, Frames
from denpexd.evidence.stacks import parse_text

BY_ORDER = "(numbered by order)"
_PROCESS = re.compile(r"^Process \d+: .*$", re.MULTILINE)
_THREAD = re.compile(r"^Thread (?:0x[0-9A-Fa-f]+|\d+) \((?:active|idle)", re.MULTILINE)
_RANK = re.compile(r"(?<!node)[-_ ]rank[ =:]+(\d{1,6})\b|\bRANK=(\d{1,6})\b")
_MOST = 100_000
_WORKER = ("_worker_loop", "launch_agent")  # a DataLoader worker, the launcher: no ranks


def dumps(text: str, rank: int, source: str) -> list[Frames]:
    """The stacks in `text`, in order; `offset` counts characters. Empty where it holds none.

    `rank`: whose file it is, if known. Of several dumps the command line may name the rank; where it does not for all
    of them, they are numbered by their order (the stack's `source` says so).
    """
    if _THREAD.search(text) is None:
        return []
    starts = [head.start() for head in _PROCESS.finditer(text)][:_MOST] or [0]  # the head may not have been copied
    found = []
    for start, end in pairwise((*starts, len(text))):
        frames = parse_text(text[start:end], UNKNOWN_RANK, 0.0)
        if frames is not None and not any(f.function in _WORKER for f in frames.frames):
            named = _RANK.search(text[start:end].partition("\n")[0])
            number = int(named.group(1) or named.group(2)) if named else UNKNOWN_RANK
            found.append(replace(frames, rank=number, source=source, offset=start))
    if len(found) == 1 and rank != UNKNOWN_RANK:
        return [replace(found[0], rank=rank)]
    ranks = {frames.rank for frames in found}
    if UNKNOWN_RANK in ranks or len(ranks) < len(found):
        return [replace(frames, rank=number, source=f"{source} {BY_ORDER}") for number, frames in enumerate(found)]
    return found
