"""What the examples of a rule prove: that they end as written, that each clause is needed, and who else fires on them.

The stage that plays them is given from above. A rule's examples are scanned once; its mutants are only judged again,
among the rules that had anything to say about the example.
"""

import multiprocessing
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from denpexd.catalog.document import Trail
from denpexd.catalog.examples import ExampleResult, difference, result_of
from denpexd.catalog.mutants import Mutant, mutants
from denpexd.core.events import Hit
from denpexd.core.rule import TIMED, Catalog, Correlation, Example, Rule, Signal, used_signals
from denpexd.errors import DenpexdError

Verdicts = Sequence[Mapping[str, object]]


class Heard(Protocol):
    """An example as the core is told it."""

    @property
    def batches(self) -> Sequence[Sequence[object]]: ...
    def thinned(self) -> Any: ...


class Judged(Protocol):
    """The final verdicts, the rules that ever matched, the signals that ever held."""

    @property
    def verdicts(self) -> Verdicts: ...
    @property
    def matched(self) -> frozenset[str]: ...
    @property
    def held(self) -> frozenset[str]: ...


class Stage(Protocol):
    """Plays examples: scanned once by the signals of the whole catalogue, judged by any catalogue."""

    def play(self, example: Example, changed: Mapping[str, Signal] | None = None) -> Any: ...
    def judge(self, heard: Any, catalog: Catalog | None = None) -> Any: ...


@dataclass(frozen=True, slots=True)
class Unneeded:
    """A clause that no example needs."""

    rule: str
    clause: str
    trail: Trail


