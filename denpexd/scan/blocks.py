"""Things that take many lines: Python tracebacks here, printed stacks in dumps.py.

A block is opened by a hit line and is then shown every further line of its writer until it says that it is over (or
nothing came for a while): only then are lines looked at one by one. Blocks are pure: lines in, events out.
"""

from dataclasses import dataclass, field
from typing import Protocol

import re2

from denpexd.core.events import UNKNOWN_RANK, Event, Frame, Frames, Raised
from denpexd.core.evidence import beginning
from denpexd.scan.frames import traceback_frame
from denpexd.scan.lines import is_glog_warning, is_logged, starts_something

TRACEBACK = r"Traceback \(most recent call last\)"

_MOST_LINES = 400
_MOST_MESSAGE_LINES = 20
_MOST_MESSAGE = 4000
_MOST_NOISE = 5
_HEADER = re2.compile(r"^(.*?)Traceback \(most recent call last\):?")
_EXCEPTION = re2.compile(r"^([A-Za-z_][\w.]*)(?:\(([\w.]+)\))?(?:: ?(.*))?$")
_CHAINED = re2.compile(
    r"^(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):"
)
# A message that holds the text of another traceback: DataLoader workers, spawned processes, Ray tasks, pools.
_QUOTES = re2.compile(
    r'Caught \w|^"""|-- Process \d+ terminated|RemoteTraceback|RayTaskError|ray::|[Tt]raceback'
    r"|CheckpointException ranks:"
)
_MARKER = re2.compile(r"^\s*[\^~]+\s*$|^\s*\[Previous line repeated")
_GROUP_LINE = re2.compile(r"^\s*(?:[|+] ?)+")
_GROUP_RULE = re2.compile(r"^\s*(?:\| )*\+-[-+ \d.]*-*\s*$")
_LOG_HEADER = re2.compile(r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.,]+ (?:\[[^\]]*\] ?)?")
# kubectl logs --timestamps, docker logs -t, ts: another time before each line.
_STAMP = re2.compile(
    r"^\[?(?:\d{4}-\d\d-\d\d[T ]|[A-Z][a-z]{2} [ \d]\d )\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]? "
)
_LAUNCHER_PATH = re2.compile(
    r"^torch/distributed/(?:run|launch|launcher|elastic)\b|(?:^|/)torchrun$|^runpy\.py$|^<frozen runpy>$"
)
# Printed by hooks of Python that let the process live: threads, finalisers, tasks.
_SURVIVED = re2.compile(
    r"^\s*(?:Exception ignored (?:in|on|while)|Exception in thread |Unhandled exception in|Task exception was never"
    r" retrieved|Error in atexit|Error in sys\.excepthook)"
)
# Said of one piece of the work, by who goes on with the next.
_ANNOUNCED = re2.compile(
    r"(?i)\b(?:samples?|programs?|solutions?|submissions?|tests?|trials?|requests?|episodes?|records?|files?|items?|prompts?"
    r"|rewards?|tools?|callbacks?|uploads?|attempts?)\b.{0,60}\b(?:fail(?:ed|s|ure)?|errors?|raised|crashed|exception)\b"
    r".{0,60}:\s*$"
)
_SPAWNED = re2.compile(r"-- Process (\d+) terminated with the following error")


class Block(Protocol):
    """An open block. `lines` counts what it was shown."""

    lines: int

    def feed(self, text: str) -> bool:
        """Take one line of the writer; False: the block is over and the line is not part of it."""
        ...

    def quotes_code(self, text: str) -> bool:
        """Whether the line just fed is source code quoted by a traceback, in which words mean nothing."""
        ...

    def finish(self) -> list[Event]:
        """What the block said."""
        ...


@dataclass(frozen=True, slots=True)
class Opening:
    """Where a block began: time, rank, source and offset of its first line, and that line."""

    t: float
    rank: int
    source: str
    offset: int
    text: str
    hooked: bool = False  # printed by torch's exception hook
    before: str = ""  # the line above, of the same writer
    history: bool = False
    process: str = ""  # as the prefix of the line names it


