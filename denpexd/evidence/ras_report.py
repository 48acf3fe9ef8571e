"""What NCCL's RAS answers, read: JSON (2.28.7 and later) and the text for people (2.24 and later).

Pure. The answer comes over a local socket that anybody on the node may hold, so nothing in it is trusted: whatever it
is, the outcome is a Report or ValueError. Text names only outliers; what it leaves out is concluded only where the
numbers allow no other reading.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

MAX_RANKS = 100_000
_MAX_NUMBER = 1 << 63
# 2.28.7 and 2.28.9 leave out the comma between two members of an entry of missing_ranks.
_NO_COMMA = re.compile(r'([0-9"\]}el])(\s*\n\s*")')
# What a pair of ranks does on its own may differ without a fault.
_OF_PAIRS = frozenset({"Send", "Recv", "SendRecv"})


@dataclass(frozen=True, slots=True)
class Member:
    """A rank of one communicator (its number there) and the process behind it; `host` "" and `pid` 0: not told."""

    rank: int
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Absent:
    """A rank that gave no data. `unresponsive`: its process did not answer; `dead`: NCCL has given it up."""

    member: Member
    unresponsive: bool
    dead: bool


@dataclass(slots=True)
class Communicator:
    """`counts`: collectives launched so far, by operation ("" where the release does not tell them apart) and rank."""

    name: str
    size: int
    members: dict[int, Member] = field(default_factory=dict)
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    absent: list[Absent] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """One answer. `lost`: processes, as (host, pid), that did not answer; `dead`: those given up for good."""

    version: str = ""
    communicators: list[Communicator] = field(default_factory=list)
    lost: set[tuple[str, int]] = field(default_factory=set)
    dead: set[tuple[str, int]] = field(default_factory=set)

    def processes(self) -> set[tuple[str, int]]:
        """Every process that is named."""
        known = (m for c in self.communicators for m in (*c.members.values(), *(a.member for a in c.absent)))
        return {(m.host, m.pid) for m in known if m.pid} | self.lost | self.dead


def parse(answer: str) -> Report:
    """Either format; ValueError says what is wrong with it."""
    text = answer.strip()
    if text.startswith("{"):
        return _from_json(text)
    if "Communicators..." in text or text.startswith("NCCL version"):
        return _Text().read(text)
    raise ValueError(f"neither a report in JSON nor one in text: {text[:60]!r}")


# --- JSON -----------------------------------------------------------------------------------------------------------


def _from_json(text: str) -> Report:
    try:
        try:
            found = json.loads(text)
        except ValueError:
            found = json.loads(_NO_COMMA.sub(r"\1,\2", text))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict) or not isinstance(found.get("communicators"), list):
        raise ValueError("the JSON holds no communicators")
    report = Report(str(found.get("nccl_version", ""))[:40])
    for item in found["communicators"]:
        if isinstance(item, dict) and (one := _communicator(item)) is not None:
            report.communicators.append(one)
            report.lost |= {(a.member.host, a.member.pid) for a in one.absent if a.unresponsive and a.member.pid}
            report.dead |= {(a.member.host, a.member.pid) for a in one.absent if a.dead and a.member.pid}
    return report


def _communicator(item: Mapping[str, object]) -> Communicator | None:
    """None for one that was not set up when it was looked at: all zeros."""
    size = _number(item.get("size"))
    if not size:
        return None
    one = Communicator(str(item.get("hash", ""))[:40], size)
    for entry in _entries(item.get("ranks")):
        if (member := _member(entry)) is None:
            continue
        one.members[member.rank] = member
        counts = entry.get("collective_counts")
        for op, launched in counts.items() if isinstance(counts, dict) else ():
            number = _number(launched)
            if number is not None and op not in _OF_PAIRS:
                one.counts.setdefault(str(op)[:40], {})[member.rank] = number
    for entry in _entries(item.get("missing_ranks")):
        if (member := _member(entry)) is not None:
            status = entry.get("status")
            said = status if isinstance(status, dict) else {}
            one.absent.append(Absent(member, said.get("unresponsive") is True, said.get("considered_dead") is True))
    return one


def _entries(value: object) -> Iterator[Mapping[str, object]]:
    return (entry for entry in value[:MAX_RANKS] if isinstance(entry, dict)) if isinstance(value, list) else iter(())


def _member(entry: Mapping[str, object]) -> Member | None:
    rank = _number(entry.get("rank"))
    if rank is None or rank >= MAX_RANKS:
        return None
    return Member(rank, str(entry.get("host", ""))[:100], _number(entry.get("pid")) or 0)


def _number(value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and isinstance(value, int) and 0 <= value < _MAX_NUMBER else None


# --- text -----------------------------------------------------------------------------------------------------------

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_ROW = re.compile(r"\s*(\d{1,6})\s+\d+\s+\d+\s+[\d-]+\s+(\d{1,7})\s+\d+\s+[A-Z,]+\s+[A-Z,]+\s*")
_BLOCK = re.compile(r"#(\d{1,6})-\d+ \(([0-9a-f]{1,16})\) ([A-Z]+)")
_DIFFERENT = re.compile(r"\s+Communicator ranks have different (\w+) operation counts")
_GROUP = re.compile(r"\s+(\d{1,7}) ranks have (?:launched up to operation (\d{1,19})|not launched any operations)")
_ONE = re.compile(r"\s+Rank (\d{1,7}) has (?:launched up to operation (\d{1,19})|not launched any operations) -- (.*)")
_RANK = re.compile(r"\s+Rank (\d{1,7})\b.* -- (.*)|\s+Rank (\d{1,7}) -- (.*)")
_PROCESS = re.compile(r"managed by process (\d{1,10}) on node (\S{1,100})")
_LOST = re.compile(r"\s+Process (\d{1,10}) on node (\S{1,100}) managing GPU")
_MISSING = re.compile(r"\s+The missing ranks?: ([\d, and-]+)")


class _Text:
    """Reads a report line by line; `_group` collects the ranks that share a count."""

    def __init__(self) -> None:
        self.report = Report()
        self._sizes: dict[int, int] = {}
        self._known: dict[str, Communicator] = {}
        self._one: Communicator | None = None
        self._about, self._op = "", ""
        self._groups: list[tuple[int, int, list[int]]] = []  # how many ranks, their count, those that are named

    def read(self, text: str) -> Report:
        found = _VERSION.search(text)
        self.report.version = found.group(1) if found else ""
        for line in text.split("\n"):
            line = line.rstrip()
            if line.startswith("#"):
                self._begin(line)
            elif line and not line[0].isspace():
                self._end()
                self._about = line if line in ("INCOMPLETE", "DEAD") else ""
            else:
                self._line(line)
        self._end()
        self.report.communicators = list(self._known.values())
        return self.report

    def _begin(self, line: str) -> None:
        self._end()
        block = _BLOCK.match(line)
        if block:
            name = f"0x{block.group(2)}"
            size = self._sizes.get(int(block.group(1)), 0)
            self._one = self._known.setdefault(name, Communicator(name, size))
            self._about = block.group(3)

    def _end(self) -> None:
        self._close_op()
        self._one, self._about = None, ""

    def _line(self, line: str) -> None:
        if row := _ROW.fullmatch(line):
            self._sizes[int(row.group(1))] = int(row.group(2))
        elif lost := _LOST.match(line):
            process = (lost.group(2), int(lost.group(1)))
            if self._about in ("INCOMPLETE", "DEAD"):
                (self.report.dead if self._about == "DEAD" else self.report.lost).add(process)
        elif self._one is not None and self._about == "INCOMPLETE":
            self._absent(self._one, line)
        elif self._one is not None and self._about == "MISMATCH":
            self._counted(self._one, line)

    def _absent(self, one: Communicator, line: str) -> None:
        if listed := _MISSING.match(line):
            for number in _ranges(listed.group(1)):
                one.absent.append(Absent(Member(number), unresponsive=True, dead=False))
        elif (member := _named(line)) is not None:
            one.absent.append(Absent(member, unresponsive=True, dead=(member.host, member.pid) in self.report.dead))

    def _counted(self, one: Communicator, line: str) -> None:
        if different := _DIFFERENT.match(line):
            self._close_op()
            self._op = "" if different.group(1) == "collective" else different.group(1)
            self._groups = []
        elif "have different" in line:
            self._close_op()
        elif group := _GROUP.match(line):
            self._groups.append((int(group.group(1)), int(group.group(2) or 0), []))
        elif single := _ONE.match(line):
            self._groups.append((1, int(single.group(2) or 0), [int(single.group(1))]))
            self._remember(one, line)
        elif (member := self._remember(one, line)) is not None and self._groups:
            self._groups[-1][2].append(member.rank)

    @staticmethod
    def _remember(one: Communicator, line: str) -> Member | None:
        member = _named(line)
        if member is not None and (member.pid or member.rank not in one.members):
            one.members[member.rank] = member
        return member

    def _close_op(self) -> None:
        """The counts of one operation: of the named ranks, and of all others where only one group is not named."""
        one, groups, self._groups = self._one, self._groups, []
        if one is None or not groups or self._op in _OF_PAIRS:
            return
        counts = {rank: count for _, count, ranks in groups for rank in ranks}
        unnamed = [(number, count) for number, count, ranks in groups if len(ranks) != number]
        away = {a.member.rank for a in one.absent}
        rest = [rank for rank in range(min(one.size, MAX_RANKS)) if rank not in counts and rank not in away]
        if len(unnamed) == 1 and len(rest) == unnamed[0][0]:
            counts |= dict.fromkeys(rest, unnamed[0][1])
        elif unnamed:
            return
        one.counts[self._op] = counts


def _named(line: str) -> Member | None:
    found = _RANK.match(line)
    if not found:
        return None
    rank = int(found.group(1) or found.group(3))
    process = _PROCESS.search(line)
    if rank >= MAX_RANKS:
        return None
    return Member(rank, process.group(2), int(process.group(1))) if process else Member(rank)


def _ranges(text: str) -> Iterator[int]:
    """`21`, `3,5-7`."""
    for part in re.findall(r"\d{1,7}(?:-\d{1,7})?", text):
        first, _, last = part.partition("-")
        yield from range(int(first), min(int(last or first), int(first) + MAX_RANKS) + 1)
