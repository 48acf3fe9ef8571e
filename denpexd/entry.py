"""An encyclopedia entry for people and programs: `denpexd explain`, and the pages of docs/encyclopedia."""

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from denpexd.core.rule import Rule
from denpexd.notify.render import Page

SILENT = {"{initiating}": "R", "{collateral}": "the others", "{unheard}": "unheard ranks"}
READERS = {"on_call": "On call", "engineer": "Engineer", "manager": "Manager"}


@dataclass(frozen=True, slots=True)
class Item:
    """One point of a part: `risk` of a step, `command` and `code` to copy."""

    text: str
    risk: str = ""
    command: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A heading with its points."""

    head: str
    items: tuple[Item, ...]
    numbered: bool = False


def entry_json(rule: Rule) -> dict[str, Any]:
    """Every field of the entry, with the ids it relates to."""
    entry = asdict(rule.entry)
    entry["code"] = [{"stack": stack, "snippet": snippet} for stack, snippet in rule.entry.code]
    entry["symptoms"] = [{"see": see, "because": because} for see, because in rule.entry.symptoms]
    entry["missing"] = [{"fact": fact, "how": how} for fact, how in rule.entry.missing]
    entry["signals"] = {name: s.means for name, s in rule.signals.items()}
    return {"id": rule.id, "precision": rule.precision, **entry, "supersedes": list(rule.supersedes)}


def parts(rule: Rule) -> list[Part]:
    """The entry in the order in which it is read: first what to do, then the reason, at the end what backs it."""
    e = rule.entry

    def plain(head: str, *texts: str, numbered: bool = False) -> Part:
        return Part(head, tuple(Item(_plain(text, rule)) for text in texts if text), numbered)

    steps = tuple(Item(_plain(s.do, rule), s.risk, _plain(s.command or "", rule)) for s in e.remediation)
    found = [
        Part("What to do", steps, numbered=True),
        plain("If that does not help", e.fallback),
        plain("Right now", e.mitigation),
        Part("How to check", (Item("", command=_plain(e.verification, rule)),) if e.verification else ()),
        plain("Why it happens", e.root_cause),
        plain("Mechanism", e.mechanism),
        plain("Prevention", e.prevention),
        plain("Is the last checkpoint safe?", e.resume_safe),
        plain("What you see", *(f"{see}: {because}" for see, because in e.symptoms)),
        plain("How to confirm", *e.confirm, numbered=True),
        plain("What looks like it and is not", *e.false_positives),
        plain("What denpexd looks for", *dict.fromkeys(signal.means for signal in rule.signals.values())),
        plain("What it asks for while it is not sure", *(f"{fact}: {how}" for fact, how in e.missing)),
        *(Part(f"Code: {stack}", (Item("", code=snippet.rstrip()),)) for stack, snippet in e.code),
        plain("In one line", *(f"{READERS[who]}: {line}" for who, line in e.audience.items())),
    ]
    return [part for part in found if part.items]


def entry_text(rule: Rule, width: int, *, color: bool = False) -> str:
    """The entry for a terminal: first the answer, then what to do, then the reason."""
    e, page = rule.entry, Page(color, width)
    page.text(e.title, indent="", style="head")
    facts = (page.paint(rule.id, "dim"), e.category, page.paint(e.severity, e.severity), e.domain, e.status)
    page.lines.append(" · ".join(facts))
    for name, words in (("also", e.aliases), ("affects", e.affects), ("tags", e.tags)):
        page.text(f"{name}: {', '.join(words)}" if words else "", indent="", hang="  ", style="dim")
    page.lines.append("")
    page.text(_plain(e.quick_answer, rule), indent="")
    for part in parts(rule):
        page.head(part.head)
        for number, item in enumerate(part.items, 1):
            _point(page, part, number, item)
    for head, words in (("Related", e.related), ("More exact than", rule.supersedes)):
        page.section(head, ", ".join(words))
    if e.references:
        page.head("References")
        page.lines += [f"  {url}" for url in e.references]
    return "\n".join(page.lines)


def _point(page: Page, part: Part, number: int, item: Item) -> None:
    mark = f"{number}. " if part.numbered else ("- " if len(part.items) > 1 else "")
    hang = "  " + " " * len(mark)
    if item.text:
        at = len(page.lines)
        page.text((f"[{item.risk}] " if item.risk else "") + item.text, f"  {mark}", hang)
        if item.risk:
            page.lines[at] = page.lines[at].replace(f"[{item.risk}]", page.paint(f"[{item.risk}]", item.risk), 1)
    if item.command:
        page.command(item.command, hang)
    if item.code:
        page.lines += [f"    {line}".rstrip() for line in item.code.splitlines()]


# --- Markdown ---------------------------------------------------------------------------------------------------------


def entry_markdown(rule: Rule, pages: Collection[str] = ()) -> str:
    """The entry as GitHub-flavoured Markdown; the ids of `pages` become links to files beside it."""

    def linked(ids: Sequence[str]) -> str:
        return ", ".join(f"[{name}]({name}.md)" if name in pages else f"`{name}`" for name in ids)

    e = rule.entry
    rows = [
        ("Id", f"`{rule.id}`"),
        ("Former ids", ", ".join(f"`{alias}`" for alias in e.aliases)),
        ("Category", e.category),
        ("Severity", e.severity),
        ("Whose it is", e.domain),
        ("Happens in", ", ".join(e.scope)),
        ("Affects", "; ".join(map(md, e.affects))),
        ("Tags", ", ".join(map(md, e.tags))),
        ("Status", e.status),
    ]
    lines = [f"# {md(e.title)}", "", f"**{md(_plain(e.quick_answer, rule))}**", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows if value]
    for part in parts(rule):
        lines += ["", f"## {md(part.head)}", ""]
        for number, item in enumerate(part.items, 1):
            lines += _md_point(part, number, item)
    for head, ids in (("Related", e.related), ("More exact than", rule.supersedes)):
        lines += ["", f"## {head}", "", linked(ids)] if ids else []
    if e.references:
        lines += ["", "## References", "", *(f"- <{url}>" for url in e.references)]
    return re.sub(r"\n\n\n+(#)", r"\n\n\1", "\n".join(lines)).rstrip() + "\n"


def _md_point(part: Part, number: int, item: Item) -> list[str]:
    several = len(part.items) > 1
    mark = f"{number}. " if part.numbered else ("- " if several else "")
    lines = [mark + md(item.text) + (f" ({item.risk})" if item.risk else "")] if item.text else []
    if item.command:
        lines += [""] if lines else []
        lines += [*_fence(item.command, "sh", " " * len(mark)), ""]
    if item.code:
        lines += _fence(item.code, "python" if re.search(r"[()=]", item.code) else "", "")
    return lines


def _fence(text: str, language: str, indent: str) -> list[str]:
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return [f"{indent}{line}".rstrip() for line in (ticks + language, *text.splitlines(), ticks)]


def md(text: str) -> str:
    """Prose as Markdown that shows it as it is, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(text.split()))


def _plain(text: str, rule: Rule) -> str:
    """Without an incident there are no ranks: placeholders become words."""
    for place, word in SILENT.items():
        text = text.replace(place, word)
    if rule.correlation:
        for role in rule.correlation.roles:
            word = "R" if role.name in rule.correlation.initiating else "the others"
            text = text.replace("{" + role.name + "}", word)
    return text.strip()
