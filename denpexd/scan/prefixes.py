"""Whose line is it: prefixes of launchers and containers off, what they tell about the rank kept.

What counts, strongest first: torch's `[rank3]:` (global), mpirun's tag, srun's or Hydra's label where the stream is
labelled, the rank of the file, Ray's pid once its rank is known, the text's own `rank=3`, torchrun's `[default3]:` (a
LOCAL rank).
"""

from dataclasses import dataclass, field, replace

import re2

from denpexd.core.events import UNKNOWN_RANK
from denpexd.scan.guesses import Pods, rank_in_text
from denpexd.scan.proven_tags import ProvenTags

_OPTIONS = re2.Options()
_OPTIONS.encoding = re2.Options.Encoding.LATIN1
# mpirun: job,rank (since 5: prterun-HOST-PID@job,rank); horovodrun: the rank alone.
_MPI_GLUED = rb"\[(?:(?:prterun-[\w.-]+@)?\d+,(?:mpirank:)?)?(\d{1,9})(?:,[\w.-]+)?\]<(?:stdout|stderr|stddiag)>:"
# Behind a quotation mark that opens it is somebody's words: a log quoted by a chat model, say.
_GLUED = re2.compile(_MPI_GLUED + rb"|(?:[^\s:\"'`]|[\w.][\"'`])(\[rank\d{1,6}\]:)", _OPTIONS)
_DETERMINED = re2.compile(rb"^\[rank=(\d{1,6})\] \|\| ", _OPTIONS)
_LABEL = re2.compile(rb"^ *(\d{1,6}): ", _OPTIONS)
_TAG = re2.compile(rb"^\[([A-Za-z_][\w.-]*?)(\d{1,6})\]:( ?)", _OPTIONS)
_ACTOR = re2.compile(rb"^\(([A-Za-z_][\w.]*),?((?:,? ?\w+=[^,() ]*)+)\) ", _OPTIONS)
_NAMED = re2.compile(rb"^(?:([A-Za-z][\w.-]*?)[-_.]?(\d{1,6}) *[|>] ?|([A-Za-z][\w.-]*)/(\d{1,6}) )", _OPTIONS)
_TENSOR_RANK = re2.compile(rb"^\w*[Ww]orker_TP(\d{1,4})(?:_EP\d+)?$", _OPTIONS)  # vLLM; with PP or DP it is no rank
_KUBECTL = re2.compile(rb"^\[pod/([^/\]]+)/([^\]]+)\] ", _OPTIONS)
# The runtime's own log, and what kubectl logs --timestamps and docker logs -t make of it (nanoseconds, no stream).
_CRI = re2.compile(
    rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] "
    rb"|\.\d{7,9}(?:Z|[+-]\d\d:\d\d) ))",
    _OPTIONS,
)
_COUNTERS = frozenset(
    b"epoch step iter iteration batch layer stage shard fold trial attempt run exp seed version node thread".split()
)
_MOST_PIDS = 100_000
_MOST_NAMES = 8
_SAMPLE = 1024  # bytes at the start of a chunk ...
_FEW = 4  # ... and lines of them, once
_KNOWN = 50  # so many have been seen


@dataclass(frozen=True, slots=True)
class Line:
    """One segment (or one piece of one) without its prefixes.

    `outer` names the tags except torch's, so that lines of one writer can be told from its neighbours'; `tag` is the
    rank of torch's `[rank3]: ` or UNKNOWN_RANK; `certain` says that the rank came from a tag or the file.
    """

    text: str
    rank: int = UNKNOWN_RANK
    fields: dict[str, str] = field(default_factory=dict)
    outer: str = ""
    tag: int = UNKNOWN_RANK
    hooked: bool = False
    certain: bool = False


@dataclass(slots=True)
class _Tags:
    """What one piece carried in front of its text."""

    outer: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    torch: int = UNKNOWN_RANK
    torch_tags: list[str] = field(default_factory=list)
    hooked: bool = False
    mpi: int = UNKNOWN_RANK
    label: int = UNKNOWN_RANK
    local: int = UNKNOWN_RANK
    local_tag: str = ""
    writer: tuple[str, str] | None = None


