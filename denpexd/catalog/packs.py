"""Packs of rules: the shipped one, folders of the settings, and installed distributions that bring rules.

A distribution names its pack by an entry point of the group `denpexd.rules`, whose value is a package and perhaps a
folder in it: `my-pack = "my_package:rules"`. Nothing of it is imported: rules are data, and only its files are read.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from denpexd.catalog.load import Loaded, read_folders, shipped_rules
from denpexd.core.rule import Catalog
from denpexd.errors import RuleError

GROUP = "denpexd.rules"
SHIPPED = "denpexd"


@dataclass(frozen=True, slots=True)
class Pack:
    """Where rules come from. `kind`: shipped, folder (of the settings) or installed; `origin`: the distribution."""

    name: str
    folder: Path
    kind: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class PackState:
    """What became of a pack: how many rules and shared signals are in force, and every mistake in it."""

    pack: Pack
    rules: int
    signals: int
    errors: tuple[RuleError, ...]


@dataclass(frozen=True, slots=True)
class Packs:
    """All packs together. A file with a mistake is left out, and nothing else."""

    catalog: Catalog
    states: tuple[PackState, ...]

    @property
    def errors(self) -> tuple[RuleError, ...]:
        """Every mistake, pack by pack."""
        return tuple(error for state in self.states for error in state.errors)


Installed = Callable[[], Sequence[EntryPoint]]


def installed_entry_points() -> Sequence[EntryPoint]:
    """What is installed for denpexd, in an order that does not depend on the file system."""
    return sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))


def load_packs(folders: Sequence[Path], *, installed: Installed = installed_entry_points) -> Packs:
    """The shipped rules, those of `folders` and of installed distributions. Never raises for what is in them."""
    packs = [Pack(SHIPPED, shipped_rules(), "shipped")]
    packs += [Pack(_name(folder, folders), folder, "folder") for folder in folders]
    lost: list[PackState] = []
    for point in installed():
        found = _pack_of(point)
        if isinstance(found, Pack):
            packs.append(found)
        else:
            lost.append(PackState(Pack(point.name, Path(), "installed", _origin(point)), 0, 0, (found,)))
    once: dict[Path, Pack] = {}  # one folder, one pack
    for pack in packs:
        once.setdefault(pack.folder.resolve(), pack)
    packs = list(once.values())
    loaded = read_folders([pack.folder for pack in packs])
    return Packs(loaded.catalog, (*(_state(pack, loaded) for pack in packs), *lost))


def _pack_of(point: EntryPoint) -> Pack | RuleError:
    """The folder that an entry point names, found without importing anything."""
    package, _, inside = point.value.partition(":")
    where = f"entry point {point.name} of {_origin(point)}"
    try:
        spec = importlib.util.find_spec(package.split(".")[0])
    except (ImportError, ValueError):
        spec = None
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place, *package.split(".")[1:], *inside.split("."))
        if folder.is_dir():
            return Pack(point.name, folder, "installed", _origin(point))
    hint = f"'{point.value}' must be a package, or a package and a folder in it as in my_package:rules"
    return RuleError(where, 1, 1, "there is no such folder of rules", hint)


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown distribution"


def _name(folder: Path, folders: Sequence[Path]) -> str:
    """The last part of its path, or all of it where that would be ambiguous."""
    short = folder.resolve().name
    alike = [other for other in folders if other.resolve().name == short]
    return short if len(alike) == 1 and short != SHIPPED else str(folder)


def _state(pack: Pack, loaded: Loaded) -> PackState:
    rules = sum(_within(source.document.path, pack.folder) for source in loaded.rule_sources.values())
    shared = [s for s in loaded.signal_sources.values() if _within(s.document.path, pack.folder)]
    errors = tuple(error for error in loaded.errors if _within(error.path, pack.folder))
    return PackState(pack, rules, sum(len(source.file.signals) for source in shared), errors)


def _within(path: str, folder: Path) -> bool:
    return Path(path) == folder or folder in Path(path).parents
