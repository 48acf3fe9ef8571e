"""A pattern for decoded lines as a byte-level prefilter: everything the pattern accepts, a little more, never less.

The exact matcher sees one decoded line without prefixes; a prefilter sees raw bytes of many lines. So anchors go
(lines carry prefixes), classes never cross a line or a carriage return, a class that admits non-ASCII text admits the
one to four bytes of such a character, and repeats at either end go too: they change where a match ends, not whether
there is one (an engine that reports every end would report each byte of `.*`). The one exception to "never less":
Unicode's two look-alikes of ASCII letters (KELVIN SIGN, LONG S) under (?i).
"""

import random

from denpexd.scan.syntax import WORD, Boundary, Choice, Class, Literal, Node, Repeat, Sequence, parse

_BREAKS = frozenset(b"\r\n")
_EMPTY = Sequence(())
_BYTES_PER_CHARACTER = 4
_LONGEST_REPEAT = 8  # a longer one becomes unbounded: one state instead of many, at a few more false candidates
_LITERAL = 4  # bytes that a literal needs to stand for a pattern alone
_RARE = 6  # bytes from which on a literal is so rare in logs that a longer one makes nothing faster


def trimmed(pattern: str) -> Node:
    """The tree of a valid RE2 pattern without the repeats at its ends: what the functions below work on."""
    return _trim(_trim(parse(pattern), last=True), last=False)


def loosen(tree: Node) -> bytes | None:
    """The prefilter, in syntax common to hyperscan and RE2; None: every line may match."""
    return None if _may_be_empty(tree) else _emit(tree)


def from_literal(tree: Node) -> bytes | None:
    """As loosen, but each alternative starts at its first rare literal, or else at its longest.

    A literal that ordinary lines are full of ("step", "atal" in "dataloader") costs time at each of them. And
    hyperscan 5.4.12 loses matches of patterns that begin with the same small automaton: of `\\[\\d+\\] is setting up`
    and `\\[\\d+\\]: params\\[` in one database the second never finds "[1]: params[".
    """
    return None if _may_be_empty(tree) else _emit(_from_rare(tree))


def longest_literal(tree: Node) -> bytes | None:
    """The longest literal that every match holds; None where there is none of four bytes."""
    found = _longest(tree)
    return _emit(found) if found is not None and len(found.text) >= _LITERAL else None


def samples(tree: Node, count: int, seed: int) -> list[bytes]:
    """Byte strings that the loosened pattern accepts: one with as few repeats as possible, the others at random."""
    chance = random.Random(seed)  # noqa: S311 - test data, not secrets
    return [_sample(tree, chance, 0 if number == 0 else 4) for number in range(count)]


def _may_be_empty(node: Node) -> bool:
    match node:
        case Literal(text):
            return not text
        case Class():
            return False
        case Repeat(inner, low):
            return low == 0 or _may_be_empty(inner)
        case Sequence(nodes):
            return all(map(_may_be_empty, nodes))
        case Choice(nodes):
            return any(map(_may_be_empty, nodes))
        case Boundary():
            return True


def _trim(node: Node, last: bool) -> Node:
    """Without the optional part at its end (`last`) or start."""
    match node:
        case Repeat(inner, low):
            return _EMPTY if low == 0 else _trim(inner, last) if low == 1 else Repeat(inner, low, low)
        case Choice(nodes):
            parts = tuple(_trim(part, last) for part in nodes)
            return _EMPTY if _EMPTY in parts else Choice(parts)
        case Sequence(nodes):
            rest = list(nodes)
            while rest:
                at = len(rest) - 1 if last else 0
                rest[at] = _trim(rest[at], last)
                if rest[at] != _EMPTY:
                    break
                del rest[at]
            return Sequence(tuple(rest))
        case _:
            return node


def _from_rare(node: Node) -> Node:
    match node:
        case Choice(nodes):
            return Choice(tuple(map(_from_rare, nodes)))
        case Sequence(nodes) if nodes:
            rarity = [min(_least(part), _RARE) for part in nodes]
            at = rarity.index(max(rarity))
            return Sequence((_from_rare(nodes[at]), *nodes[at + 1 :])) if rarity[at] else node
    return node


def _least(node: Node) -> int:
    """Length of the shortest literal that a match may have to offer; 0: of some match none is known."""
    match node:
        case Literal(text):
            return len(text)
        case Choice(nodes):
            return min(map(_least, nodes))
        case Sequence(nodes):
            return max(map(_least, nodes), default=0)
        case Repeat(inner, low):
            return _least(inner) if low else 0
    return 0


def _longest(node: Node) -> Literal | None:
    match node:
        case Literal():
            return node
        case Repeat(inner, low):
            return _longest(inner) if low else None
        case Sequence(nodes):
            found = [literal for literal in map(_longest, nodes) if literal is not None]
            return max(found, key=lambda literal: len(literal.text), default=None)
    return None


def _sample(node: Node, chance: random.Random, more: int) -> bytes:
    match node:
        case Literal(text):
            return text
        case Class(low, wide):
            plain = sorted(value for value in low if 32 <= value < 127) or sorted(low - _BREAKS)
            return (
                "é".encode()
                if wide and (not plain or (more and chance.random() < 0.05))
                else bytes([chance.choice(plain or [0])])
            )
        case Repeat(inner, low, high):
            times = low + chance.randint(0, more if high is None else min(more, high - low))
            return b"".join(_sample(inner, chance, more) for _ in range(times))
        case Sequence(nodes):
            return b"".join(_sample(part, chance, more) for part in nodes)
        case Choice(nodes):
            return _sample(chance.choice(nodes), chance, more)
        case Boundary():
            return b""


def _emit(node: Node) -> bytes:
    match node:
        case Literal(text, fold):
            body = b"".join(_byte(value) for value in text)
            return b"(?i:" + body + b")" if fold else body
        case Class(_, wide):
            return _set(node) + (b"{1,4}" if wide else b"")
        case Repeat(inner, low, high):
            return _emit_repeat(inner, low, high)
        case Sequence(nodes):
            return b"".join(b"(?:" + _emit(part) + b")" if isinstance(part, Choice) else _emit(part) for part in nodes)
        case Choice(nodes):
            return b"|".join(_emit(part) for part in nodes)
        case Boundary():
            return rb"\b"


def _emit_repeat(inner: Node, low: int, high: int | None) -> bytes:
    unit = b"(?:" + _emit(inner) + b")"
    if isinstance(inner, Class):
        unit = _set(inner)
        if inner.wide and high is not None:
            high *= _BYTES_PER_CHARACTER
    if high is None or high > _LONGEST_REPEAT:
        return unit + {0: b"*", 1: b"+"}.get(low, b"{%d,}" % low)
    return unit + (b"?" if (low, high) == (0, 1) else b"{%d}" % low if low == high else b"{%d,%d}" % (low, high))


def _set(node: Class) -> bytes:
    members = sorted(node.low - _BREAKS) + (list(range(128, 256)) if node.wide else [])
    spans: list[list[int]] = []
    for value in members or [0]:
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    return b"[" + b"".join(b"\\x%02x-\\x%02x" % (first, last) for first, last in spans) + b"]"


def _byte(value: int) -> bytes:
    return bytes([value]) if value in WORD or value in b" \"',:;<>=/%@!&~`" else b"\\x%02x" % value
