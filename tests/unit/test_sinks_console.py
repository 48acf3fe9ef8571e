"""The console sink: the whole report when an incident opens, one line when it ends."""

import io
from dataclasses import replace

import pytest

from denpexd.errors import DeliveryError
from denpexd.notify.message import Links
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
    await ConsoleSink("console", out, Links(), color=False, width=100).send(row("opened"))
    assert out.getvalue().startswith("● HANG  rank not determined  Some hang  (likely)\n")
    assert "denpexd explain f" in out.getvalue()


async def test_idle_hours_and_links_are_told() -> None:
    out, links = (
        io.StringIO(),
        Links("https://d.example", "https://r.example", {"dashboard": "https://g.example/{key}"}),
    )
    since = {
        "opened_t": 1_700_000_000.0,
        "stopped_t": 1_700_000_000.0,
        "initiating_ranks": [0],
        "collateral_ranks": [1],
    }
    told = row("opened")
    told = replace(told, created=1_700_003_600.0, delivery=replace(told.delivery, verdict=VERDICT | since))
    await ConsoleSink("console", out, links, color=False, width=40).send(told)
    assert "  idle       2 GPU-hours (2 ranks x 1 h; one GPU a rank, no rank has worked since)\n" in out.getvalue()
    assert "  console    https://d.example/incidents/k\n" in out.getvalue()
    assert "  dashboard  https://g.example/k\n" in out.getvalue()
    assert "r.example" not in out.getvalue()


async def test_the_end_is_one_line() -> None:
    out = io.StringIO()
    await ConsoleSink("console", out, Links(), color=False, width=100).send(row("closed"))
    assert out.getvalue().startswith("✔ ")
    assert out.getvalue().count("\n") == 1


async def test_an_ascii_terminal_gets_what_it_can_show() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    await ConsoleSink("console", out, Links(), color=False, width=100).send(row("opened"))
    assert b"HANG" in raw.getvalue()


async def test_a_closed_stream_is_final() -> None:
    out = io.StringIO()
    out.close()
    with pytest.raises(DeliveryError) as caught:
        await ConsoleSink("console", out, Links(), color=False, width=100).send(row("opened"))
    assert not caught.value.retryable
