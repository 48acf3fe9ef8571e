"""RE2 patterns as trees over bytes: just enough syntax to rewrite a pattern without changing what it accepts.

Anchors are dropped while parsing and `.` stands for any character; see loosen.py for why.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_ASCII = frozenset(range(128))
_DIGIT = frozenset(b"0123456789")
WORD = frozenset(b"_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_SPACE = frozenset(b"\t\n\f\r ")
_POSIX = {
    "alnum": WORD - {95},
    "alpha": WORD - {95} - _DIGIT,
    "ascii": _ASCII,
    "blank": frozenset(b"\t "),
    "cntrl": frozenset([*range(32), 127]),
    "digit": _DIGIT,
    "graph": frozenset(range(33, 127)),
    "lower": frozenset(range(97, 123)),
    "print": frozenset(range(32, 127)),
    "punct": frozenset(range(33, 127)) - WORD | {95},
    "space": _SPACE | {11},
    "upper": frozenset(range(65, 91)),
    "word": WORD,
    "xdigit": frozenset(b"0123456789abcdefABCDEF"),
}
_CONTROL = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}


@dataclass(frozen=True, slots=True)
class Literal:
    text: bytes
    fold: bool


@dataclass(frozen=True, slots=True)
class Class:
    """ASCII members and whether any other character may be one."""

    low: frozenset[int]
    wide: bool


@dataclass(frozen=True, slots=True)
class Repeat:
    node: "Node"
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Sequence:
    nodes: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    nodes: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A word boundary."""


Node = Literal | Class | Repeat | Sequence | Choice | Boundary


def parse(pattern: str) -> Node:
    """The tree of a pattern that RE2 accepts."""
    return _Parser(pattern).choice(False)


