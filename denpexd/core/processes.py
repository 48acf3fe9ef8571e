"""Which process wrote a line, where its prefix names a process and no rank (Ray), and which rank that process is.

Any line of the process that gives its rank teaches it, in whatever stream it stands, also one that comes later.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from denpexd.core.events import UNKNOWN_RANK

MAX_PROCESSES = 100_000
MAX_SPEAKERS = 256


def process_of(fields: Mapping[str, str]) -> str:
    """`pid=812` or `pid=812, ip=10.0.0.3` of the prefix of a line; empty where it names no process."""
    pid, ip = fields.get("pid", ""), fields.get("ip", "")
    if "actor" not in fields or not pid.isdigit():
        return ""
    return f"pid={pid}, ip={ip}" if ip else f"pid={pid}"


@dataclass(slots=True)
class Processes:
    """What is known of the processes of an attempt."""

    ranks: dict[str, int] = field(default_factory=dict)
    speakers: dict[tuple[str, int], str] = field(default_factory=dict)  # by source and offset: lines of no rank

    def learn(self, process: str, rank: int) -> bool:
        """A line of the process says its rank; whether that is new. Who speaks for several ranks is none of them."""
        known = self.ranks.get(process)
        if known is None and len(self.ranks) < MAX_PROCESSES:
            self.ranks[process] = rank
            return True
        if known is not None and known != rank:
            self.ranks[process] = UNKNOWN_RANK
        return False

    def spoke(self, process: str, source: str, offset: int) -> None:
        """A process whose rank is not known printed something that matters."""
        if len(self.speakers) < MAX_SPEAKERS:
            self.speakers[source, offset] = process
