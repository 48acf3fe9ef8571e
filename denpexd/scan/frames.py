"""Stack frames as text: one canonical form of a path, whoever printed it."""

import re2

from denpexd.core.events import Frame

_PACKAGES = re2.compile(r"^.*/(?:site|dist)-packages/")
_STANDARD = re2.compile(r"^.*/lib(?:64)?/(?:python|pypy)3(?:\.\d+)?/")
# Source builds and container images keep these outside of site-packages.
_SOURCE_BUILD = re2.compile(
    r"^.*/((?:torch/(?:nn|distributed|utils|autograd|optim|cuda|multiprocessing|_dynamo|_inductor)"
    r"|megatron/(?:core|training)|deepspeed/(?:runtime|launcher|utils|comm))/.+)$"
)
_TRACEBACK_FRAME = re2.compile(r'^\s*File "([^"]+)", line (\d+), in (.+?)\s*$')
_FAULTHANDLER_FRAME = re2.compile(r'^\s*File "([^"]+)", line (\d+) in (\S+)')
_WATCHDOG_FRAME = re2.compile(r"^\s*#\d+ (\S+) from (\S+):(\d+)\s*$")
_RICH_FRAME = re2.compile(r"^\s*│ (\S+\.py):(\d+) in (\S+)\s*│?\s*$")


def canonical_path(path: str) -> str:
    """A path without where it was installed: relative to site-packages or the standard library.

    Own code keeps only its file name when the path is absolute, and stays as it is when relative: job folders differ
    between runs and users, and a rule speaks of `train.py`.
    """
    if not path.isascii():  # JSON may hold half of a character, which RE2 does not take
        path = path.encode("utf-8", "replace").decode("utf-8")
    for pattern in (_PACKAGES, _STANDARD):
        if found := pattern.search(path):
            return path[found.end() :]
    if found := _SOURCE_BUILD.search(path):
        return str(found.group(1))
    return path.rsplit("/", 1)[-1] if path.startswith("/") else path.removeprefix("./")


def traceback_frame(text: str) -> Frame | None:
    """The frame of a traceback's `File "x", line 3, in f` (or of rich's box); None for another line."""
    found = _TRACEBACK_FRAME.search(text)
    if found is None and "│" in text:
        found = _RICH_FRAME.search(text)
    return None if found is None else Frame(found.group(3), canonical_path(found.group(1)), int(found.group(2)))


def faulthandler_frame(text: str) -> Frame | None:
    """The frame of faulthandler's `File "x", line 3 in f` (no comma); None for another line."""
    found = _FAULTHANDLER_FRAME.search(text)
    return None if found is None else Frame(found.group(3), canonical_path(found.group(1)), int(found.group(2)))


def watchdog_frame(text: str) -> Frame | None:
    """The frame of torch's `#0 barrier from /x/distributed_c10d.py:4887`; None for another line."""
    found = _WATCHDOG_FRAME.search(text)
    return None if found is None else Frame(found.group(1), canonical_path(found.group(2)), int(found.group(3)))
