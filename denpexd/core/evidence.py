"""What everything that is known is kept as: enough to quote it."""

from dataclasses import dataclass, replace


def beginning(text: str, limit: int) -> str:
    """At most `limit` characters of a text, cut between words: half a secret would not be recognised as one."""
    if len(text) <= limit:
        return text
    end = max(text.rfind(" ", 0, limit + 1), text.rfind("\n", 0, limit + 1))
    return text[: end if end > limit // 2 else limit]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One quotable observation about `rank`; (`teller`, `kind`) is the witness."""

    rank: int
    kind: str  # log, stack, process, launcher, dump, core
    source: str
    offset: int
    t: float
    text: str
    means: str
    teller: int = -1
    seq: int = 0
    weight: str = "fatal"  # fatal, or suspect: true only if training stopped
    history: bool = False

    def saying(self, means: str) -> "Evidence":
        """The same observation in the words of another signal."""
        return self if means == self.means else replace(self, means=means)

    @property
    def witness(self) -> tuple[int, str]:
        return (self.teller if self.teller >= 0 else self.rank, self.kind)
