"""Hostile lines, rules, configurations and requests: no exception, no hang, nothing unbounded. `make fuzz` tries more.

The requests are made up from the routes of the application, as there is no OpenAPI document that could be followed.
"""

import asyncio
import os
import random
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from mutations import STRANGE, dice_of, mutated
from stand import Stand
from starlette.routing import Route

from denpexd.catalog.load import load, shipped_rules
from denpexd.core.cadence import Limits
from denpexd.core.events import UNKNOWN_RANK
from denpexd.errors import SettingsError
from denpexd.ingest.discover import Found
from denpexd.ingest.tail import TailRead
from denpexd.pipeline import Pipeline
from denpexd.scan.hyperscan_engine import HyperscanEngine
from denpexd.scan.re2_engine import Re2Engine
from denpexd.scan.scanner import Scanner
from denpexd.settings import load as load_settings
from denpexd.web.api import create_app

TIMES = int(os.environ.get("DENPEXD_EXPLORE", "1"))
SECONDS = 30.0  # of CPU time; usual are milliseconds
SHIPPED, _ = load([shipped_rules()])
RULES = sorted(shipped_rules().rglob("*.yaml"))
LINES = [
    "NVRM: Xid (PCI:0000:4f:00): 79, pid=17742, name=python, GPU has fallen off the bus.\n",
    "E0102 10:00:01.000000 4711 api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 4713) of binary: /bin/python3\n",
    'Traceback (most recent call last):\n  File "/ws/train.py", line 57, in <module>\n    main()\nValueError: bad\n',
    "[rank1]: RuntimeError: CUDA error: out of memory\n[rank0]:[E502 10:00:00.1 ProcessGroupNCCL.cpp:616] Watchdog\n",
    "step 1 loss 2.5 lr 1e-4 100%|####| 10/10 [00:01<00:00, 9.7it/s]\r",
    '{"rank": 3, "level": "error", "message": "nan", "step": 1e400}\n',
    *(
        text + "\n"
        for each in RULES
        for text in re.findall(r"(?m)^ +- log: \|?-?\n? *(.+)$", each.read_text("utf-8"))[:2]
    ),
]
CONFIG = """\
paths: ["/var/log/{job}/rank{rank}.log"]
job: run
state_dir: /tmp/state
sinks:
  - {type: webhook, url: "https://example.org/hook", timeout: 5s, headers: {X-Key: a}}
  - {type: alertmanager, url: "http://127.0.0.1:9093"}
web: {host: 127.0.0.1, port: 9199}
ingest: {sweep: 2s, max_line: 64KiB}
keep: {memory: 16MiB, size: 256MiB}
hang: {min_silence: 30s, budgets: {start: 10m}}
rules: []
"""


@pytest.mark.parametrize("engine", [HyperscanEngine, Re2Engine])
def test_no_line_ends_the_pipeline_and_what_it_says_is_bounded(engine: Any) -> None:
    scanner = Scanner([s for s in SHIPPED.signals.values() if s.kind == "log"], engine)
    dice = dice_of(1)
    for _ in range(4 * TIMES):
        pipeline = Pipeline(SHIPPED, scanner, start_t=0.0, limits=Limits(), record=(1 << 16, 60.0))
        files = [
            Found(Path(f"/logs/{n}.log"), "run", rank, None, "", False) for n, rank in enumerate((UNKNOWN_RANK, 0))
        ]
        at = [0, 0]
        for t in range(12):
            which = dice.randrange(2)
            text = mutated("".join(dice.choices(LINES, k=3)), dice).encode("utf-8", "surrogatepass")
            data = text if dice.random() < 0.7 else bytes(dice.choices(range(256), k=2000)) + text
            event = "truncated" if dice.random() < 0.1 else ""
            at[which] = 0 if event else at[which]
            began = time.process_time()
            outcome = pipeline.feed(files[which], TailRead(data, at[which], event=event), float(t))
            outcome.merge(pipeline.tick(float(t)))
            assert time.process_time() - began < SECONDS
            at[which] += len(data)
            assert len(outcome.journal) <= 5000
            assert all(len(line) < 1 << 20 for line in outcome.journal)
        pipeline.flush(20.0)
        pipeline.restore([], [dict(v) for job in pipeline.jobs.values() for v in job.core.verdicts()], 21.0)


