"""Finds failures by pasted text, offline: first by the rules' own signals, then by words.

A signal that holds on the text is proof, so those rules come first, the more exact ones before the more general. The
words are ranked with BM25 over what an entry says about itself; who types a name of a failure ("oom", "xid 79") gets
the entries that carry it first, of those the ones that most others refer to.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from denpexd.core.cadence import Limits
from denpexd.core.correlate import Correlator
from denpexd.core.evidence import Evidence, beginning
from denpexd.core.facts import holds
from denpexd.core.rule import Catalog, Rule, Signal
from denpexd.scan.engine import EngineFactory
from denpexd.scan.scanner import Scanner
from denpexd.scan.stream import Stream

_K1, _B = 1.2, 0.6  # BM25's usual saturation; a little less weight on length, since long entries are just thorough
_LEAST = 0.15  # of the best score by words; what is further behind is noise
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]{2,}")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[0-9]+")
_NOTHING = """
a an and are as at be but by can do does for from has have if in into is it its no not of on one or so some than that
the their then there these they this to up was were what when where which while who why will with you your after before
error errors failed failure line file rank ranks
"""
_COMMON = frozenset(_NOTHING.split())  # words that tell nothing
_WEIGHTS = {"id": 4, "title": 4, "tags": 3, "symptoms": 3, "messages": 3, "affects": 1, "answer": 2, "reason": 1}
_SPOKEN = ("log", "kernel", "dump", "launcher")  # kinds of evidence that a text can be


@dataclass(frozen=True, slots=True)
class Found:
    """One failure that the text may be about. `quotes`: (line, what it means) where signals of the rule hold.

    `words`: what both have in common, the most telling first; `score`: comparable within one search only. `named`:
    its id, aliases, tags and title have all words of the text.
    """

    rule: Rule
    score: float
    named: bool = False
    quotes: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()


class Search:
    """Made once for a catalogue."""

    def __init__(self, catalog: Catalog, engine: EngineFactory) -> None:
        self._catalog = catalog
        self._scanner = Scanner([s for s in catalog.signals.values() if s.kind == "log"], engine)
        self._pages = {rule.id: _page(rule) for rule in catalog.rules.values()}
        self._names = {rule.id: _names(rule) for rule in catalog.rules.values()}
        self._referred = Counter(other for rule in catalog.rules.values() for other in rule.entry.related)
        self._spread = Counter(word for page in self._pages.values() for word in page)
        self._usual = sum(map(Counter.total, self._pages.values())) / max(1, len(self._pages))

    def __call__(self, text: str, limit: int = 5) -> list[Found]:
        """The failures that explain the text best, at most `limit`."""
        proven = self._proven(text)
        asked = frozenset(_words(text))
        by_words = self._by_words(asked)
        best = max((score for score, _ in by_words.values()), default=0.0)
        found = []
        for rule_id in {*proven, *(r for r, (score, _) in by_words.items() if score >= _LEAST * best)}:
            rule = self._catalog.rules[rule_id]
            score, words = by_words.get(rule_id, (0.0, ()))
            named = bool(asked) and asked <= frozenset().union(*self._names[rule_id])
            if named:
                score *= (1 + math.log1p(self._referred[rule_id]) / 4) * (1.25 if asked in self._names[rule_id] else 1)
                if asked == {rule.entry.category}:  # "hang": rather one of these than storage that hangs
                    score *= 1.25
            found.append(Found(rule, score, named, proven.get(rule_id, ()), words))
        return sorted(found, key=_order)[:limit]

    # --- signals ----------------------------------------------------------------------------------------------------

    def _proven(self, text: str) -> dict[str, tuple[tuple[str, str], ...]]:
        """For each rule whose signals hold on this text the lines that say so."""
        core = Correlator(self._catalog, "search")
        stream = Stream(self._scanner, "the text")
        data = text.encode(errors="replace")
        events = [*stream.feed(0.0, 0, data + b"\n"), *stream.flush(0.0)]
        core.feed(events)
        found: dict[str, tuple[tuple[str, str], ...]] = {}
        for rule in self._catalog.rules.values():
            quotes = [q for s in self._signals(rule) for q in self._quotes(core, s)]
            if quotes:
                found[rule.id] = tuple(dict.fromkeys(quotes))
        return found

    def _signals(self, rule: Rule) -> Iterable[Signal]:
        """What speaks for this rule and asks for some text; not what only rules something out."""
        ids = [signal.id for signal in rule.signals.values()]
        if rule.correlation is not None:
            roles = rule.correlation.roles
            against = {name for role in roles for name in role.none_of}
            shown = [role for role in roles if role.ranks != "none"]
            ids = [name for role in shown for names in (*role.any_of, role.all_of) for name in names]
            ids = [name for name in dict.fromkeys(ids) if name not in against]
        for signal in map(self._catalog.signals.__getitem__, ids):
            asks = signal.kind == "log" or signal.fact == "xid" or (signal.fact == "raised" and signal.param_matchers)
            if asks and signal.role in (None, "collateral", "kernel"):
                yield signal

    def _quotes(self, core: Correlator, signal: Signal) -> Iterable[tuple[str, str]]:
        for state in core.job.ranks.values():
            for e in holds(core.job, state, signal, core.now, 1e12, Limits()):
                if e.kind in _SPOKEN:
                    yield _one_line(e), signal.means

    # --- words ------------------------------------------------------------------------------------------------------

    def _by_words(self, asked: frozenset[str]) -> dict[str, tuple[float, tuple[str, ...]]]:
        found = {}
        for rule_id, page in self._pages.items():
            long = _K1 * (1 - _B + _B * page.total() / self._usual)
            scores = {w: self._rarity(w) * page[w] * (_K1 + 1) / (page[w] + long) for w in asked if w in page}
            if scores:
                telling = sorted(scores, key=lambda word: (-scores[word], word))
                found[rule_id] = (sum(scores.values()), tuple(telling[:6]))
        return found

    def _rarity(self, word: str) -> float:
        known = self._spread[word]
        return math.log(1 + (len(self._pages) - known + 0.5) / (known + 0.5))


_PRECISION = {"exact": 0, "general": 1, "symptom": 2}


def _order(found: Found) -> tuple[object, ...]:
    """Proof goes before words, the text of one rank before a part of what several must show, exact before general."""
    proof = (_PRECISION[found.rule.precision], found.rule.correlation is not None) if found.quotes else ()
    return (not found.quotes, proof, not found.named, -found.score, found.rule.id)


def _names(rule: Rule) -> set[frozenset[str]]:
    """The words of each name of a failure, its title among them."""
    return {frozenset(_words(name)) for name in (rule.id, *rule.entry.aliases, *rule.entry.tags, rule.entry.title)}


def _page(rule: Rule) -> Counter[str]:
    """The words of an entry with their weights."""
    e = rule.entry
    patterns = [s.pattern or "" for s in rule.signals.values() if s.role is None]
    texts = {
        "id": " ".join((rule.id, *e.aliases)),
        "title": e.title,
        "tags": " ".join(e.tags),
        "symptoms": " ".join(see for see, _ in e.symptoms),
        "messages": " ".join(re.sub(r"\\[A-Za-z]|\(\?P?<?\w*>?", " ", pattern) for pattern in patterns),
        "affects": " ".join(e.affects),
        "answer": e.quick_answer,
        "reason": f"{e.root_cause} {e.mechanism}",
    }
    page: Counter[str] = Counter()
    for name, text in texts.items():
        for word in _words(text):
            page[word] += _WEIGHTS[name]
    return page


def _words(text: str) -> Iterable[str]:
    """Lower-case words, whole and by their parts: ChildFailedError is also child, failed, error."""
    for word in _WORD.findall(text):
        parts = {word, *_PART.findall(word)} if len(word) > 3 else {word}
        yield from (stem for part in parts if (stem := _stem(part.lower())) not in _COMMON and len(stem) > 1)


def _stem(word: str) -> str:
    for end in ("ing", "ed", "es", "s"):
        if word.endswith(end) and len(word) - len(end) >= 4:
            return word.removesuffix(end)
    return word


def _one_line(evidence: Evidence) -> str:
    return beginning(" ".join(evidence.text.split()), 200)
