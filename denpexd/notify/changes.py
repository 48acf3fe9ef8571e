"""What changed since the last good run of a job, in lines for reports and messages."""

from collections.abc import Mapping

from denpexd.notify.text import items, one_line

HEAD = "What changed since the last good run"
UNEQUAL = "What is not the same for all ranks"
_MOST = 8


def changes(verdict: Mapping[str, object]) -> tuple[list[str], list[str]]:
    """Differences from the last good run, and among the ranks; both empty where nothing is known of the start."""
    found = verdict.get("changed")
    if not isinstance(found, Mapping):
        return [], []
    since = found.get("since")
    told = _texts(found, "differences", _MOST)
    if isinstance(since, Mapping):
        when = " ".join(filter(None, [_attempt(since), one_line(since.get("at"))]))
        told = told or [f"nothing that was recorded ({when})"]
    return told, _texts(found, "unequal", _MOST)


def short(verdict: Mapping[str, object]) -> list[str]:
    """The same as a line or two for a message; that nothing changed is left out."""
    found = verdict.get("changed")
    if not isinstance(found, Mapping):
        return []
    said = []
    for head, name in (("Changed since the last good run", "differences"), ("Not the same for all ranks", "unequal")):
        if texts := _texts(found, name, 3):
            said.append(f"{head}: {'; '.join(texts)}.")
    return said


def _attempt(since: Mapping[str, object]) -> str:
    attempt = since.get("attempt")
    return f"attempt {attempt}," if isinstance(attempt, int) and attempt else ""


def _texts(found: Mapping[str, object], name: str, most: int) -> list[str]:
    texts = [one_line(item.get("text")) for item in items(found, name)]
    return texts[:most] + ([f"and {len(texts) - most} more"] if len(texts) > most else [])
