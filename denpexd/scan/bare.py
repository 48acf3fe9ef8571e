"""An exception of which only the last line was printed: `print(e)`, `logger.error(repr(e))`, a paste without its head.

Such a line does not prove that anything ended, so what is made of it is never `uncaught`.
"""

import re2

from denpexd.core.events import Raised
from denpexd.scan.blocks import Opening

EXCEPTION = (
    r"(?:Error|Exception|Interrupt|Invalid|Failed|Failure|Resources|Timeout|Exhausted|Died|\.[a-z]{0,12}error)"
    r"(?:: \S|\([\"'])"
)
"""What the scanner looks for: a line that has it may be such a line."""

_LINE = re2.compile(
    r"^(?:.{0,100}\b(?:ERROR|CRITICAL|FATAL|[Ee]rror|[Ff]atal)\b.{0,60}[ \t])?"
    r"(?P<type>(?:[A-Za-z_]\w*\.)*(?:Exception|[A-Z]\w*(?:Error|Exception|Interrupt))"
    r"|(?:[A-Za-z_]\w*\.)+(?:[A-Z]\w*(?:Invalid|Fail(?:ed|ure)|Resources|Timeout|Exhausted|Died)|[a-z]*error))"
    r"(?:: (?P<said>\S.*)|\([\"'](?P<repr>.*?)[\"'],?\)\W*$)"
)
_MOST = 4000


def bare_exception(opening: Opening) -> Raised | None:
    """The exception that the line is; None if it only has such words, or holds a whole traceback."""
    o = opening
    found = _LINE.search(o.text)
    if found is None or "Traceback (most" in o.text:
        return None
    kind, message = found["type"], (found["said"] or found["repr"] or "")[:_MOST]
    text = f"{kind}: {message}"[:500]
    return Raised(o.t, o.rank, o.source, o.offset, text, ((kind, message),), (), o.hooked, o.history, process=o.process)
