"""Which place gave each option its value: `denpexd config show --origin`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from denpexd.settings import Settings, sources_of
from denpexd.settings_sources import Place, Source, dotted


def origins(
    settings: Settings, path: Path | None, overrides: Mapping[str, Any], environ: Mapping[str, str]
) -> list[tuple[str, Any, str]]:
    """Name, value and origin of every option of settings that `load` made of the same arguments; secrets masked."""
    sources, shown = sources_of(path, overrides, environ), settings.model_dump(mode="json")
    return [(dotted(at), value, came_from(at, sources)) for at, value in leaves(shown)]


def leaves(value: Any, at: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every single option of nested values with its place; a list of plain values is one."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from leaves(inner, (*at, name))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from leaves(item, (*at, number))
    else:
        yield at, value


def came_from(at: Place, sources: Sequence[Source]) -> str:
    """Where the value of an option comes from: file:line:column, a variable, the command line, or `default`."""
    # As in `merge`: a list belongs as a whole to the last source that gave it.
    owned = next((n for n, part in enumerate(at) if isinstance(part, int)), len(at))
    for source in reversed(sources):
        if _holds(source.values, at[:owned]):
            if not _holds(source.values, at):
                break
            known = [n for n in range(1, len(at) + 1) if at[:n] in source.places]
            return source.places[at[: max(known)]] if known else "default"
    return "default"


def _holds(values: Any, at: Place) -> bool:
    for part in at:
        is_there = part < len(values) if isinstance(values, list) and isinstance(part, int) else False
        if not is_there and not (isinstance(values, Mapping) and part in values):
            return False
        values = values[part]
    return True
