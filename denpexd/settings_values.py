"""Values as people write them in a configuration: durations, sizes, secrets and where they lie, one or many."""

import os
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, SecretStr

from denpexd.errors import SettingsError

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


class Section(BaseModel):
    """A group of options; unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _seconds(value: object) -> object:
    """`90s`, `1m30s`, `500ms` as seconds; a bare number has no unit and is refused."""
    if isinstance(value, float):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text := str(value).strip())
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("a duration has a unit, such as 500ms, 30s, 20m, 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _duration_text(seconds: float) -> str:
    for unit in ("h", "m", "s"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:g}{unit}"
    return f"{seconds * 1000:g}ms"


def _byte_count(value: object) -> object:
    """`64KiB`, `1MB`, `512B` as bytes."""
    found = re.fullmatch(r"(\d+)\s?(B|[KMG]i?B)", str(value).strip())
    if found is None:
        raise ValueError("a size has a unit, such as 512B, 64KiB, 1MiB")
    return int(found[1]) * _BYTES[found[2]]


def _size_text(size: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        if size >= _BYTES[unit] and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def masked_url(url: str) -> str:
    """A URL fit to be shown: scheme and host for http(s), the scheme alone for services whose host is the secret."""
    scheme, _, rest = url.partition("://")
    if not rest:
        return "***"
    host = (urlsplit(url).hostname or "") if scheme in ("http", "https") else ""
    return f"{scheme}://{host}/***" if host else f"{scheme}://***"


Duration = Annotated[float, BeforeValidator(_seconds), PlainSerializer(_duration_text, when_used="json")]
Size = Annotated[int, BeforeValidator(_byte_count), PlainSerializer(_size_text, when_used="json")]
SecretUrl = Annotated[
    SecretStr, PlainSerializer(lambda secret: masked_url(secret.get_secret_value()), return_type=str, when_used="json")
]


def check_http_url(url: str) -> str:
    """The URL if it is an http(s) URL with a host, else ValueError; the message does not hold the URL."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and url.isprintable() and " " not in url
        good = good and parts.port != 0
    except ValueError:  # its text holds what should be a port, perhaps a password without its @
        good = False
    if not good:
        raise ValueError("a URL starts with http:// or https:// and names a host; a port is a number from 1 to 65535")
    return url


def secret_file(file: Path) -> Path:
    """Where the file is: one without a folder is one of systemd's credentials, where there are any."""
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    return Path(credentials) / file if credentials and file.parent == Path() else file


def read_secret(value: SecretStr | None, file: Path | None) -> str:
    """The secret given directly or the stripped content of its file, read now; SettingsError without the content.

    A file without a folder is one of systemd's credentials, where there are any.
    """
    if value is not None:
        return value.get_secret_value()
    if file is None:
        raise SettingsError("neither a value nor a file is configured")
    file = secret_file(file)
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingsError(f"cannot read {file}: {reason}; it must be readable by the user of denpexd") from None
    if not secret:
        raise SettingsError(f"{file} is empty")
    return secret