class PrefixReader:
    """What one stream has taught about its prefixes so far. `rank`: the rank of the file, if known."""

    def __init__(self, rank: int = UNKNOWN_RANK) -> None:
        self.rank = rank
        self.ranks: set[int] = set()  # ranks that tags named: more than one makes the stream interleaved
        self._labelled = self._unlabelled = 0
        self._labels_are_ranks = True
        self._named = self._unnamed = 0
        self._slashed = False
        self._numbers: dict[bytes, set[int]] = {}  # of "trainer-3 | ", "rank3> ", "trainer/3 ", by name
        self._globals: dict[str, int] = {}  # torchrun's tag -> global rank
        self._writers: dict[tuple[str, str], int] = {}  # Ray's (ip, pid) -> rank
        self._pods = Pods()
        self._proven = ProvenTags()

    def sample(self, data: bytes) -> None:
        """Learn from the first lines of a chunk whether srun or some wrapper labels this stream."""
        most = _FEW if self._labelled + self._unlabelled > _KNOWN else -1
        for line in data[:_SAMPLE].split(b"\n", most)[:-1]:
            if line[:1] in b" 0123456789" and _LABEL.search(line) is not None:
                self._labelled += 1
            elif line.strip() and not line.startswith((b"srun", b"slurm", b"sbatch")):
                self._unlabelled += 1
                self._sample_name(line)
        if self._labelled + self._unlabelled > 200:
            self._labelled //= 2
            self._unlabelled //= 2
            self._named //= 2
            self._unnamed //= 2

    def _sample_name(self, line: bytes) -> None:
        found = _NAMED.search(line)
        name = (found.group(1) or found.group(3)) if found is not None else b""
        if found is None or name.lower() in _COUNTERS or len(self._numbers) > _MOST_NAMES:
            self._unnamed += 1
            return
        self._named += 1
        self._slashed = found.group(3) is not None  # torchx: replicas of a role, always from 0
        self._numbers.setdefault(name, set()).add(int(found.group(2) or found.group(4)))

    @property
    def _names_count(self) -> bool:
        """Nearly all lines carry a name with a number, of one kind: these are the ranks if they count from 0."""
        if self._named < max(1, 2 * self._unnamed) or len(self._numbers) != 1:
            return False
        ((name, numbers),) = self._numbers.items()
        return name == b"rank" or self._slashed or (len(numbers) > 1 and 0 in numbers)

    def read(self, segment: bytes, head: Line | None = None) -> list[Line]:
        """The segment's pieces; `head` lends its rank to what follows a carriage return.

        mpirun glues several tagged pieces to one line, and torch's tag follows a progress bar without a line feed.
        """
        if b"]<std" not in segment and b"[rank" not in segment[1:]:
            return [self._piece(segment, UNKNOWN_RANK, head)]
        lines, start, rank = [], 0, UNKNOWN_RANK
        for found in _GLUED.finditer(segment):
            cut = found.start(2) if found.group(2) else found.start()
            if cut > start:
                lines.append(self._piece(segment[start:cut], rank, head))
            start = cut
            if not found.group(2):
                start, rank = found.end(), int(found.group(1))
                start += b"[prterun-" in found.group() and segment[start : start + 1] == b" "
        lines.append(self._piece(segment[start:], rank, head))
        return lines

    def _piece(self, piece: bytes, mpi: int, head: Line | None) -> Line:
        tags = _Tags(mpi=mpi)
        if mpi != UNKNOWN_RANK:
            tags.outer.append(f"mpi{mpi}")
        text = self._strip(piece, tags).replace(b"\0", b"").decode("utf-8", "replace")
        self._learn(tags)
        if head is not None and head.rank != UNKNOWN_RANK and not tags.outer and not tags.torch_tags:
            return replace(head, text=text)
        rank = self._tagged_rank(tags)
        certain = rank != UNKNOWN_RANK
        if certain:
            if tags.writer is not None and len(self._writers) < _MOST_PIDS:
                self._writers[tags.writer] = rank
            self._pods.placed(tags.fields.get("pod", ""), rank)
            outer = "|".join(tags.outer)
            return Line(text, rank, tags.fields, outer, tags.torch, tags.hooked, certain=True)
        return self._guess(text, tags)

    def _strip(self, piece: bytes, tags: _Tags) -> bytes:
        """The piece behind its prefixes, which may come in any order and more than once."""
        while piece:
            first = piece[:1]
            rest: bytes | None
            if not tags.outer and (found := self._proven.host(piece)) is not None:
                tags.outer.append(found[0])
                rest = found[1]
            elif first == b"[":
                rest = self._strip_bracket(piece, tags)
            elif first == b"(":
                rest = _strip_actor(piece, tags)
            elif self._numbers and first.isalpha():
                rest = self._strip_name(piece, tags)
            elif first == b" " or first.isdigit():
                rest = self._strip_number(piece, tags)
            else:
                break
            if rest is None:
                break
            piece = rest
        return piece

    def _strip_bracket(self, piece: bytes, tags: _Tags) -> bytes | None:
        if (found := _TAG.search(piece)) is not None:
            name, number = found.group(1), int(found.group(2))
            if name.lower() in _COUNTERS:
                return None
            if name == b"rank":
                tags.torch, tags.hooked = number, bool(found.group(3))
                tags.torch_tags.append(f"rank{number}")
                return piece[found.end() :]
            tags.local, tags.local_tag = number, f"{name.decode()}{number}"
            tags.outer.append(tags.local_tag)
            return piece[found.end(2) + 2 :]
        if (found := _DETERMINED.search(piece)) is not None:
            tags.torch = int(found.group(1))
            tags.outer.append(f"determined{tags.torch}")
            return piece[found.end() :]
        if (found := _KUBECTL.search(piece)) is not None:
            tags.fields.update(pod=found.group(1).decode("utf-8", "replace"))
            tags.outer.append(tags.fields["pod"])
            return piece[found.end() :]
        if self.rank == tags.label == UNKNOWN_RANK and (task := self._proven.task(piece)) is not None:
            tags.label = task[0]
            tags.outer.append(f"task{tags.label}")
            return task[1]
        return None

    def _strip_name(self, piece: bytes, tags: _Tags) -> bytes | None:
        found = _NAMED.search(piece) if tags.label == UNKNOWN_RANK and self._names_count else None
        if found is None or (found.group(1) or found.group(3)) not in self._numbers:
            return None
        tags.label = int(found.group(2) or found.group(4))
        tags.outer.append(f"named{tags.label}")
        return piece[found.end() :]

    def _strip_number(self, piece: bytes, tags: _Tags) -> bytes | None:
        if self._labelled >= max(1, 2 * self._unlabelled) and (found := _LABEL.search(piece)) is not None:
            if tags.label != UNKNOWN_RANK:
                return None
            tags.label = int(found.group(1))
            tags.outer.append(f"task{tags.label}")
            return piece[found.end() :]
        if (found := _CRI.search(piece)) is not None:
            tags.fields["time"] = found.group(1).split()[0].decode()
            return piece[found.end() :]
        return None

    def _learn(self, tags: _Tags) -> None:
        if len(tags.torch_tags) > 1:  # torchrun --tee with --role rank wrote the outer one
            self._globals[tags.torch_tags[0]] = tags.torch
            tags.outer.extend(tags.torch_tags[:-1])
        elif tags.torch_tags and tags.torch_tags[0] in self._globals and not tags.hooked:
            tags.torch = self._globals[tags.torch_tags[0]]
        if tags.torch == UNKNOWN_RANK:
            return
        if tags.local_tag:
            self._globals[tags.local_tag] = tags.torch
        if tags.label != UNKNOWN_RANK and tags.label != tags.torch:
            self._labels_are_ranks = False  # one task per node: the label is the node's number

    def _tagged_rank(self, tags: _Tags) -> int:
        label = tags.label if self._labels_are_ranks else UNKNOWN_RANK
        for rank in (tags.torch, tags.mpi, label):
            if rank != UNKNOWN_RANK:
                self.ranks.add(rank)
                return rank
        if tags.local != UNKNOWN_RANK:
            self.ranks.add(self._globals.get(tags.local_tag, tags.local))
        return self.rank

    def _guess(self, text: str, tags: _Tags) -> Line:
        """A line that no tag and no file attributes."""
        rank = self._writers.get(tags.writer, UNKNOWN_RANK) if tags.writer is not None else UNKNOWN_RANK
        if rank == UNKNOWN_RANK:
            rank = rank_in_text(text)
            if rank != UNKNOWN_RANK and tags.writer is not None and len(self._writers) < _MOST_PIDS:
                self._writers[tags.writer] = rank
        if rank == UNKNOWN_RANK and tags.local != UNKNOWN_RANK:
            rank = self._globals.get(tags.local_tag, tags.local)
        rank = self._pods.placed(tags.fields.get("pod", ""), rank)
        if rank != UNKNOWN_RANK:
            self.ranks.add(rank)
        return Line(text, rank, tags.fields, "|".join(tags.outer), tags.torch, tags.hooked)


def _strip_actor(piece: bytes, tags: _Tags) -> bytes | None:
    """`(TorchTrainer pid=812, ip=10.0.0.3) `, `(worker1, rank=1, pid=7) `: Ray's and other ways to name a process."""
    found = _ACTOR.search(piece)
    if found is None:
        return None
    pairs = re2.findall(rb"(\w+)=([^,() ]*)", found.group(2))
    said = {key.decode().removeprefix("node_"): value.decode("utf-8", "replace") for key, value in pairs}
    if not {"pid", "ip", "rank"} & set(said):
        return None
    tags.fields.update({"actor": found.group(1).decode()} | {key: said[key] for key in ("pid", "ip") if key in said})
    if said.get("rank", "").isdecimal():
        tags.label = int(said["rank"])
    elif (tensor := _TENSOR_RANK.search(found.group(1))) is not None:
        tags.label = int(tensor.group(1))
    if "pid" in said:
        tags.writer = said.get("ip", ""), said["pid"]
        tags.outer.append("pid" + ":".join(tags.writer))
    elif tags.label != UNKNOWN_RANK:
        tags.outer.append(f"actor{tags.label}")
    return piece[found.end() :]
