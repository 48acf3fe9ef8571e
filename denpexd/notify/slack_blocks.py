"""A message as Slack shows it: Block Kit, https://api.slack.com/reference/block-kit/blocks. Pure.

Slack's limits hold by construction: 150 characters a header, 3,000 a section, 2,000 a field, 10 fields, 50 blocks.
`&`, `<` and `>` are escaped and automatic links are off (`verbatim`), so that no text of a job calls anybody.
"""

from collections.abc import Mapping, Sequence
from html import unescape

from denpexd.notify.message import Message, Quote, Step
from denpexd.notify.text import cut_chars, explain_command, one_line, rank_words, ranks, unmentioned

HEADER, SECTION, FIELDS, FALLBACK = 150, 3000, 10, 1000
# Of all blocks together Slack takes, undocumented, some 11,000 characters; this is what the parts may have of it.
_ANSWER, _CAUSE, _STEPS, _DOUBTS, _VALUE, _LINKS = 1000, 700, 2000, 700, 200, 1200
_SECTIONS, _OWN = 3, 2500  # of a text of one's own, and characters of each
_MARKS = {"critical": "🔴", "high": "🟠", "medium": "🟡", "low": "🔵"}
_SAYS = {"reopened": "🔁 It is back."}
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

Block = dict[str, object]


def blocks(told: Message) -> list[Block]:
    """The blocks of the message that stands in the channel."""
    found = [_header(told), _section(mrkdwn(told.answer, _ANSWER))] if told.answer else [_header(told)]
    if fields := [_text(f"*{mrkdwn(name, 40)}*\n{mrkdwn(value, _VALUE)}") for name, value in _shown(told)]:
        found.append({"type": "section", "fields": fields[:FIELDS]})
    if not told.closed:
        found += [_section(f"*Why*\n{mrkdwn(told.cause, _CAUSE)}")] if told.cause else []
        found += [_section(_numbered(told.steps))] if told.steps else []
        found += [_section(check)] if (check := _check(told)) else []
        found += [_section(_quotes(told.evidence))] if told.evidence else []
        found += [_section(doubts)] if (doubts := _doubts(told)) else []
    return [*found, _foot(told)]


def custom(told: Message, title: str, body: str) -> list[Block]:
    """The same of a text of one's own, which is mrkdwn already; long bodies become several sections, three at most."""
    found = [_header(told, unescape(title))]
    while body and len(found) <= _SECTIONS:
        part = body if len(body) <= _OWN else body[:_OWN]
        if len(part) < len(body):  # at the end of a line or a word: never inside of an escape
            part = next((part.rpartition(end)[0] for end in "\n " if part.rpartition(end)[0]), part)
        found.append(_section(part))
        body = body[len(part) :].lstrip()
    return [*found, _foot(told)]


def fallback(told: Message) -> str:
    """The text of a notification, also what is shown where blocks cannot be."""
    return mrkdwn(f"{_mark(told)} {told.headline}: {told.answer}" if told.answer else told.headline, FALLBACK)


def mrkdwn(text: str, limit: int) -> str:
    """A text that is shown as it is, escaped, at most `limit` characters."""
    return escaped(unmentioned(text[: limit + 1]).replace("```", "'''"), limit)


def escaped(text: str, limit: int) -> str:
    """The same for what is to be copied: nothing is put between its characters."""
    pieces = [_ESCAPES.get(c, c) for c in text[: limit + 1]]  # nothing gets shorter by escaping
    if sum(map(len, pieces)) <= limit:
        return "".join(pieces)
    kept, room = list[str](), limit - 1
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            break
        kept.append(piece)
    return "".join(kept) + "…"


def head(verdict: Mapping[str, object]) -> dict[str, object]:
    """What of a verdict is worth a line in the thread when it changes."""
    return {
        "verdict": f"{one_line(verdict.get('title'))} ({one_line(verdict.get('certainty'))})",
        "severity": one_line(verdict.get("severity")),
        "started by": _who(verdict, "initiating_ranks"),
        "victims": _who(verdict, "collateral_ranks"),
    }


