"""An exception of which only the last line was printed: `print(e)`, `logger.error(repr(e))`, a paste without its head.

Such a line does not prove that anything ended, so what is made of it is never `uncaught`.
"""

from collections.abc import Mapping

from denpexd.core.events import Raised
from denpexd.scan.blocks import Opening

EXCEPTION = (
    r"^(?:.{0,100}\b(?:ERROR|CRITICAL|FATAL|[Ee]rror|[Ff]atal)\b.{0,60}[ \t])?"
    r"(?P<type>(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))"
    r"(?:: (?P<said>\S.*)|\([\"'](?P<repr>.*?)[\"'],?\)\W*$)"
)
_MOST = 4000


def bare_exception(opening: Opening, groups: Mapping[str, str]) -> Raised | None:
    """The exception of a line that EXCEPTION matches; None where the line holds a whole traceback."""
    o = opening
    if "Traceback (most" in o.text:
        return None
    kind, message = groups["type"], (groups.get("said") or groups.get("repr") or "")[:_MOST]
    text = f"{kind}: {message}"[:500]
    return Raised(o.t, o.rank, o.source, o.offset, text, ((kind, message),), (), o.hooked, o.history)
