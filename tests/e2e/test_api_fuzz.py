"""The API under schemathesis: whatever fits its OpenAPI document, and much that does not, is answered as it says."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from stand import stand, verdict

from denpexd.clock import ManualClock
from denpexd.core.events import Joined, Opened
from denpexd.handling import Handling
from denpexd.notify.outbox import Store
from denpexd.snapshot import DaemonView
from denpexd.watched import Outcome
from denpexd.web.api import create_app
from denpexd.web.openapi import document
from tests.unit.test_handling import START, Site

pytestmark = pytest.mark.web

schemathesis = pytest.importorskip("schemathesis", reason="no schemathesis: pip install schemathesis")

OPERATIONS = [
    (path, method)
    for path, item in document()["paths"].items()
    for method in item
    if path != "/api/v1/events"  # ends after a minute only
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The API of a real daemon that knows a job and an incident."""
    clock = ManualClock(START, START)
    with Store(tmp_path_factory.mktemp("state") / "x.sqlite", clock) as store:
        site = Site(store, clock)
        site.daemon.pipeline.evidence("run-7", [Joined(START, 0, node="gpu-17", pid=7, world_size=4)])
        asyncio.run(site.daemon.handle(Outcome([Opened(verdict())])))
        actions = Handling(site.daemon)
        app = create_app(DaemonView(site.daemon), reference=stand(), actions=actions, allowed_hosts=["testserver"])
        yield schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_answers_are_as_the_document_says(api: Any, path: str, method: str, mode: str) -> None:
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    cases = api[path][method].as_strategy(generation_mode=schemathesis.GenerationMode(mode))

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(case=cases)
    def asked(case: Any) -> None:
        # No schema can say which words are cursors of ours, or that a log must hold more than blanks.
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    try:
        asked()
    except Unsatisfiable:
        pytest.skip("nothing can be asked wrongly")
