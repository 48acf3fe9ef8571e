"""An exception of which only the last line was printed: `print(e)`, `logger.error(repr(e))`, a paste without its head.

Such a line does not prove that anything ended, so what is made of it is never `uncaught`.
"""

from dataclasses import replace

import re2

from denpexd.core.events import UNKNOWN_RANK, Raised
from denpexd.core.evidence import beginning
from denpexd.scan.blocks import Opening

EXCEPTION = (
    r"(?:Error|Exception|Interrupt|Invalid|Failed|Failure|Resources|Timeout|Exhausted|Died|\.[a-z]{0,12}error)"
    r"(?:: \S|\([\"'])|\"(?:exc_type|exception\.type|error\.type)\""
)
"""What the scanner looks for: a line that has it may be such a line."""

_LINE = re2.compile(
    r"^(?:.{0,100}\b(?:ERROR|CRITICAL|FATAL|[Ee]rror|[Ff]atal)\b.{0,60}[ \t])?"
    r"(?P<type>(?:[A-Za-z_]\w*\.)*(?:Exception|[A-Z]\w*(?:Error|Exception|Interrupt))"
    r"|(?:[A-Za-z_]\w*\.)+(?:[A-Z]\w*(?:Invalid|Fail(?:ed|ure)|Resources|Timeout|Exhausted|Died)|[a-z]*error))"
    r"(?:: (?P<said>\S.*)|\([\"'](?P<repr>.*?)[\"'],?\)\W*$)"
)
# A JSON log: the exception as text of one field, or type and message in two (structlog, OpenTelemetry).
_IN_JSON = re2.compile(
    r"^\{.*\"(?:exc|exc_info|exc_text|exception|error|err|error_message|stack_trace|traceback)\": ?\""
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt))"
    r"(?:: (?P<said>(?:[^\"\\]|\\.)+)|\((?:\\\"|')(?P<repr>.*?)(?:\\\"|'),?\))\""
)
_TYPED = re2.compile(
    r"\"(?:exc_type|exception\.type|error\.type)\": ?\"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)\", ?"
    r"\"(?:exc_value|exc_message|exception\.message|error\.message)\": ?\"(?P<said>(?:[^\"\\]|\\.)+)(?P<repr>)\""
)
_ESCAPED = re2.compile(r"\\(.)")
_MOST = 4000
# Ray's driver prints what a worker raised below one of these lines, without the head of a traceback.
_TASK = re2.compile(r"ray::[^\s(]{1,200}\(\) \((pid=\d+(?:, ip=[\w.:]+)?)")
_WORKER = re2.compile(r"\bWorker (\d{1,6}) (?:has )?failed\b")


def bare_exception(opening: Opening) -> Raised | None:
    """The exception that the line is; None if it only has such words, or holds a whole traceback."""
    o = opening
    structured = (_IN_JSON.search(o.text) or _TYPED.search(o.text)) if o.text.startswith("{") else None
    found = structured or _LINE.search(o.text)
    if found is None or "Traceback (most" in o.text:
        return None
    kind, message = found["type"], beginning(found["said"] or found["repr"] or "", _MOST)
    if structured is not None:
        message = _ESCAPED.sub(lambda one: "\n" if one[1] == "n" else one[1], message)
    text = beginning(f"{kind}: {message}", 500)
    return Raised(o.t, o.rank, o.source, o.offset, text, ((kind, message),), (), o.hooked, o.history, process=o.process)


def under_task(opening: Opening, above: str) -> Opening:
    """The opening, of the worker that Ray names above the frames; `above`: the lines before it, of all writers."""
    if opening.rank != UNKNOWN_RANK or opening.process or "ray::" not in above:
        return opening
    lines = [line for line in above.splitlines() if line.strip() and line[:1] not in " ("]
    found = _TASK.search(lines[-1]) if lines else None
    if found is None:
        return opening
    if len(lines) > 1 and (worker := _WORKER.search(lines[-2])) is not None:
        return replace(opening, rank=int(worker.group(1)))
    return replace(opening, process=found.group(1))
