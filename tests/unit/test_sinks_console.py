"""The console sink: the whole report when an incident opens, one line when it ends."""

import io

import pytest

from denpexd.errors import DeliveryError
from denpexd.notify.policy import Delivery
from denpexd.notify.rows import Row
from denpexd.notify.sinks import ConsoleSink

VERDICT = {"key": "k", "title": "Some hang", "hang": True, "certainty": "likely", "severity": "high", "failure": "f"}


def row(event: str) -> Row:
    state = "closed" if event == "closed" else "open"
    verdict = VERDICT | {"state": state}
    return Row(1, Delivery("console", "k", 1, event, "k:1", "first", verdict), "pending", 0, 0.0, 0.0)


async def test_prints_the_report() -> None:
    out = io.StringIO()
    await ConsoleSink("console", out, color=False, width=100).send(row("opened"))
    assert out.getvalue().startswith("● HANG  rank not determined  Some hang  (likely)\n")
    assert "denpexd explain f" in out.getvalue()


async def test_the_end_is_one_line() -> None:
    out = io.StringIO()
    await ConsoleSink("console", out, color=False, width=100).send(row("closed"))
    assert out.getvalue().startswith("✔ ")
    assert out.getvalue().count("\n") == 1


async def test_an_ascii_terminal_gets_what_it_can_show() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    await ConsoleSink("console", out, color=False, width=100).send(row("opened"))
    assert b"HANG" in raw.getvalue()


async def test_a_closed_stream_is_final() -> None:
    out = io.StringIO()
    out.close()
    with pytest.raises(DeliveryError) as caught:
        await ConsoleSink("console", out, color=False, width=100).send(row("opened"))
    assert not caught.value.retryable
