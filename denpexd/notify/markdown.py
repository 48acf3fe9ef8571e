"""The report as GitHub-flavoured Markdown."""

import re
from urllib.parse import quote

from denpexd.notify.policy import Verdict
from denpexd.notify.render import kind_word, origin, standing, who
from denpexd.notify.text import HEAD, UNEQUAL, changes, excerpt, items, moment, one_line, rank_list, ranks, string


def markdown(verdict: Verdict) -> str:
    """The report as GitHub-flavoured Markdown; quotations in code fences that they cannot close."""
    lines = [f"# {kind_word(verdict)}: {md(verdict.get('title'))} ({md(verdict.get('certainty'))})", ""]
    lines += [prose(verdict.get("quick_answer")), ""]
    lines += [f"| | |\n|---|---|\n| Started by | {md(who(verdict))} |"]
    for label, name in (("Victims", "collateral_ranks"), ("Not heard", "unheard_ranks")):
        if found := ranks(verdict, name):
            lines.append(f"| {label} | {md(rank_list(found))} |")
    for label, value in (
        ("Job", verdict.get("job")),
        ("Attempt", verdict.get("attempt")),
        ("Step", verdict.get("step")),
        ("Since", moment(verdict.get("opened_t"))),
        ("Severity", verdict.get("severity")),
        ("Failure", verdict.get("failure")),
        ("Incident", verdict.get("key")),
    ):
        lines += [f"| {label} | {md(value)} |"] if value not in (None, "") else []
    lines += _md_text("What happened", verdict.get("root_cause"))
    lines += quotes_md(verdict) + stacks_md(verdict) + changes_md(verdict) + doubts_md(verdict) + missing_md(verdict)
    lines += steps_md(verdict)
    for head, name in (("How to prevent it", "prevention"),):
        lines += _md_text(head, verdict.get(name))
    references = verdict.get("references")
    if isinstance(references, list | tuple) and references:
        lines += ["", "## References", "", *(f"- <{_url(url)}>" for url in references)]
    return "\n".join(lines) + "\n"


def md(value: object) -> str:
    """A text as Markdown that shows it as it is, on one line; a comment after @ keeps it from calling somebody."""
    return _shown(one_line(value))


def _shown(text: str) -> str:
    text = re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", text)
    return re.sub(r"(?<!\w)@(?=\w)", "@<!-- -->", text)


def prose(value: object) -> str:
    """A text of a rule as Markdown: what stands between backticks is code, the rest shows as it is."""
    parts = re.split(r"(`[^`|@]*[^`|@\s][^`|@]*`)", one_line(value))
    return "".join(part if number % 2 else _shown(part) for number, part in enumerate(parts))


def _url(value: object) -> str:
    return re.sub(r"[<>\s\\]", lambda m: quote(m[0]), one_line(value))


def _md_text(head: str, text: object) -> list[str]:
    return ["", f"## {head}", "", prose(text)] if text else []


def fence(text: str, language: str = "text", indent: str = "") -> list[str]:
    """The lines of a code block that its content cannot close."""
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return [f"{indent}{line}".rstrip() for line in (ticks + language, *text.splitlines(), ticks)]


def quotes_md(verdict: Verdict) -> list[str]:
    """The quotations, each in a fence."""
    lines = ["", "## Evidence"] if items(verdict, "evidence") else []
    for item in items(verdict, "evidence"):
        lines += ["", f"**{md(origin(item))}**: {md(item.get('means'))}", ""]
        lines += fence("\n".join(excerpt(str(item.get("text", "")), 20)))
    return lines


def stacks_md(verdict: Verdict) -> list[str]:
    """Where the ranks stand, as a table."""
    lines = [f"| {md(who_stands)} | {md(at)} |" for who_stands, at in standing(verdict)]
    return ["", "## Where the ranks stand", "", "| | |\n|---|---|", *lines] if lines else []


def changes_md(verdict: Verdict) -> list[str]:
    """What changed since the last good run."""
    lines: list[str] = []
    for head, texts in zip((HEAD, UNEQUAL), changes(verdict), strict=True):
        lines += ["", f"## {head}", "", *(f"- {md(text)}" for text in texts)] if texts else []
    return lines


def doubts_md(verdict: Verdict) -> list[str]:
    """What speaks against it, and what it is not."""
    against = [f"- {md(i.get('text'))} {md(i.get('means'))}".rstrip() for i in items(verdict, "against")]
    others = [f"- {md(i.get('failure'))}: {md(i.get('why_not'))}" for i in items(verdict, "alternatives")]
    lines = ["", "## What speaks against it", "", *against] if against else []
    return [*lines, "", "## What else it could be, and why it is not", "", *others] if others else lines


def missing_md(verdict: Verdict) -> list[str]:
    """What would be needed to know more."""
    missing = [f"- {md(i.get('fact'))}: {md(i.get('how'))}" for i in items(verdict, "missing")]
    return ["", "## What is missing", "", *missing] if missing else []


def steps_md(verdict: Verdict) -> list[str]:
    """What to do, and how to check it."""
    lines: list[str] = []
    for number, step in enumerate(items(verdict, "remediation"), 1):
        lines.append(f"{number}. {prose(step.get('do'))} ({md(step.get('risk'))})")
        if command := string(step, "command"):
            lines += ["", *fence(command, indent="   "), ""]
    lines = ["", "## What to do", "", *lines] if lines else []
    for label, name in (("To save this run", "mitigation"), ("If that does not help", "fallback")):
        lines += ["", f"{label}: {prose(verdict[name])}"] if verdict.get(name) else []
    if safe := verdict.get("resume_safe"):
        lines += ["", f"Resume from the last checkpoint: {prose(safe)}"]
    if command := string(verdict, "verification"):
        lines += ["", "## How to check that it worked", "", *fence(command)]
    return lines
