"""What a well-formed catalogue must also be: scannable, consistent, and with examples that can be run."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from denpexd.catalog.build import BUILT_IN_ROLES
from denpexd.catalog.document import Document, Trail
from denpexd.catalog.examples import read_timeline
from denpexd.catalog.fact_signals import FactSignal
from denpexd.catalog.load import Loaded
from denpexd.catalog.patterns import hyperscan_refusals, shape
from denpexd.catalog.schema import LogSignal, RuleFile, SignalFile, UseSignal
from denpexd.catalog.schema import Signal as Written
from denpexd.catalog.validation import nearest
from denpexd.core.rule import Rule, Signal
from denpexd.errors import RuleError

MIN_LITERAL = 4
"""Bytes: with less to look for, the first stage of the scanner fires on nearly every line."""

PROGRESS_FIELDS = ("step", "total", "loss", "seconds", "epoch")

_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_][a-z0-9_]*)\}")
_NOT_PROSE = frozenset({"signals", "correlation", "examples", "code", "command", "references"})
_URL = re.compile(r"https?://[^\s/.]+\.\S+")


def lint(loaded: Loaded, wanted: Callable[[str], bool] = lambda path: True) -> list[RuleError]:
    """Every finding about the wanted files of what was loaded, in order of file and line."""
    found: list[RuleError] = list(_refused(loaded, wanted))
    for stem, shared in loaded.signal_sources.items():
        found += _signal_file(loaded, stem, shared.document, shared.file)
    for rule_id, source in loaded.rule_sources.items():
        for check in (_names, _references, _unused, _signals, _examples, _placeholders):
            found += check(loaded, loaded.rules[rule_id], source.document, source.file)
    found = [error for error in found if wanted(error.path)]
    return sorted(found, key=lambda error: (error.path, error.line, error.column))


def _names(loaded: Loaded, rule: Rule, document: Document, file: RuleFile) -> Iterator[RuleError]:
    path = Path(document.path)
    if rule.id != path.stem:
        yield document.error(("id",), f"id '{rule.id}' differs from the file name", f"rename one of them ({path.name})")
    if file.category != path.parent.name:
        yield document.error(
            ("category",), f"category '{file.category}' differs from the folder", f"move the file to {file.category}/"
        )
    for number, alias in enumerate(file.aliases):
        owner = loaded.aliases.get(alias)
        if alias in loaded.rules:
            yield _at(document, ("aliases", number), f"alias '{alias}' is the id of a rule", "an alias is a former id")
        elif owner != rule.id:
            yield _at(
                document, ("aliases", number), f"alias '{alias}' belongs to '{owner}' already", "drop one of them"
            )


def _references(loaded: Loaded, rule: Rule, document: Document, file: RuleFile) -> Iterator[RuleError]:
    # a rule that could not be loaded has its own errors; naming it is no further mistake
    known = {*loaded.rules, *loaded.aliases, *(path.stem for path in loaded.paths)}
    for key, names in (("related", file.related), ("supersedes", file.supersedes)):
        for number, name in enumerate(names):
            if name == rule.id:
                yield _at(document, (key, number), "a rule cannot name itself", "remove it")
            elif name not in known:
                yield _at(document, (key, number), f"there is no rule '{name}'", nearest(name, known))
    for number, url in enumerate(file.references):
        if not _URL.fullmatch(url):
            yield _at(document, ("references", number), f"'{url}' is not an http(s) address", "give the whole URL")


def _unused(loaded: Loaded, rule: Rule, document: Document, file: RuleFile) -> Iterator[RuleError]:
    if rule.correlation is None:
        return
    used: set[str] = set()
    for role in (*rule.correlation.roles, *rule.correlation.confirm):
        used.update(role.all_of, role.none_of, *role.any_of)
    for name, signal in rule.signals.items():
        if signal.id not in used:
            yield document.error(("signals", name), f"signal '{name}' is used by no role", "use it or remove it")


def _signals(loaded: Loaded, rule: Rule, document: Document, file: RuleFile) -> Iterator[RuleError]:
    for name, written in file.signals.items():
        yield from _patterns(document, ("signals", name), written)


def _examples(loaded: Loaded, rule: Rule, document: Document, file: RuleFile) -> Iterator[RuleError]:
    if not any(example.fires for example in rule.examples):
        yield document.error(("examples",), "no example fires", "add a timeline with `expect: {initiating: [...]}`")
    if all(example.fires for example in rule.examples):
        yield document.error(("examples",), "there is no near miss", "add a look-alike timeline with `expect: none`")
    names: set[str] = set()
    for number, example in enumerate(rule.examples):
        trail = ("examples", number)
        if example.name in names:
            yield document.error((*trail, "name"), f"example '{example.name}' exists already", "name what differs")
        names.add(example.name)
        _, mistakes = read_timeline(example.timeline, example.world_size, example.observe_until)
        for line, why in mistakes:
            yield document.error((*trail, "timeline"), why, below=line + 1)
        ranks = (*example.initiating, *(example.collateral or ()))
        if ranks and max(ranks) >= example.world_size:
            yield document.error((*trail, "expect"), f"rank {max(ranks)} is not in a world of {example.world_size}")
        if set(example.initiating) & set(example.collateral or ()):
            yield document.error((*trail, "expect"), "a rank is both initiating and collateral", "choose one")


def _placeholders(loaded: Loaded, rule: Rule, document: Document, file: RuleFile) -> Iterator[RuleError]:
    roles = [role.name for role in rule.correlation.roles] if rule.correlation else []
    valid = [*BUILT_IN_ROLES, *roles]
    for trail, text in _prose(document.data, ()):
        for name in _PLACEHOLDER.findall(text):
            if name not in valid:
                yield _at(document, trail, f"'{{{name}}}' is no role", nearest(name, valid))


def _prose(data: Any, trail: Trail) -> Iterator[tuple[Trail, str]]:
    if isinstance(data, str):
        yield trail, data
    elif isinstance(data, list):
        for number, item in enumerate(data):
            yield from _prose(item, (*trail, number))
    elif isinstance(data, dict):
        for key, item in data.items():
            if key not in _NOT_PROSE:
                yield from _prose(item, (*trail, key))


def _signal_file(loaded: Loaded, stem: str, document: Document, file: SignalFile) -> Iterator[RuleError]:
    used = _used_shared(loaded)
    complete = not loaded.errors  # a rule that could not be loaded may be the one that uses a signal
    for name, written in file.signals.items():
        if isinstance(written, UseSignal):
            continue
        trail, signal = ("signals", name), loaded.signals[f"{stem}.{name}"]
        yield from _patterns(document, trail, written)
        yield from _samples(document, trail, signal, {"samples": written.samples, "look_alikes": written.look_alikes})
        if complete and signal.role is None and signal.id not in used:
            yield document.error(trail, f"no rule uses '{signal.id}'", "use it, give it a role, or remove it")
        if signal.role == "progress" and not any(
            f"(?P<{field}>" in (signal.pattern or "") for field in PROGRESS_FIELDS
        ):
            yield document.error(
                trail, "a progress signal captures nothing", f"name one of {', '.join(PROGRESS_FIELDS)}"
            )


def _used_shared(loaded: Loaded) -> set[str]:
    used: set[str] = set()
    for rule in loaded.rules.values():
        used.update(signal.id for signal in rule.signals.values())
        if rule.correlation:
            for role in (*rule.correlation.roles, *rule.correlation.confirm):
                used.update(role.all_of, role.none_of, *role.any_of)
    return used


def _samples(
    document: Document, trail: Trail, signal: Signal, lines: Mapping[str, tuple[str, ...]]
) -> Iterator[RuleError]:
    if signal.kind == "fact":
        if any(lines.values()):
            yield document.error(trail, "a fact has no samples", "remove samples and look_alikes")
        return
    if signal.kind == "log" and not lines["samples"]:
        yield document.error(trail, "a shared log signal needs samples", "add a real line that must match")
    for number, line in enumerate(lines["samples"]):
        if not _holds(signal, line):
            yield _at(
                document, (*trail, "samples", number), "the sample does not match", "mend the pattern or the line"
            )
    for number, line in enumerate(lines["look_alikes"]):
        if _holds(signal, line):
            yield _at(document, (*trail, "look_alikes", number), "the look-alike matches", "narrow it, or use `except`")


def _holds(signal: Signal, line: str) -> bool:
    found = signal.matcher is not None and signal.matcher.search(line) is not None
    return found and not (signal.exclude and signal.exclude.search(line))


def _patterns(document: Document, trail: Trail, written: Written) -> Iterator[RuleError]:
    for key, pattern in _written_patterns(written).items():
        here = (*trail, key)
        try:
            form = shape(pattern)
        except ValueError as error:
            yield document.error(here, str(error), "use what RE2 and Python's re have in common", at_value=True)
            continue
        if form.empty:
            yield document.error(here, "the pattern matches the empty string", "say what must be there", at_value=True)
            continue
        if key != "log" or not isinstance(written, LogSignal):
            continue
        if form.literal < MIN_LITERAL and not written.broad:
            why = f"no literal of at least {MIN_LITERAL} bytes is in every match"
            yield document.error(here, why, "name a word of the line, or add `broad: <why it cannot>`", at_value=True)


def _refused(loaded: Loaded, wanted: Callable[[str], bool]) -> Iterator[RuleError]:
    """Log patterns that the fast engine cannot take."""
    shared = [(source.document, source.file.signals) for source in loaded.signal_sources.values()]
    own = [(source.document, source.file.signals) for source in loaded.rule_sources.values()]
    logs = [
        (document, ("signals", name, "log"), written.log)
        for document, signals in (*shared, *own)
        if wanted(document.path)
        for name, written in signals.items()
        if isinstance(written, LogSignal) and _readable(written.log)
    ]
    refusals = hyperscan_refusals(pattern for _, _, pattern in logs)
    for document, trail, pattern in logs:
        if why := refusals.get(pattern):
            yield document.error(trail, f"hyperscan cannot compile the pattern: {why}", at_value=True)


def _readable(pattern: str) -> bool:
    try:
        return not shape(pattern).empty
    except ValueError:
        return False


def _written_patterns(written: Written) -> dict[str, str]:
    if isinstance(written, UseSignal):
        return {}
    if isinstance(written, FactSignal):
        return {key: str(value) for key, value in written.parameters().items() if key in written.re2_keys}
    patterns = {"log": written.log} if isinstance(written, LogSignal) else {"frame": written.frame}
    return patterns | ({"except": written.except_} if written.except_ else {})


def _at(document: Document, trail: Trail, why: str, hint: str = "") -> RuleError:
    return document.error(trail, why, hint, at_value=True)