def test_a_damaged_rule_is_a_mistake_with_its_place_and_nothing_else(tmp_path: Path) -> None:
    dice = dice_of(2)
    folder = tmp_path / "hang"
    folder.mkdir()
    for _ in range(40 * TIMES):
        original = dice.choice(RULES)
        path = folder / original.name
        path.write_bytes(damaged(original.read_text("utf-8"), dice).encode("utf-8", "surrogatepass"))
        began = time.process_time()
        catalog, errors = load([tmp_path], strict=False)
        assert time.process_time() - began < SECONDS
        assert catalog.rules or catalog.signals or errors
        assert [str(error)[:300] for error in errors if str(path) not in str(error) or len(str(error)) > 10_000] == []
        path.unlink()


def test_a_damaged_configuration_is_refused_with_a_message_or_taken(tmp_path: Path) -> None:
    dice = dice_of(3)
    path = tmp_path / "denpexd.yaml"
    for _ in range(100 * TIMES):
        path.write_bytes(damaged(CONFIG, dice).encode("utf-8", "surrogatepass"))
        began = time.process_time()
        said = complaint(path)
        assert time.process_time() - began < SECONDS
        assert said is None or (str(path) in said and len(said) < 20_000)


def complaint(path: Path) -> str | None:
    """What is wrong with a configuration."""
    try:
        load_settings(path, overrides={}, environ={})
    except SettingsError as error:
        return str(error)
    return None


def damaged(text: str, dice: random.Random) -> str:
    """As text, or as YAML of the same kind in which values went elsewhere."""
    if dice.random() < 0.5:
        return mutated(text, dice)
    content = yaml.safe_load(text)
    for _ in range(dice.randint(1, 4)):
        shaken(content, dice)
    return yaml.safe_dump(content, allow_unicode=True)


def shaken(content: Any, dice: random.Random) -> None:
    """Give one value somewhere below another type, or a strange text."""
    strange: list[Any] = [
        None,
        [],
        {},
        -1,
        1e308,
        True,
        "",
        [[]],
        {"a": {}},
        *STRANGE[:6],
        "(a+)+$",
        "(?=x)",
        "x" * 9999,
    ]
    while isinstance(content, dict | list) and content:
        key: Any = dice.choice(list(content)) if isinstance(content, dict) else dice.randrange(len(content))
        if not isinstance(content[key], dict | list) or not content[key] or dice.random() < 0.3:
            content[key] = dice.choice(strange)
            if isinstance(content, dict) and dice.random() < 0.3:
                content[dice.choice(("extra", "", 7, key))] = content.pop(key)
            return
        content = content[key]


APP = create_app(Stand(), token="t", host="127.0.0.1")
PATHS = [route.path for route in APP.routes if isinstance(route, Route)]
TEXT = st.text(max_size=40)
KNOWN = ["127.0.0.1:9199", "localhost", "Bearer t", "Bearer ", "gzip", "*/*", "application/openmetrics-text", "null"]
HEADERS = ["accept", "accept-encoding", "authorization", "origin", "host", "range", "cookie", "sec-fetch-site", "x"]


@given(
    path=st.sampled_from(PATHS),
    put=TEXT,
    more=st.just("") | TEXT,
    query=st.dictionaries(st.sampled_from(["state", "limit", "token", "x"]), TEXT, max_size=3),
    headers=st.lists(st.tuples(st.sampled_from(HEADERS), st.sampled_from(KNOWN) | TEXT), max_size=4),
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"]),
    body=st.binary(max_size=200),
)
async def test_no_request_is_an_error_of_the_server(
    path: str,
    put: str,
    more: str,
    query: dict[str, str],
    headers: list[tuple[str, str]],
    method: str,
    body: bytes,
) -> None:
    path = re.sub(r"\{\w+(:int)?(:path)?\}", lambda m: str(len(put)) if m[1] else put, path) + more
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path, errors="replace").encode(),
        "root_path": "",
        "query_string": urlencode(query, errors="replace").encode(),
        "headers": [(b"host", b"127.0.0.1"), *((k.encode(), v.encode("utf-8", "replace")) for k, v in headers)],
        "client": ("127.0.0.1", 40_000),
        "server": ("127.0.0.1", 9199),
    }
    sent: list[Any] = []
    given = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        return next(given, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(SECONDS):
        await APP(scope, receive, send)
    assert sent[0]["status"] < 500
    assert sum(len(message.get("body", b"")) for message in sent) < 1 << 20
    assert (b"x-content-type-options", b"nosniff") in sent[0]["headers"]