@dataclass(slots=True)
class _Exception:
    type: str = ""
    message: list[str] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)  # outermost first, as printed
    quoted: "list[_Exception]" = field(default_factory=list)

    @property
    def pair(self) -> tuple[str, str]:
        return self.type, beginning("\n".join(self.message).strip(), _MOST_MESSAGE)


class Traceback:
    """One exception with everything it was chained from and every traceback its message quotes: one Raised."""

    def __init__(self, opening: Opening) -> None:
        self.opening, self.lines = opening, 0
        found = _HEADER.search(opening.text)
        before = found.group(1) if found is not None else ""
        self._indent = len(before) - len(before.lstrip(" ")) if "+" not in before else 0
        # What some wrapper puts before each line, whichever it is.
        self._prefix = before if before.strip() and "+" not in before and not is_logged(before) else ""
        stamp = _STAMP.search(self._prefix)
        self._stamped = stamp is not None and stamp.end() == len(self._prefix)
        self._grouped = "Exception Group" in before
        self._headed = _LOG_HEADER.search(before) is not None
        self._logged = (
            is_logged(before)
            or is_glog_warning(before)
            or is_logged(opening.before)
            or _SURVIVED.search(opening.before) is not None
            or _ANNOUNCED.search(opening.before) is not None
        )
        self._chain: list[_Exception] = []
        self._now = self._filling = _Exception()
        self._state = "frames"
        self._noise = 0
        self._blank = self._source = False
        # Rich breaks the message below its box to the width of the box.
        self._width = len(opening.text.strip()) if "╭" in before else 0
        self._row = 0
        self._inline(opening.text)

    def _inline(self, text: str) -> None:
        """A traceback that a JSON log holds in one line, with its line feeds escaped."""
        _, _, rest = text.partition("(most recent call last)")
        if "\\n" in rest:
            self._logged = True
            for line in rest.replace('\\"', '"').split("\\n")[1:]:
                self.feed(line.removesuffix('"}') if line.endswith('"}') else line)

    def feed(self, text: str) -> bool:
        self.lines += 1
        self._source = False
        text = self._plain(text)
        if self.lines > _MOST_LINES:
            return False
        if _HEADER.search(text) is not None:
            return self._header(text)
        if self._state == "frames":
            return self._in_frames(text)
        if self._state == "message":
            return self._in_message(text)
        if self._state == "sub" and (found := _EXCEPTION.search(text)) is not None:
            self._named(found.group(1), found.group(3) or "")
            return True
        return not text.strip() or self._foreign()

    def quotes_code(self, text: str) -> bool:
        return self._source

    def _plain(self, text: str) -> str:
        if self._prefix and text.startswith(self._prefix):
            text = text[len(self._prefix) :]
        elif self._stamped and (found := _STAMP.search(text)) is not None:
            text = text[found.end() :]
        if self._headed and (found := _LOG_HEADER.search(text)) is not None:
            text = text[found.end() :]
        if self._grouped:
            if _GROUP_RULE.search(text) is not None:
                self._start_quoted("sub")
                return ""
            if (bars := _GROUP_LINE.search(text)) is not None:
                return text[bars.end() :]
        return text[self._indent :] if text[: self._indent].isspace() else text

    def _header(self, text: str) -> bool:
        if self._state in ("chained", "sub"):
            self._state = "frames"
            return True
        # torch.distributed.checkpoint lists what each rank raised.
        if self._state == "message" and ("Original Traceback" in text or "(RANK " in text or self._may_quote()):
            self._start_quoted("frames")
            return True
        return self._state == "frames" and not self._filling.frames

    def _may_quote(self) -> bool:
        return _QUOTES.search(f"{self._filling.type} " + "\n".join(self._filling.message)) is not None

    def _start_quoted(self, state: str) -> None:
        if self._filling.type or self._filling.frames:
            self._filling = _Exception()
            self._now.quoted.append(self._filling)
        self._state = state

    def _in_frames(self, text: str) -> bool:
        if (frame := traceback_frame(text)) is not None:
            self._filling.frames.append(frame)
        elif not text.strip() or _MARKER.search(text) is not None:
            self._source = bool(text.strip())
        elif text[0] in " \t│╭╰":
            self._source = True
        elif (found := _EXCEPTION.search(text)) is not None and _is_type(found.group(1)) and not starts_something(text):
            self._named(found.group(1), found.group(3) or "")
        else:
            return self._foreign()
        return True

    def _named(self, kind: str, message: str) -> None:
        self._filling.type = kind
        self._filling.message = [message]
        self._state, self._blank = "message", False
        self._row = len(kind) + 2 + len(message)

    def _in_message(self, text: str) -> bool:
        if _CHAINED.search(text) is not None:
            self._chain.append(self._now)
            self._now = self._filling = _Exception()
            self._state = "chained"
            return True
        if not text.strip():
            self._blank = True
            return True
        if (frame := traceback_frame(text)) is not None:
            self._start_quoted("frames")
            self._filling.frames.append(frame)
            return True
        if starts_something(text) or len(self._filling.message) > _MOST_MESSAGE_LINES:
            return False
        if self._blank and not (self.opening.hooked or text[0] in ' \t"' or self._may_quote() or self._announces()):
            return False
        if self._blank:
            self._filling.message.append("")
            self._blank = False
        text = text.rstrip()
        if self._row and self._row + 1 + len(text.split(" ", 1)[0]) > self._width > 0:
            self._filling.message[-1] += f" {text}"
        else:
            self._filling.message.append(text)
        self._row = len(text)
        return True

    def _announces(self) -> bool:
        """The message ended with a colon: what it announces stands below the empty line."""
        said = [line for line in self._filling.message if line.strip()]
        return bool(said) and said[-1].rstrip().endswith(":")

    def _foreign(self) -> bool:
        """A line of somebody else in between; after some of them the rest of the block is not coming."""
        self._noise += 1
        return self._noise <= _MOST_NOISE

    def finish(self) -> list[Event]:
        raised = [part for part in reversed([*self._chain, self._now]) if part.type or part.frames]
        if not raised:
            return []
        quoted = [inner for part in raised for inner in part.quoted if inner.type or inner.frames]
        everything = raised + quoted
        frames = tuple(frame for part in everything for frame in reversed(part.frames))
        o, (kind, message) = self.opening, raised[0].pair
        rank = UNKNOWN_RANK if _is_launcher(raised[0]) else o.rank
        if rank == UNKNOWN_RANK and (spawned := _SPAWNED.search(message) or _SPAWNED.search(o.before)) is not None:
            rank = int(spawned.group(1))
        uncaught = o.hooked or not self._logged
        text = beginning(f"{kind}: {message}".splitlines()[0] if message else kind, 500) or o.text
        chain = tuple(part.pair for part in everything)
        events: list[Event] = [
            Raised(o.t, rank, o.source, o.offset, text, chain, frames, uncaught, o.history, o.process)
        ]
        if uncaught and raised[0].frames:
            stack = tuple(reversed(raised[0].frames))
            others = tuple(("quoted", tuple(reversed(inner.frames))) for inner in quoted if inner.frames)
            events.append(Frames(o.t, rank, "traceback", stack, o.source, o.offset, others=others))
        return events


def _is_type(name: str) -> bool:
    """Whether a word can be the name of an exception and not just any word before a colon."""
    return "." in name or name.startswith("_") or name[0].isupper() or name.endswith(("error", "Error"))


def _is_launcher(exception: _Exception) -> bool:
    if exception.type.endswith("ChildFailedError"):
        return True
    frames = exception.frames
    return bool(frames) and all(_LAUNCHER_PATH.search(frame.path) is not None for frame in frames)
