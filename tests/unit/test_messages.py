"""What programs print, line by line: every sample is understood, and nothing that only looks like it.

tests/data/messages.yaml holds message shapes of torch, NCCL, gloo, launchers, schedulers, data libraries, kernels and
others. `told`: what a line of that shape must be taken for, one of them for each sample and none for a look-alike:
the id of a signal, `xid N`, `rank` (whose line it is), `exit`, `stack`, `block` (the first line of something that takes
more lines), the name of a fact, or `raised` (an exception that only its stack or its surroundings tell from others).
Shapes that say nothing by themselves have no `told`, but a `why`.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from denpexd.catalog.load import load, shipped_rules
from denpexd.core.events import Activity, Event, Exit, Fact, Frames, Hit, Raised
from denpexd.core.raised import chain_matches
from denpexd.core.rule import Catalog, Signal
from denpexd.scan.engine import choose_engine
from denpexd.scan.prefixes import PrefixReader
from denpexd.scan.scanner import Scanner
from denpexd.scan.stream import Stream

MESSAGES = yaml.safe_load((Path(__file__).parents[1] / "data" / "messages.yaml").read_text())


@cache
def catalog() -> Catalog:
    return load([shipped_rules()])[0]


@cache
def scanner() -> Scanner:
    return Scanner([s for s in catalog().signals.values() if s.kind == "log"], choose_engine())


@cache
def about_exceptions() -> list[Signal]:
    return [
        s for rule in catalog().rules.values() for s in rule.signals.values() if s.fact == "raised" and _names_it(s)
    ]


def _names_it(signal: Signal) -> bool:
    """Whether type and message alone make the signal hold, and not just any exception."""
    return "in" not in signal.param_matchers and bool(signal.param_matchers)


def understood(line: str) -> set[str]:
    """Everything that a line alone is taken for."""
    stream = Stream(scanner(), "log", -1)
    events = stream.feed(1.0, 0, f"{line}\n".encode()) + stream.flush(9.0)
    found = {name for event in events for name in _names(event)}
    prefixes = PrefixReader()
    for _ in range(3):
        prefixes.sample(f"{line}\n".encode())
    if any(piece.rank >= 0 or piece.fields or piece.outer for piece in prefixes.read(line.encode())):
        found.add("rank")
    return found | {"block" for name in _built_in(line) if name != "exception"}


def _built_in(line: str) -> Iterator[str]:
    for _, _, ids in scanner().named(line.encode(), whole=True):
        for number in ids:
            if scanner().signal(number) is None and (known := scanner().built_in(number, line)) is not None:
                yield known[0]


def _names(event: Event) -> Iterator[str]:
    match event:
        case Hit():
            yield event.signal
            if "xid" in event.fields:
                yield f"xid {event.fields['xid']}"
        case Raised():
            yield "raised"
            yield from (s.id for s in about_exceptions() if chain_matches(s, event.chain) and not _excluded(s, event))
        case Exit():
            yield "exit"
        case Frames():
            yield "stack"
        case Fact():
            yield event.name
        case Activity():
            pass


def _excluded(signal: Signal, event: Raised) -> bool:
    return signal.exclude is not None and signal.exclude.search(event.text) is not None


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["id"])
def test_samples_are_understood_and_look_alikes_are_not(message: dict[str, Any]) -> None:
    told = set(message.get("told", ()))
    assert (told and "unread" not in message) or message["why"]
    for sample in message["samples"] if told else ():
        assert understood(sample) & told, sample
    for line in message.get("look_alikes", ()):
        assert not understood(line) & told, line


def test_every_signal_that_is_named_exists() -> None:
    known = {*catalog().signals, *(s.id for s in about_exceptions()), "rank", "exit", "stack", "block"}
    known |= {name for m in MESSAGES for name in m.get("told", ()) if "." not in name}  # facts, xid N
    assert {name for m in MESSAGES for name in m.get("told", ())} <= known
