"""Generated tests are the same in every run: no landing depends on luck. `make explore` looks for new failures."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = 25
TIMES = int(os.environ.get("DENPEXD_EXPLORE", "1"))  # as many examples as usual
NEW = bool(os.environ.get("DENPEXD_NEW_SEEDS"))  # other examples in every run

settings.register_profile(
    "denpexd",
    max_examples=EXAMPLES * TIMES,
    derandomize=not NEW,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("denpexd")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of several test processes one tells the stories of e2e (`xdist_group` does nothing with pytest 9.2); it has all
    tests of their files, and as the largest group they are the first.
    """
    from xdist.scheduler import LoadScopeScheduling

    files = (Path(__file__).parent / "e2e").glob("test_*.py")
    told = {file.name for file in files if "\nSTORIES" in file.read_text("utf-8")}

    class OneTells(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "stories" if Path(nodeid.partition("::")[0]).name in told else nodeid

    return OneTells(config, log)


TALLIES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="module", autouse=True)
def _tally(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the sequences of a module have tried, where it counts that."""
    yield
    if counts := getattr(request.module, "TALLY", None):
        said = f"{request.node.name}: " + ", ".join(f"{n:,} {what}" for what, n in counts.items())
        request.config.stash.setdefault(TALLIES, []).append(said)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for said in terminalreporter.config.stash.get(TALLIES, []):
        terminalreporter.write_line(said)
