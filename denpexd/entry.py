"""An encyclopedia entry for people and programs: `denpexd explain`."""

import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from denpexd.core.rule import Rule

SILENT = {"{initiating}": "R", "{collateral}": "the others", "{unheard}": "unheard ranks"}


def entry_json(rule: Rule) -> dict[str, Any]:
    """Every field of the entry, with the ids it relates to."""
    entry = asdict(rule.entry)
    entry["code"] = [{"stack": stack, "snippet": snippet} for stack, snippet in rule.entry.code]
    entry["symptoms"] = [{"see": see, "because": because} for see, because in rule.entry.symptoms]
    entry["missing"] = [{"fact": fact, "how": how} for fact, how in rule.entry.missing]
    entry["signals"] = {name: s.means for name, s in rule.signals.items()}
    return {"id": rule.id, "precision": rule.precision, **entry, "supersedes": list(rule.supersedes)}


def entry_text(rule: Rule, width: int) -> str:
    """The entry as a page: first the answer, then what to do, then the reason."""
    e = rule.entry
    lines = [e.title, f"{rule.id} · {e.category} · {e.severity} · {e.domain} · {e.status}", ""]
    lines += _wrapped(_plain(e.quick_answer, rule), width)
    steps = [f"[{s.risk}] {s.do}" + (f"\n$ {s.command}" if s.command else "") for s in e.remediation]
    lines += _section("What to do", steps, rule, width, numbered=True)
    for head, text in (
        ("If that does not help", e.fallback),
        ("Right now", e.mitigation),
        ("How to check", e.verification),
        ("Why it happens", e.root_cause),
        ("Mechanism", e.mechanism),
        ("Prevention", e.prevention),
        ("Is the last checkpoint safe?", e.resume_safe),
    ):
        lines += _section(head, [text] if text else [], rule, width)
    lines += _section("What you see", [f"{see}: {because}" for see, because in e.symptoms], rule, width)
    lines += _section("How to confirm", list(e.confirm), rule, width, numbered=True)
    lines += _section("What looks like it and is not", list(e.false_positives), rule, width)
    for stack, snippet in e.code:
        lines += ["", f"Code: {stack}", textwrap.indent(snippet.rstrip(), "    ")]
    lines += _section("Related", [", ".join(e.related)] if e.related else [], rule, width)
    lines += _section("References", list(e.references), rule, 10_000)
    return "\n".join(lines)


def _section(head: str, items: Iterable[str], rule: Rule, width: int, *, numbered: bool = False) -> list[str]:
    items = list(items)
    if not items:
        return []
    lines = ["", head]
    for number, item in enumerate(items, 1):
        mark = f"{number}. " if numbered else ("- " if len(items) > 1 else "")
        for at, part in enumerate(_plain(item, rule).split("\n")):
            lead = "  " + (mark if at == 0 else " " * len(mark))
            room = 10_000 if part.startswith("$ ") else width  # a command is copied, so it stays on one line
            lines += textwrap.wrap(part, room, initial_indent=lead, subsequent_indent=" " * len(lead)) or [""]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width)


def _plain(text: str, rule: Rule) -> str:
    """Without an incident there are no ranks: placeholders become words."""
    for place, word in SILENT.items():
        text = text.replace(place, word)
    if rule.correlation:
        for role in rule.correlation.roles:
            word = "R" if role.name in rule.correlation.initiating else "the others"
            text = text.replace("{" + role.name + "}", word)
    return text