@dataclass(frozen=True, slots=True)
class Overlap:
    """Another rule that explains a firing example of this rule without being declared; `wins`: and has an incident."""

    rule: str
    example: int
    other: str
    wins: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything about one rule. `clauses`: how many were tried."""

    rule: str
    results: tuple[ExampleResult, ...]
    clauses: int = 0
    unneeded: tuple[Unneeded, ...] = ()
    overlaps: tuple[Overlap, ...] = ()


@dataclass(slots=True)
class Played:
    """One example that ended as written, and what is needed to play it again. `held`: signals that held at some time.

    `seen`: log signals that were printed.
    """

    example: Example
    heard: Any
    company: Catalog
    outcome: "Outcome"
    seen: frozenset[str]
    held: frozenset[str]


class Prover:
    """Tries rules of one catalogue on one stage. `clauses`: also whether each clause is needed.

    `exact`: every second of silence is played; else every tenth, and all of them only where an example then ends
    otherwise than written.
    """

    def __init__(self, catalog: Catalog, stage: Stage, *, clauses: bool = True, exact: bool = True) -> None:
        self._catalog, self._stage, self._clauses, self._exact = catalog, stage, clauses, exact
        self._below = catalog.below
        self._used = {rule.id: used_signals(rule) for rule in catalog.rules.values()}

    def all(self, rules: Sequence[str], *, workers: int = 1) -> list[Trial]:
        """Try these rules, in processes of their own where that is safe; answers in the order of the ids."""
        if workers < 2 or len(rules) < 2 or threading.active_count() > 1:
            return [self.one(rule) for rule in rules]
        longest_first = sorted(rules, key=lambda rule: -_effort(self._catalog.rules[rule]))
        _inherited.append(self)  # by the children that are forked now: nothing is compiled twice
        try:
            with multiprocessing.get_context("fork").Pool(min(workers, len(rules))) as pool:
                trials = pool.map(_try_inherited, longest_first, chunksize=1)
        finally:
            _inherited.clear()
        return sorted(trials, key=lambda trial: rules.index(trial.rule))

    def one(self, rule_id: str) -> Trial:
        """Play its examples among all rules, then without each of its clauses."""
        rule = self._catalog.rules[rule_id]
        results: list[ExampleResult] = []
        played: list[Played] = []
        overlaps: list[Overlap] = []
        for number, example in enumerate(rule.examples):
            try:
                heard = self._stage.play(example)
                judged, result = self._judged(rule, example, heard)
            except DenpexdError as error:
                results.append(ExampleResult(rule.id, example.name, example.fires, f"cannot be replayed: {error}"))
                continue
            results.append(result)
            overlaps += self._overlaps(rule, number, judged) if example.fires else []
            if results[-1].ok and self._clauses:
                played.append(self._played(rule, example, heard, judged))
        tried = list(mutants(rule)) if self._clauses else []
        idle = [m for m in tried if not any(self._differs(m, one) for one in _likeliest_first(m, played))]
        unneeded = tuple(Unneeded(rule.id, mutant.clause, mutant.trail) for mutant in idle)
        return Trial(rule.id, tuple(results), len(tried), unneeded, tuple(overlaps))

    def _judged(self, rule: Rule, example: Example, heard: Any) -> tuple[Judged, ExampleResult]:
        if not self._exact:
            judged = self._stage.judge(heard.thinned())
            result = result_of(rule, example, judged.verdicts)
            if result.ok:
                return judged, result
        judged = self._stage.judge(heard)
        return judged, result_of(rule, example, judged.verdicts)

    def _played(self, rule: Rule, example: Example, heard: Any, judged: Judged) -> Played:
        company, heard = self._company(rule, judged.matched), heard.thinned()
        again = self._stage.judge(heard, company)
        seen = frozenset(e.signal for batch in heard.batches for e in batch if isinstance(e, Hit))
        return Played(example, heard, company, _outcome(rule.id, example, again.verdicts), seen, again.held)

    def _differs(self, mutant: Mutant, one: Played) -> bool:
        """Whether the example ends differently for the mutant."""
        if not (mutant.seen <= one.seen and mutant.held <= one.held):
            return False
        heard = self._stage.play(one.example, mutant.changed).thinned() if mutant.heard_anew else one.heard
        rule = self._closed(mutant.rule)
        catalog = Catalog({**one.company.rules, rule.id: rule}, {**one.company.signals, **mutant.changed})
        outcome = _outcome(rule.id, one.example, self._stage.judge(heard, catalog).verdicts)
        return outcome != one.outcome if mutant.quoted else outcome.said != one.outcome.said

    def _company(self, rule: Rule, matched: frozenset[str]) -> Catalog:
        """Only the rules that matched at some time, and one that looks at what all others look at but never matches.

        Rules do not influence each other but by matching and by what makes them be judged again, so the example ends
        as among all rules, at a small part of the cost.
        """
        kept = {rule.id, *matched}
        rules = {rule_id: self._closed(self._catalog.rules[rule_id]) for rule_id in kept}
        mine = set().union(*(self._used[rule_id] for rule_id in kept))
        frames = {s.id for s in self._catalog.signals.values() if s.kind == "frame"}
        others = set().union(*(used for rule_id, used in self._used.items() if rule_id not in kept))
        others -= frames - set(sorted(others & frames)[:1])  # one stands for all
        looked_at = {s: self._catalog.signals[s] for s in others if self._catalog.signals[s].fact not in TIMED}
        rules[""] = Rule("", rule.entry, looked_at, Correlation(roles=()))
        dropped = frames - mine - others
        return Catalog(rules, {s: signal for s, signal in self._catalog.signals.items() if s not in dropped})

    def _closed(self, rule: Rule) -> Rule:
        """What it supersedes by way of rules that are not in its company, it supersedes itself."""
        return replace(rule, supersedes=tuple(sorted(self._below[rule.id])))

    def _overlaps(self, rule: Rule, number: int, judged: Judged) -> list[Overlap]:
        best = {str(verdict.get("failure")) for verdict in judged.verdicts}
        others = sorted(judged.matched - {rule.id})
        return [Overlap(rule.id, number, other, other in best) for other in others if not self._declared(rule, other)]

    def _declared(self, rule: Rule, other_id: str) -> bool:
        """Whether both may explain the same evidence: one supersedes or names the other, or both are of a kind."""
        other = self._catalog.rules[other_id]
        named = other.id in self._below[rule.id] or rule.id in self._below[other.id]
        related = other.id in rule.entry.related or rule.id in other.entry.related
        return named or related or other.precision == "symptom" or other.entry.category == rule.entry.category


_inherited: list[Prover] = []


def _try_inherited(rule: str) -> Trial:
    return _inherited[0].one(rule)


def _effort(rule: Rule) -> float:
    return sum(example.observe_until for example in rule.examples)


def _likeliest_first(mutant: Mutant, played: Iterable[Played]) -> list[Played]:
    """The examples in the order in which they are likely to tell the mutant from the rule, cheap ones first."""
    return sorted(played, key=lambda one: (one.example.fires is mutant.looser, one.example.observe_until))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an example says about a rule: whether it ended as written, with which ranks, how sure, or as second best.

    `quoted`: the reasons that its verdicts give, with the ranks they are about.
    """

    said: tuple[object, ...]
    quoted: frozenset[tuple[object, object]]


def _outcome(rule_id: str, example: Example, verdicts: Verdicts) -> Outcome:
    mine = [v for v in verdicts if v.get("failure") == rule_id]
    named = tuple(str(v.get("failure")) for v in verdicts)
    ranks = tuple((str(v.get("initiating_ranks")), str(v.get("collateral_ranks")), v.get("certainty")) for v in mine)
    second = any(other["failure"] == rule_id for v in verdicts for other in _list(v, "alternatives"))
    quoted = frozenset((e["rank"], e["means"]) for v in mine for e in _list(v, "evidence"))
    return Outcome((difference(example, mine, named), ranks, second), quoted)


def _list(verdict: Mapping[str, object], name: str) -> list[Any]:
    return cast(list[Any], verdict.get(name, []))
