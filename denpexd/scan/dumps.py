"""Stacks that programs print: faulthandler's of all threads, torch's of the collective that failed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import re2

from denpexd.core.events import Event, Frame, Frames
from denpexd.scan.blocks import Opening
from denpexd.scan.frames import faulthandler_frame, watchdog_frame

FAULTHANDLER = r"^(?:Current thread|Thread) 0x[0-9a-f]+ .{0,60}\(most recent call first\):|^Fatal Python error: "
WATCHDOG = r"Stack trace of the failed collective: ?$"

_MOST_LINES = 400
_THREAD = re2.compile(r"^(Current thread|Thread) (0x[0-9a-f]+)(?: \[([^\]]*)\])?.{0,60}\(most recent call first\):")


@dataclass(slots=True)
class _Thread:
    label: str
    current: bool
    frames: list[Frame] = field(default_factory=list)

    @property
    def helper(self) -> bool:
        outermost = self.frames[-1] if self.frames else None
        return outermost is None or (outermost.path == "threading.py" and outermost.function.startswith("_bootstrap"))


class Faulthandler:
    """What faulthandler prints about all threads: one Frames."""

    def __init__(self, opening: Opening) -> None:
        self.opening, self.lines = opening, 0
        self._threads: list[_Thread] = []
        self.feed(opening.text)

    def feed(self, text: str) -> bool:
        self.lines += 1
        if (found := _THREAD.search(text)) is not None:
            label = found.group(3) or found.group(2)
            self._threads.append(_Thread(label, found.group(1) == "Current thread"))
        elif (frame := faulthandler_frame(text)) is not None and self._threads:
            self._threads[-1].frames.append(frame)
        elif text.strip() and not text.startswith(
            ("  ", "Fatal Python error", "Timeout (", "Python runtime state", "<")
        ):
            return False
        return self.lines <= _MOST_LINES

    def quotes_code(self, text: str) -> bool:
        return False

    def finish(self) -> list[Event]:
        main = _main_thread(self._threads)
        if main is None:
            return []
        others = tuple((each.label, tuple(each.frames)) for each in self._threads if each is not main and each.frames)
        o = self.opening
        return [Frames(o.t, o.rank, "faulthandler", tuple(main.frames), o.source, o.offset, others=others)]


def _main_thread(threads: Sequence[_Thread]) -> _Thread | None:
    """The thread that is no helper: faulthandler prints the main thread last and does not name it."""
    candidates = [thread for thread in threads if not thread.helper] or [each for each in threads if each.frames]
    for thread in reversed(candidates):
        if thread.frames[-1].function == "<module>":
            return thread
    return next((thread for thread in candidates if thread.current), candidates[-1] if candidates else None)


class Watchdog:
    """torch's stack of the collective that timed out: one Frames."""

    def __init__(self, opening: Opening) -> None:
        self.opening, self.lines = opening, 0
        self._frames: list[Frame] = []

    def feed(self, text: str) -> bool:
        self.lines += 1
        frame = watchdog_frame(text)
        if frame is None:
            return not text.strip()
        self._frames.append(frame)
        return self.lines <= _MOST_LINES

    def quotes_code(self, text: str) -> bool:
        return False

    def finish(self) -> list[Event]:
        o = self.opening
        stack = tuple(self._frames)
        return [Frames(o.t, o.rank, "watchdog", stack, o.source, o.offset)] if stack else []
