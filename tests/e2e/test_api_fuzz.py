"""The API under schemathesis: whatever fits its OpenAPI document, and much that does not, is answered as it says."""

from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from stand import stand

from denpexd.web.api import create_app

pytestmark = pytest.mark.web

if find_spec("schemathesis") is None:

    @pytest.mark.skip(reason="no schemathesis: pip install schemathesis")
    def test_answers_are_as_the_document_says() -> None: ...

else:
    import schemathesis
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    daemon = stand()
    # A stream of events ends after a minute only.
    app = create_app(daemon, reference=daemon, allowed_hosts=["testserver"])
    asked = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app).exclude(path="/api/v1/events")

    @asked.parametrize()
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def test_answers_are_as_the_document_says(case: Any) -> None:
        # No schema can say which words are cursors of ours, or that a log must hold more than blanks.
        case.call_and_validate(excluded_checks=[positive_data_acceptance])
