"""What an examination found: one line, and how to mend it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """`state`: ok, warn (it works, but less well) or bad (something will not work). `mend`: what to do about it."""

    name: str
    state: Literal["ok", "warn", "bad"]
    says: str
    mend: str = ""


def ok(name: str, says: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", says)


def warn(name: str, says: str, mend: str = "") -> Finding:
    """It works, but less well than it could."""
    return Finding(name, "warn", says, mend)


def bad(name: str, says: str, mend: str = "") -> Finding:
    """Something will not work."""
    return Finding(name, "bad", says, mend)
