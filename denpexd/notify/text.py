"""Text of strangers made safe and short: escapes, cuts, ranks, times. Shared by the report and the chat messages."""

import json
import re
import textwrap
import unicodedata
from collections.abc import Collection, Mapping, Sequence

from denpexd.clock import iso
from denpexd.core.numbers import ranks_text

# An axis of events that starts at the Unix epoch is wall time; a smaller number is seconds of a recording.
UNIX_SINCE = 1_000_000_000.0

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
# Mentions, and links whose text can say another address, that chats act upon even in plain text.
_MENTION = re.compile(
    r"(?<=<)(?=[@#!:]|users/|at>|https?:|mailto:)|(?<=\])(?=\()|(?<![\w@])@(?=\w)|@(?=everyone|here|channel)",
    re.IGNORECASE,
)

HEAD = "What changed since the last good run"
UNEQUAL = "What is not the same for all ranks"
_MOST = 8


def visible(text: str) -> str:
    r"""Control, direction and invisible characters as `\x1b`, `\u202e`; tabs as blanks; line ends stay."""
    return _INVISIBLE.sub(lambda m: ascii(m[0])[1:-1], text.replace("\r\n", "\n").expandtabs(4))


def one_line(value: object) -> str:
    """Any value as one safe line."""
    return " ".join(visible(str(value)).split()) if value is not None else ""


def printable(text: str) -> str:
    """A whole page for a terminal: of control characters only line ends and our own colours stay."""
    parts = _COLOUR.split(text)
    return "".join(part if number % 2 else visible(part) for number, part in enumerate(parts))


def json_text(value: object, indent: int | None = None) -> str:
    """A value as JSON that people can read and that no terminal acts upon: what is invisible is escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _INVISIBLE.sub(lambda m: json.dumps(m[0])[1:-1], text)


def unmentioned(text: str) -> str:
    """A text for a chat in which nothing calls a person and no link can hide where it leads."""
    return _MENTION.sub(lambda m: f"{m[0]} ", text)


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, width: int) -> str:
    """At most `width` columns; what was longer ends in an ellipsis."""
    if cells(text) <= width:
        return text
    kept, room = "", width - 1
    for character in text:
        room -= cells(character)
        if room < 0:
            break
        kept += character
    return kept + "…"


def cut_chars(text: str, limit: int) -> str:
    """At most `limit` characters, for services that count those."""
    return text if len(text) <= limit else text[: max(0, limit - 1)].rstrip() + "…"


def wrap(text: str, width: int, indent: str = "", hang: str | None = None) -> list[str]:
    """Paragraphs broken into lines; an empty text gives no line."""
    lines: list[str] = []
    for paragraph in visible(text).splitlines():
        lines += textwrap.wrap(
            paragraph,
            width,
            initial_indent=indent if not lines else (hang if hang is not None else indent),
            subsequent_indent=hang if hang is not None else indent,
            break_on_hyphens=False,
        )
    return lines


def excerpt(text: str, lines: int = 8) -> list[str]:
    """The lines of a quotation; of a long one the first two and the end, where tracebacks say what happened."""
    found = [line.rstrip() for line in visible(text).rstrip().split("\n")]
    if len(found) <= lines:
        return found
    return [*found[:2], f"… {len(found) - lines + 1} lines …", *found[-(lines - 3) :]]


def rank_list(ranks: Collection[int]) -> str:
    """`0-3,7` of [0, 1, 2, 3, 7]; -1 is the launcher."""
    launcher = ["launcher"] if min(ranks, default=0) < 0 else []
    return ",".join([*launcher, *filter(None, [ranks_text(sorted({r for r in ranks if r >= 0}))])])


def rank_words(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2,5`, `launcher`."""
    if list(ranks) == [-1]:
        return "launcher"
    return f"rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks)}"


def moment(t: object) -> str:
    """A time of a verdict for people: UTC where the axis is Unix time, else seconds of the recording."""
    if not isinstance(t, int | float):
        return ""
    return iso(t)[:19].replace("T", " ") + " UTC" if t >= UNIX_SINCE else f"{t:g} s"


def explain_command(failure: object) -> str:
    """The command that explains a failure; empty for what denpexd tells of itself."""
    name = one_line(failure)
    return "" if not name or name.startswith("denpexd-") else f"denpexd explain {name}"


def ranks(verdict: Mapping[str, object], name: str) -> list[int]:
    """A list of ranks in a verdict; empty where it has none."""
    value = verdict.get(name)
    return [rank for rank in value if isinstance(rank, int)] if isinstance(value, list | tuple) else []


def items(verdict: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    """A list of mappings in a verdict; plain texts become {"text": ...}."""
    value = verdict.get(name)
    if not isinstance(value, list | tuple):
        return []
    return [item if isinstance(item, Mapping) else {"text": str(item)} for item in value]


def string(verdict: Mapping[str, object], name: str) -> str:
    """A text in a verdict, safe, line ends kept; empty where it has none."""
    value = verdict.get(name)
    return visible(str(value)).strip() if value is not None else ""


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
