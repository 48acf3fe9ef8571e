"""What DeepSpeed's launcher says of its processes: which pid is which rank, who ended and how.

Its last line tells the exit code of the process that failed first, with the command of the one that it started last:
the code is true, the `--local_rank` in it proves nothing (deepspeed/launcher/launch.py, sigkill_handler).
"""

import re
from dataclasses import dataclass, field

from denpexd.core.events import UNKNOWN_RANK, Event, Exit, Joined
from denpexd.scan.prefixes import Line

_MAIN = r"\[launch\.py:\d+:main\] "
PATTERNS = {
    "deepspeed_node": _MAIN + r"nnodes=\d+, num_local_procs=\d+, node_rank=(?P<node>\d+)",
    "deepspeed_ranks": _MAIN + r"global_rank_mapping=.*?(?P<mapping>\{.*\})",
    "deepspeed_spawned": _MAIN + r"process (?P<pid>\d+) spawned with command: ",
    "deepspeed_done": _MAIN + r"Process (?P<pid>\d+) exits successfully",
    "deepspeed_exit": r"\[launch\.py:\d+:sigkill_handler\] .*exits with return code = (?P<code>-?\d+)",
}
_RANKS = re.compile(r"\[([\d, ]*)\]")
_RANK = re.compile(r"\d{1,6}")
_MOST_NODES = 10_000


@dataclass(slots=True)
class _Node:
    number: int = 0
    ranks: list[int] = field(default_factory=list)  # in the order in which they are spawned
    world: int = 0
    spawned: int = 0


@dataclass(slots=True)
class DeepSpeedLauncher:
    """What the launchers of one stream have told so far, by the tag of their node ("" without pdsh)."""

    _nodes: dict[str, _Node] = field(default_factory=dict)

    def read(self, name: str, line: Line, groups: dict[str, str], t: float, ranks: dict[int, int]) -> list[Event]:
        """The events of a line that matched PATTERNS[name]. `ranks`: pid -> rank, as far as known."""
        if name == "deepspeed_node" and len(self._nodes) < _MOST_NODES:
            self._nodes[line.outer] = _Node(int(groups["node"]))
        node = self._nodes.get(line.outer, _Node())
        match name:
            case "deepspeed_ranks":
                mapping = [[int(n) for n in _RANK.findall(each)] for each in _RANKS.findall(groups["mapping"])]
                node.ranks, node.world = next(iter(mapping[node.number :]), []), sum(map(len, mapping))
            case "deepspeed_spawned" if node.spawned < len(node.ranks):
                rank = node.ranks[node.spawned]
                node.spawned += 1
                return [Joined(t, rank, line.outer or None, int(groups["pid"]), node.world)]
            case "deepspeed_done" if int(groups["pid"]) in ranks:
                return [Exit(t, ranks[int(groups["pid"])], 0, "launcher")]
            case "deepspeed_exit":
                rank = node.ranks[0] if len(node.ranks) == 1 else UNKNOWN_RANK
                return [Exit(t, rank, int(groups["code"]), "launcher")]
        return []
