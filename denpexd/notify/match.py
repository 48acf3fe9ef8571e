"""Which incidents are meant: by job, failure, severity, rank, node and the daemon's tags, in routes and in silences.

All fields that are given must fit, each by any of its values. Values are globs (`*`, `?`, `[ab]`), ranks also `0-7`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

Verdict = Mapping[str, object]

FIELDS = ("key", "job", "failure", "category", "severity", "domain", "rank", "node")
"""What can be matched beside tags, in the order in which it is shown."""


@lru_cache(maxsize=4096)
def _compiled(glob: str) -> "re.Pattern[str]":
    return re.compile(translate(glob))


def fits(text: object, globs: Iterable[str]) -> bool:
    """Whether a text fits one of the globs, in the same case."""
    return any(_compiled(glob).match(str(text)) is not None for glob in globs)


def ranks_of(text: str) -> range:
    """The ranks of `3` or `0-7`; ValueError otherwise."""
    found = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", text.strip())
    if found is None or (last := int(found[2] or found[1])) < (first := int(found[1])):
        raise ValueError(f"{text!r} is no rank: give a number such as 3, or a range such as 0-7")
    return range(first, last + 1)


@dataclass(frozen=True, slots=True)
class Matcher:
    """`wants`: (field, values), field one of FIELDS or `tags.NAME`. Without any it matches every incident."""

    wants: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def misfit(self, verdict: Verdict, tags: Mapping[str, str]) -> str | None:
        """The field that does not fit, with what the incident has there; None where all fit."""
        for field, values in self.wants:
            found = list(_found(field, verdict, tags))
            # Who started it must all be meant: a silence for one node hides no trouble of another.
            every = field in ("rank", "node")
            one = [_fits(field, value, values) for value in found]
            if not (one and all(one)) if every else not any(one):
                return f"{field} is {', '.join(map(str, found[:4])) or 'not known'}"
        return None

    def matches(self, verdict: Verdict, tags: Mapping[str, str]) -> bool:
        """Whether the incident is meant."""
        return self.misfit(verdict, tags) is None

    def plain(self) -> dict[str, object]:
        """As settings and API write it."""
        told: dict[str, object] = {field: list(values) for field, values in self.wants if "." not in field}
        tags = {field.partition(".")[2]: list(values) for field, values in self.wants if "." in field}
        return told | ({"tags": tags} if tags else {})

    def text(self) -> str:
        """In one line, as the command line takes it."""
        return " ".join(f"{field}={','.join(values)}" for field, values in self.wants)


def matcher(given: Mapping[str, Sequence[str] | None], tags: Mapping[str, Sequence[str]]) -> Matcher:
    """From values by field, None where a field does not matter, and values by tag."""
    wants = [(field, tuple(values)) for field in FIELDS if (values := given.get(field))]
    return Matcher((*wants, *((f"tags.{name}", tuple(values)) for name, values in sorted(tags.items()))))


def _found(field: str, verdict: Verdict, tags: Mapping[str, str]) -> Iterable[object]:
    if field.startswith("tags."):
        name = field.partition(".")[2]
        return [tags[name]] if name in tags else []
    ranks = verdict.get("initiating_ranks")
    ranks = ranks if isinstance(ranks, list | tuple) else []
    if field == "rank":
        return ranks
    if field == "node":
        nodes = verdict.get("nodes")
        by_rank = {str(rank): node for rank, node in nodes.items()} if isinstance(nodes, Mapping) else {}
        # A rank of which the node is not known may be anywhere.
        return dict.fromkeys(by_rank.get(str(rank), "") for rank in ranks)
    if field == "failure":
        aliases = verdict.get("aliases")
        return [verdict.get("failure"), *(aliases if isinstance(aliases, list | tuple) else [])]
    return [verdict.get(field)]


def _fits(field: str, value: object, globs: Sequence[str]) -> bool:
    if field == "rank":
        return any(isinstance(value, int) and value in ranks_of(one) for one in globs)
    return fits(value, globs)
