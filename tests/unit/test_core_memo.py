"""Within one round of judging a question is answered once; outside of it, state may have changed."""

from denpexd.core.correlate import Correlator
from denpexd.core.events import Tick
from denpexd.core.rule import Catalog
from denpexd.core.state import JobState


def test_an_answer_is_kept_only_while_a_round_lasts() -> None:
    job = JobState("job", 0.0)
    asked: list[int] = []

    def answer() -> int:
        asked.append(1)
        return len(asked)

    assert [job.once("key", answer), job.once("key", answer)] == [1, 2]
    job.memo = {}
    assert [job.once("key", answer), job.once("key", answer), job.once("other", answer)] == [3, 3, 4]


def test_no_answer_outlives_a_batch() -> None:
    core = Correlator(Catalog(rules={}, signals={}), "job")
    core.feed([Tick(1.0)])
    assert core.job.memo is None