def reply(before: Mapping[str, object], told: Message, now: Mapping[str, object], reason: str) -> str:
    """The line in the thread: what changed since the last message."""
    facts = dict(told.facts)
    idle = facts.get("idle so far", "")
    if told.closed:
        return mrkdwn("✅ Resolved. " + told.answer + (f" Idle: {idle}." if idle else ""), _ANSWER)
    if reason == "acknowledged":
        return mrkdwn(f"👀 Acknowledged {facts.get('acknowledged', '')}".rstrip(), _ANSWER)
    lines = [mrkdwn(_SAYS[reason], 60)] if reason in _SAYS else []
    lines += [
        f"*{name}*: {mrkdwn(str(value), _VALUE)} (was {mrkdwn(str(before.get(name, 'unknown')), _VALUE)})"
        for name, value in now.items()
        if value != before.get(name)
    ]
    if not lines or reason == "reminder":
        lines.append("Still open" + (f": {mrkdwn(idle, _VALUE)}" if idle else "."))
    return "\n".join(lines)


def _who(verdict: Mapping[str, object], name: str) -> str:
    found = ranks(verdict, name)
    return cut_chars(rank_words(found), 200) if found else "nobody"


def _mark(told: Message) -> str:
    return "✅" if told.closed else _MARKS.get(told.severity, "🔴")


def _header(told: Message, title: str = "") -> Block:
    text = cut_chars(unmentioned(title or f"{_mark(told)} {told.headline}"), HEADER)
    return {"type": "header", "text": {"type": "plain_text", "text": text, "emoji": False}}


def _shown(told: Message) -> list[tuple[str, str]]:
    return [(name, value) for name, value in told.facts if name != "certainty"]


def _text(text: str) -> Block:
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _section(text: str) -> Block:
    return {"type": "section", "text": _text(text)}


def code(text: str) -> str:
    """A command as code, on one line or as a block; it cannot end the code itself."""
    plain = escaped(text.replace("`", "'"), 700)
    return f"```{plain}```" if "\n" in plain else f"`{plain}`"


def _numbered(steps: Sequence[Step]) -> str:
    text = "*What to do*"
    for number, step in enumerate(steps, 1):
        risk = f" _({mrkdwn(step.risk, 20)})_" if step.risk else ""
        line = f"\n{number}. {mrkdwn(step.do, 400)}{risk}" + (f"\n{code(step.command)}" if step.command else "")
        if len(text) + len(line) > _STEPS:
            return text + f"\n… {len(steps) - number + 1} more"
        text += line
    return text


def _check(told: Message) -> str:
    text = f"*How to check that it worked*\n{code(told.verification)}" if told.verification else ""
    if told.resume_safe:
        text += ("\n" if text else "") + f"*Resume from the last checkpoint*: {mrkdwn(told.resume_safe, 400)}"
    return text


def _quotes(quotes: Sequence[Quote]) -> str:
    text = "*Evidence*"
    for quote in quotes:
        line = f"\n{mrkdwn(quote.origin, 150)}\n```{escaped(quote.text.replace('`', chr(39)), 320) or ' '}```"
        text += line + (f"\n{mrkdwn(quote.means, 150)}" if quote.means else "")
    return text


def _doubts(told: Message) -> str:
    lines = [mrkdwn(line, 400) for line in told.changed]
    lines += [f"*Missing*: {mrkdwn(line, 300)}" for line in told.missing]
    text = "\n".join(lines)
    return text if len(text) <= _DOUBTS else text[:_DOUBTS].rpartition("\n")[0]  # whole lines: no escape is cut


def _foot(told: Message) -> Block:
    room, shown = _LINKS, list[str]()
    for name, url in told.links:
        link = f"<{_address(url)}|{mrkdwn(name, 60).replace('|', '/')}>"
        if len(link) <= room:
            shown.append(link)
            room -= len(link)
    explain = mrkdwn(explain_command(told.failure), 220)
    tail = "  ·  ".join([f"`{explain}`"] * bool(explain) + [f"incident {mrkdwn(told.key, 300)}"])
    lines = ["  ·  ".join(shown), tail] if shown else [tail]
    return {"type": "context", "elements": [_text("\n".join(lines))]}


def _address(url: str) -> str:
    return "".join({"<": "%3C", ">": "%3E", "|": "%7C", "&": "&amp;"}.get(c, c) for c in one_line(url))
