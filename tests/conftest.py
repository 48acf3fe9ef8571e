"""Generated tests are the same in every run: no landing depends on luck. `make explore` looks for new failures."""

import os

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
