"""Where settings come from: the YAML file, the environment, the flags; and what to say when one of them is wrong.

Knows nothing of single options: the model is an argument. Every value keeps its place (file:line:column, name of the
variable, name of the flag), so that a mistake is reported where it was made.
"""

import difflib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

Place = tuple[str | int, ...]

MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 20
# Kubernetes injects these into every pod of a namespace that has a Service named "denpexd".
_SERVICE_VARIABLES = ("DENPEXD_SERVICE_", "DENPEXD_PORT_")


@dataclass
class Source:
    """What one source gave: nested values, the place of each, and what was wrong already while reading."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Place, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


class _Loader(yaml.SafeLoader):
    """Plain YAML: no tags, no aliases, and of the implicit types only null, true, false and decimal integers."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # untyped in PyYAML's stubs
            raise yaml.MarkedYAMLError(None, None, "aliases (*name) are not allowed", mark)
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:null", r"~|null|", ["~", "n", ""]),
    ("tag:yaml.org,2002:bool", r"true|false", list("tf")),
    ("tag:yaml.org,2002:int", r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)


_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "str", "seq", "map")}


def read_file(path: Path) -> Source:
    """The YAML file with the line and column of every key and value; syntax errors and duplicate keys as errors."""
    source = Source()
    try:
        if os.geteuid() == 0 and is_open_to_all(path):
            # It says which files root reads and where alerts go.
            source.errors.append(f"{path}: every user of this machine can change it: chmod o-w, also its folder")
        if path.stat().st_size > MAX_FILE_BYTES:
            source.errors.append(f"{path}: larger than {MAX_FILE_BYTES} bytes, this is no configuration file")
            return source
        text = path.read_text(encoding="utf-8")
        if not text.strip():  # as a full disk, or an editor at work, leaves it: its sinks must not be taken away
            source.errors.append(f"{path}: is empty; remove it, or write {{}} into it, for the defaults")
        _parse(text, str(path), source)
    except OSError as error:
        source.errors.append(f"{path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        source.errors.append(f"{path}: is not UTF-8 text")
    return source


def is_open_to_all(path: Path) -> bool:
    """Whether every user of the machine can change a file, or put another one in its place."""
    info, folder = path.stat(), path.resolve().parent.stat()
    in_place = folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX
    return bool(info.st_mode & stat.S_IWOTH or in_place)


def _parse(text: str, name: str, source: Source) -> None:
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        value = None if root is None else _value(loader, root, (), name, source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        source.errors.append(f"{where}: not valid YAML: {error.problem or error.context}")
        return
    except (yaml.YAMLError, RecursionError) as error:
        source.errors.append(f"{name}: not valid YAML: {' '.join(str(error).split())}")
        return
    if isinstance(value, dict):
        source.values = value
    elif value is not None:
        source.errors.append(f"{name}:1:1: the file must be a mapping of options, such as `job: my-run`")


def _value(loader: _Loader, node: yaml.Node, at: Place, name: str, source: Source) -> Any:
    where = f"{name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
    source.places.setdefault(at, where)
    if len(at) > MAX_DEPTH:
        raise yaml.MarkedYAMLError(None, None, f"nested deeper than {MAX_DEPTH}", node.start_mark)
    if node.tag not in _TAGS:
        raise yaml.MarkedYAMLError(None, None, f"tag {node.tag} is not allowed", node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item, (*at, i), name, source) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key, mark = str(key_node.value), key_node.start_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}"
        if key in result:
            source.errors.append(f"{where}: {dotted((*at, key))} is given twice")
        source.places[(*at, key)] = where
        result[key] = _value(loader, value_node, (*at, key), name, source)
    return result


class _Environment(EnvSettingsSource):
    """pydantic-settings' reading of the environment, from a mapping; lists and mappings are written in YAML or JSON."""

    def __init__(self, model: type[BaseSettings], variables: Mapping[str, str]) -> None:
        self._variables = {name.lower(): value for name, value in variables.items()}
        super().__init__(model)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._variables

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """A list or mapping; what cannot be parsed stays text, and validation says what it should have been."""
        try:
            return yaml.load(value, _Loader)  # noqa: S506  a SafeLoader with fewer types
        except (yaml.YAMLError, RecursionError):
            return value


def read_environ(environ: Mapping[str, str], model: type[BaseSettings]) -> Source:
    """The DENPEXD_* variables; unknown ones as errors, except those that Kubernetes injects. Empty means unset."""
    source = Source()
    known = {"DENPEXD_" + "__".join(at).upper(): at for at in _options(model)}
    taken: dict[str, str] = {}
    for name, value in sorted(environ.items()):
        if not name.startswith("DENPEXD_") or name == "DENPEXD_PORT" or name.startswith(_SERVICE_VARIABLES):
            continue
        if name not in known:
            source.errors.append(f"environment: unknown variable {name}{nearest(name, known)}")
        elif value:
            taken[name] = value
            source.places[known[name]] = f"environment variable {name}"
    source.values = _Environment(model, taken)()
    return source


def _options(model: type[BaseModel], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, info in model.model_fields.items():
        inner = models_of(info.annotation)
        if len(inner) == 1 and not get_args(info.annotation):
            yield from _options(inner[0], (*at, name))
        else:
            yield (*at, name)


def from_flags(overrides: Mapping[str, Any]) -> Source:
    """Values of flags, nested like the file; None means not given."""
    source = Source()

    def walk(values: Mapping[str, Any], at: tuple[str, ...]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in values.items():
            if value is None:
                continue
            source.places[(*at, name)] = f"command line, {dotted((*at, name))}"
            kept[name] = walk(value, (*at, name)) if isinstance(value, Mapping) else value
        return kept

    source.values = walk(overrides, ())
    return source


def merge(sources: Sequence[Source]) -> dict[str, Any]:
    """One nested mapping; later sources win, mappings are merged, lists are replaced."""
    result: dict[str, Any] = {}
    for source in sources:
        _merge_into(result, source.values)
    return result


def _merge_into(target: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge_into(target[name], value)
        elif isinstance(value, dict):
            target[name] = {}
            _merge_into(target[name], value)
        else:
            target[name] = value


def complaints(error: ValidationError, sources: Sequence[Source], model: type[BaseModel]) -> list[str]:
    """One line for every mistake: place, option, what is wrong and what would be right."""
    return [_complaint(dict(item), sources, model) for item in error.errors()]


def _complaint(item: dict[str, Any], sources: Sequence[Source], model: type[BaseModel]) -> str:
    raw: Place = tuple(item["loc"])
    at = raw[:2] + raw[3:] if len(raw) > 2 and isinstance(raw[1], int) else raw  # without the tag of the union
    where = _origin(at, sources)
    if item["type"] == "extra_forbidden":
        key = str(at[-1])
        valid = _valid_names(model, raw)
        return f"{where}unknown option {dotted(at)}{nearest(key, valid)}"
    if item["type"] == "union_tag_invalid":
        tag, expected = str(item["ctx"]["tag"]), item["ctx"]["expected_tags"].replace("'", "")
        others = f"; valid types are {expected}; apprise knows many services more (docs/alerts.md)"
        return f"{where}{dotted(at)}: unknown type {tag!r}{others}"
    if item["type"] == "union_tag_not_found":
        return f"{where}{dotted(at)}: `type` is missing, such as `type: webhook`"
    why = item["msg"].removeprefix("Value error, ")
    got = item.get("input")
    shown = f", not {got!r}" if at[:1] != ("sinks",) and isinstance(got, str | int) and len(str(got)) < 80 else ""
    return f"{where}{dotted(at) + ': ' if at else ''}{why[:1].lower()}{why[1:]}{shown}"


def _origin(at: Place, sources: Sequence[Source]) -> str:
    # A list belongs as a whole to the last source that gave it; mappings are merged option by option.
    owned = next((i for i, part in enumerate(at) if isinstance(part, int)), len(at))
    for prefix in (at[:n] for n in range(owned, 0, -1)):
        for source in reversed(sources):
            if prefix in source.places:
                longest = max((n for n in range(len(at) + 1) if at[:n] in source.places), default=owned)
                return f"{source.places[at[:longest]]}: "
    return ""


def _valid_names(model: type[BaseModel], at: Place) -> list[str]:
    here = [model]
    for part in at[:-1]:
        fields = [m.model_fields[str(part)] for m in here if part in m.model_fields]
        if fields:
            here = models_of(fields[0].annotation)
        else:  # the tag of a union picks one model, the index of a list none
            here = [
                m for m in here if "type" in m.model_fields and part in get_args(m.model_fields["type"].annotation)
            ] or here
    return sorted({name for m in here for name in m.model_fields})


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """The models inside an annotation: itself, or the members of its list, union or Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_of(inner)]


def nearest(name: str, valid: Iterator[str] | Sequence[str] | Mapping[str, Any]) -> str:
    """`; did you mean X?`, or the valid names where none is near and they are few."""
    names = list(valid)
    if close := difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f"; did you mean {close[0]}?"
    return f"; valid are {', '.join(names)}" if len(names) <= 20 else ""


def dotted(at: Place) -> str:
    """`sinks[0].url` of ("sinks", 0, "url")."""
    text = ""
    for part in at:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """systemd's folder, else the XDG one, else below the home directory."""
    if given := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(given)
    xdg = environ.get("XDG_STATE_HOME", "")
    home = environ.get("HOME")
    base = Path(xdg) if xdg.startswith("/") else (Path(home) if home else Path.home()) / ".local" / "state"
    return base / "denpexd"
