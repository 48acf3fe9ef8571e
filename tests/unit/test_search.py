"""Failures found by the text of an error, without a network."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from denpexd.catalog.load import load, shipped_rules
from denpexd.cli import main
from denpexd.scan.re2_engine import Re2Engine
from denpexd.search import Search

SHIPPED, _ = load([shipped_rules()])
TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)
TRACEBACK = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/ws/train.py", line 62, in main
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB
"""


@pytest.fixture(scope="module")
def shipped() -> Search:
    return Search(SHIPPED, Re2Engine)


@pytest.mark.parametrize(
    "text", [TRACEBACK, TRACEBACK.splitlines()[-1], "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"]
)
def test_a_pasted_error_finds_its_failure(shipped: Search, text: str) -> None:
    assert shipped(text)[0].rule.id == "cuda-out-of-memory"


def test_signals_of_the_rules_are_proof_and_are_quoted(shipped: Search) -> None:
    first, *others = shipped(TRACEBACK, 20)
    assert "CUDA out of memory" in first.quotes[0][0]
    assert first.quotes[0][1] in {signal.means for signal in first.rule.signals.values()}
    proven = [bool(found.quotes) for found in [first, *others]]
    assert proven == sorted(proven, reverse=True)


def test_what_only_rules_something_out_is_no_proof() -> None:
    found = Search(TINY, Re2Engine)("sync layers in use\nexchanging statistics", 20)
    assert all(f.rule.id != "stuck" or not f.quotes for f in found)


@pytest.mark.parametrize(
    ("words", "failure"),
    [
        ("one rank evaluates alone with SyncBatchNorm", "syncbatchnorm-single-rank-eval-deadlock"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "cuda-out-of-memory"),
        ("killed by the OOM killer", "rank-oom-killed"),
        ("lmdb damaged", "lmdb-corruption"),
        ("find_unused_parameters", "ddp-unused-parameters"),
        ("batchnorm running_mean differs between ranks", "batchnorm-ddp-stats-divergence"),
    ],
)
def test_words_find_a_failure_among_the_first_three(shipped: Search, words: str, failure: str) -> None:
    assert failure in [found.rule.id for found in shipped(words, 3)]


@pytest.mark.parametrize(
    ("word", "failures"),
    [
        ("oom", ["cuda-out-of-memory", "cuda-oom-other-process", "rank-oom-killed"]),
        ("out of memory", ["cuda-out-of-memory"]),
        ("hang", ["silent-hang", "collective-timeout-undetermined", "rank-only-collective"]),
        ("stuck", ["collective-timeout-undetermined", "silent-hang"]),
        ("deadlock", ["rank-only-collective"]),
        ("nan", ["nan-loss", "nan-gradient-local"]),
        ("timeout", ["collective-timeout-undetermined"]),
        ("killed", ["rank-oom-killed"]),
        ("sigsegv", ["rank-segfault"]),
        ("crash", ["single-rank-exception", "rank-segfault"]),
        ("xid", ["gpu-ecc-double-bit", "gpu-fallen-off-bus"]),
        ("gpu lost", ["gpu-fallen-off-bus"]),
        ("loss spike", ["loss-spike-divergence"]),
        ("slow", ["straggler", "throughput-collapse"]),
        ("rdma", ["nccl-ib-failure", "ib-link-down"]),
        ("preempted", ["spot-preemption", "slurm-preemption", "preempted-sigterm"]),
        ("no space left", ["disk-full"]),
    ],
)
def test_a_word_for_a_failure_finds_what_carries_it_first(shipped: Search, word: str, failures: list[str]) -> None:
    found = [found.rule.id for found in shipped(word, 4)]
    assert set(failures) <= set(found)
    assert found[0] in failures


@pytest.mark.parametrize("text", ["qqqq", "the of and", "\x00\udcff", "{" * 2000, "?" * 5000])
def test_text_that_tells_nothing_finds_nothing(shipped: Search, text: str) -> None:
    assert shipped(text) == []


def test_order_does_not_depend_on_chance(shipped: Search) -> None:
    runs = [[(f.rule.id, f.words) for f in shipped("timeout of a collective in a barrier", 20)] for _ in range(2)]
    assert runs[0] == runs[1]


def call(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["search", *arguments], input=given)


def test_the_command_lists_what_to_read_next() -> None:
    result = call("CUDA", "out", "of", "memory", "--limit", "2")
    assert result.exit_code == 0
    assert result.output.startswith("1. GPU memory exhausted  (high)\n")
    assert "   denpexd explain cuda-out-of-memory\n" in result.output
    assert "3. " not in result.output


def test_the_command_reads_standard_input_and_hides_secrets() -> None:
    secret = "hf_" + "a" * 34
    text = TRACEBACK.replace("GPU 0", f"token={secret} GPU 0")
    for form in ("text", "json"):
        result = call("-", "--format", form, given=text)
        assert result.exit_code == 0
        assert secret not in result.output
    (first, *_) = json.loads(result.output)["found"]
    assert (first["id"], bool(first["matches"])) == ("cuda-out-of-memory", True)


@pytest.mark.parametrize(("given", "code"), [("qqqq", 1), ("  \n", 2)])
def test_exit_codes(given: str, code: int) -> None:
    assert call("-", given=given).exit_code == code