class _Parser:
    """Recursive descent over RE2 syntax; the pattern has been compiled by RE2 before, so errors cannot happen."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0

    def choice(self, fold: bool) -> Node:
        parts: list[Node] = []
        nodes: list[Node] = []
        while self.at < len(self.pattern) and self.pattern[self.at] != ")":
            char = self.pattern[self.at]
            if char == "|":
                self.at += 1
                parts.append(Sequence(_join(nodes)))
                nodes = []
            elif self.pattern.startswith("(?", self.at) and (flags := self._flags()) is not None:
                fold = flags.get("i", fold)
            elif char in "*+?{" and nodes and (span := self._repeat()):
                nodes[-1] = Repeat(nodes[-1], *span)
            else:
                nodes.extend(self._atom(fold))
        parts.append(Sequence(_join(nodes)))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _flags(self) -> dict[str, bool] | None:
        """The flags of `(?i)` or `(?-s)`, which hold to the end of the group; None for anything else."""
        end = self.pattern.find(")", self.at)
        body = self.pattern[self.at + 2 : end]
        if not body or not set(body) <= set("imsU-"):
            return None
        self.at = end + 1
        return _flag_values(body)

    def _repeat(self) -> tuple[int, int | None] | None:
        char = self.pattern[self.at]
        span: tuple[int, int | None] = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char, (0, 0))
        end = self.at
        if char == "{":
            end = self.pattern.find("}", self.at)
            low, comma, high = self.pattern[self.at + 1 : max(end, self.at + 1)].partition(",")
            if not low.isdigit() or (high and not high.isdigit()):
                return None
            span = (int(low), int(high) if high else None if comma else int(low))
        self.at = end + 1
        if self.pattern[self.at : self.at + 1] in ("?", "+"):
            self.at += 1
        return span

    def _atom(self, fold: bool) -> list[Node]:
        char = self.pattern[self.at]
        self.at += 1
        if char == "(":
            return [self._group(fold)]
        if char == "[":
            return [self._class(fold)]
        if char == ".":
            return [Class(_ASCII, True)]
        if char in "^$":
            return []
        if char == "\\":
            return self._escape(fold)
        return [_literal(char, fold)]

    def _group(self, fold: bool) -> Node:
        if self.pattern.startswith("?", self.at):
            colon, angle = self.pattern.find(":", self.at), self.pattern.find(">", self.at)
            if self.pattern.startswith(("?P<", "?<"), self.at):
                self.at = angle + 1
            else:
                fold = _flag_values(self.pattern[self.at + 1 : colon]).get("i", fold)
                self.at = colon + 1
        node = self.choice(fold)
        self.at += 1
        return node

    def _escape(self, fold: bool) -> list[Node]:
        char = self.pattern[self.at]
        if char in "AzZB":
            self.at += 1
            return []
        if char == "b":
            self.at += 1
            return [Boundary()]
        if char == "Q":
            end = self.pattern.find(r"\E", self.at)
            text = self.pattern[self.at + 1 : end if end >= 0 else None]
            self.at = len(self.pattern) if end < 0 else end + 2
            return [_literal(each, fold) for each in text]
        found = self._escaped()
        return [found if isinstance(found, Class) else _literal(found, fold)]

    def _escaped(self) -> "Class | str":
        """A class or a character named by the escape at the cursor, which stands behind the backslash."""
        char = self.pattern[self.at]
        self.at += 1
        if char in "dDwWsS":
            low = {"d": _DIGIT, "w": WORD, "s": _SPACE}[char.lower()]
            return Class(_ASCII - low, True) if char.isupper() else Class(low, False)
        if char in "pPC":
            end = self.pattern.find("}", self.at) if self.pattern.startswith("{", self.at) else self.at
            self.at = self.at if char == "C" else end + 1
            return Class(_ASCII, True)
        if char == "x":
            braces = self.pattern.startswith("{", self.at)
            end = self.pattern.find("}", self.at) if braces else self.at + 2
            digits = self.pattern[self.at + braces : end]
            self.at = end + braces
            return chr(int(digits, 16))
        if char in "01234567":
            end = self.at
            while end < self.at + 2 and self.pattern[end : end + 1] in tuple("01234567"):
                end += 1
            digits, self.at = self.pattern[self.at - 1 : end], end
            return chr(int(digits, 8))
        return chr(_CONTROL[char]) if char in _CONTROL else char

    def _class(self, fold: bool) -> Class:
        negated = self.pattern.startswith("^", self.at)
        self.at += negated
        low: set[int] = set()
        wide, first = False, True
        while first or self.pattern[self.at] != "]":
            first = False
            part = self._member()
            if isinstance(part, str) and self.pattern[self.at] == "-" and self.pattern[self.at + 1] != "]":
                self.at += 1
                last = self._member()
                part = _span(ord(part), ord(last) if isinstance(last, str) else 0x10FFFF)
            elif isinstance(part, str):
                part = _span(ord(part), ord(part))
            low |= part.low
            wide |= part.wide
        self.at += 1
        if fold:
            low |= {value ^ 32 for value in low if chr(value).isalpha()}
        return Class(_ASCII - low, True) if negated else Class(frozenset(low), wide)

    def _member(self) -> "Class | str":
        if self.pattern.startswith("[:", self.at):
            end = self.pattern.find(":]", self.at)
            name = self.pattern[self.at + 2 : end]
            self.at = end + 2
            low = _POSIX[name.lstrip("^")]
            return Class(_ASCII - low, True) if name.startswith("^") else Class(low, False)
        char = self.pattern[self.at]
        self.at += 1
        return self._escaped() if char == "\\" else char


def _span(first: int, last: int) -> Class:
    return Class(frozenset(range(first, min(last, 127) + 1)), last > 127)


def _flag_values(body: str) -> dict[str, bool]:
    on, _, off = body.partition("-")
    return dict.fromkeys(on, True) | dict.fromkeys(off, False)


def _literal(char: str, fold: bool) -> Node:
    if fold and ord(char) > 127:
        return Class(frozenset(b"kKsS"), True)
    return Literal(char.encode("utf-8", "surrogatepass"), fold)


def _join(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Neighbouring literals as one."""
    joined: list[Node] = []
    for node in nodes:
        before = joined[-1] if joined else None
        if isinstance(node, Literal) and isinstance(before, Literal) and node.fold == before.fold:
            joined[-1] = Literal(before.text + node.text, node.fold)
        else:
            joined.append(node)
    return tuple(joined)
