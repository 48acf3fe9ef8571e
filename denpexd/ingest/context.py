"""What stands around a quoted line of a log, for people who were not there."""

import os
import stat
from pathlib import Path

BEFORE, AFTER = 8 << 10, 8 << 10
LINES = 20
_LONGEST = 2_000


def around(path: Path, offset: int, quoted: str) -> str:
    """Some lines before and after the one at `offset`, which is marked; says so where it is no longer there.

    Blocks as any read does. OSError: it cannot be read, or is no ordinary file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "not a regular file", str(path))
        start = max(0, offset - BEFORE)
        data = os.pread(handle, offset - start + AFTER, start)
    finally:
        os.close(handle)
    at = offset - start
    above, rest = data[:at].split(b"\n"), data[at:].split(b"\n")
    above = above[1:] if start else above  # only whole lines; the last one is empty where the quote begins a line
    below = rest[1 : LINES + 1]
    head = f"{path}, byte {offset}"
    wanted = quoted.strip().split("\n")[0][:40].strip()
    if wanted and wanted not in data.decode("utf-8", "replace"):
        head += " (the quoted line no longer stands there: the file was rotated or written anew)"
    first = (above[-1] if above else b"") + rest[0]
    lines = [*((" ", line) for line in above[:-1][-LINES:]), (">", first), *((" ", line) for line in below)]
    return "\n".join([head, *(f"{mark} {line[:_LONGEST].decode('utf-8', 'replace')}".rstrip() for mark, line in lines)])
