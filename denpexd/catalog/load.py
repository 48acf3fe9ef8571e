"""Folders of rule files in, one Catalog out; every mistake at once, and a bad file never stops the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import denpexd
from denpexd.catalog.build import RuleBuilder, build_signal
from denpexd.catalog.document import Document, read
from denpexd.catalog.patterns import compile_pattern
from denpexd.catalog.schema import REQUIRED_TEXTS, RuleFile, SignalFile, UseSignal
from denpexd.catalog.validation import validate
from denpexd.core.rule import Catalog, Rule, Signal
from denpexd.errors import RuleError

__all__ = ["Loaded", "Source", "compile_pattern", "load", "read_folders", "shipped_rules"]

SIGNALS_FOLDER = "signals"


File = TypeVar("File", RuleFile, SignalFile)


@dataclass(frozen=True)
class Source(Generic[File]):
    """Where a rule or a file of shared signals came from: the document with its positions, and what it says."""

    document: Document
    file: File


@dataclass(slots=True)
class Loaded:
    """The catalogue with what lint and reports need: sources by rule id or stem of a signal file, and all paths."""

    rules: dict[str, Rule] = field(default_factory=dict)
    signals: dict[str, Signal] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    rule_sources: dict[str, Source[RuleFile]] = field(default_factory=dict)
    signal_sources: dict[str, Source[SignalFile]] = field(default_factory=dict)
    errors: list[RuleError] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)

    @property
    def catalog(self) -> Catalog:
        """What the core is given."""
        return Catalog(rules=self.rules, signals=self.signals, aliases=self.aliases)


def shipped_rules() -> Path:
    """The folder of the shipped rules: inside an installed package, beside the package in a checkout."""
    package = Path(denpexd.__file__).parent
    inside = package / "rules"
    return inside if inside.is_dir() else package.parent / "rules"


def rule_folder(file: Path) -> Path:
    """The folder of rules that a rule file `<folder>/<category>/<id>.yaml` belongs to."""
    folder = file.resolve().parent.parent
    return shipped_rules() if folder == shipped_rules().resolve() else folder


def load(folders: Sequence[Path], *, strict: bool = True) -> tuple[Catalog, list[RuleError]]:
    """The catalogue of all good files, and every mistake of the bad ones.

    `strict=False` accepts rules whose entry texts are incomplete (a site's own quick rules).
    """
    loaded = read_folders(folders, strict=strict)
    return loaded.catalog, loaded.errors


def read_folders(folders: Sequence[Path], *, strict: bool = True) -> Loaded:
    """`load` with the sources. Shared signals of all folders come first, so that any rule can refer to them."""
    loaded = Loaded()
    found = [(folder, sorted(_files(folder, loaded.errors))) for folder in folders]
    for folder, paths in found:
        for path in paths:
            if path.parent == folder / SIGNALS_FOLDER:
                _read_signals(path, loaded)
    shared = dict(loaded.signals)
    for folder, paths in found:
        for path in paths:
            if path.parent != folder / SIGNALS_FOLDER:
                loaded.paths.append(path)
                _read_rule(path, shared, loaded, strict=strict)
    loaded.errors.sort(key=lambda error: (error.path, error.line, error.column))
    return loaded


def _files(folder: Path, errors: list[RuleError]) -> Iterator[Path]:
    if not folder.is_dir():
        errors.append(RuleError(str(folder), 1, 1, "there is no such folder of rules", "check `rules` in the settings"))
        return
    for path in folder.rglob("*"):
        if path.suffix in (".yaml", ".yml") and not path.name.startswith(".") and path.is_file():
            if path.suffix == ".yml":
                errors.append(RuleError(str(path), 1, 1, "the file is not read", "name it .yaml"))
            else:
                yield path


def _read_signals(path: Path, loaded: Loaded) -> None:
    document, errors = read(path)
    loaded.errors += errors
    if document is None:
        return
    file, errors = validate(SignalFile, document)
    loaded.errors += errors
    if file is None and (document := _without_bad_signals(document, errors)):
        file, _ = validate(SignalFile, document)
    if file is None or document is None:
        return
    if path.stem in loaded.signal_sources:
        first = loaded.signal_sources[path.stem].document.path
        loaded.errors.append(document.error((), f"signals called '{path.stem}' exist already", f"rename; see {first}"))
        return
    loaded.signal_sources[path.stem] = Source(document, file)
    for name, written in file.signals.items():
        if not isinstance(written, UseSignal):
            loaded.signals[f"{path.stem}.{name}"] = build_signal(f"{path.stem}.{name}", written)


def _without_bad_signals(document: Document, errors: Sequence[RuleError]) -> Document | None:
    """The document without the signals that have mistakes, so that one of them does not take its file along."""
    signals = document.data.get("signals")
    if not isinstance(signals, dict):
        return None
    starts = {name: document.keys[("signals", name)][0] for name in signals}
    bad = set()
    for error in errors:
        above = [name for name, line in starts.items() if line <= error.line]
        if not above:
            return None
        bad.add(max(above, key=starts.__getitem__))
    good = {name: written for name, written in signals.items() if name not in bad}
    return Document(document.path, {**document.data, "signals": good}, document.keys, document.values)


def _read_rule(path: Path, shared: Mapping[str, Signal], loaded: Loaded, *, strict: bool) -> None:
    document, errors = read(path)
    loaded.errors += errors
    if document is None:
        return
    file, mistakes = validate(RuleFile, document)
    told = {(error.line, error.column) for error in errors}  # a refused alias is no second mistake of the schema
    mistakes = [error for error in mistakes if (error.line, error.column) not in told]
    if strict:
        mistakes += [
            document.error((key,), f"'{key}' is missing") for key in REQUIRED_TEXTS if key not in document.data
        ]
    loaded.errors += mistakes
    if file is None:
        return
    if file.id in loaded.rules:
        first = loaded.rule_sources[file.id].document.path
        loaded.errors.append(document.error(("id",), f"rule '{file.id}' exists already", f"see {first}"))
        return
    rule, unresolved = RuleBuilder(document, file, shared).build()
    loaded.errors += unresolved
    if rule is None or errors or mistakes:
        return
    loaded.rules[rule.id] = rule
    loaded.rule_sources[rule.id] = Source(document, file)
    for alias in rule.entry.aliases:
        loaded.aliases.setdefault(alias, rule.id)
    for signal in rule.signals.values():
        loaded.signals.setdefault(signal.id, signal)
