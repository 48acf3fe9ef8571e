"""Prefilters and engines: everything the exact matcher accepts is named, by both engines."""

import logging
import re
import subprocess
import sys
import threading

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from denpexd.scan.engine import Engine, EngineFactory, choose_engine
from denpexd.scan.loosen import from_literal, loosen, samples, trimmed
from denpexd.scan.re2_engine import Re2Engine
from denpexd.scan.scanner import Scanner

hyperscan_engine = pytest.importorskip("denpexd.scan.hyperscan_engine")
HyperscanEngine = hyperscan_engine.HyperscanEngine

PATTERNS = (
    r"^\[rank(?P<rank>\d+)\]: ?",
    r"OpType=(?P<op>[A-Z_0-9]+)",
    r"(?i)\b(?:start(?:ing|ed)?|begin)\b[^\n]{0,20}\b(?:eval|validation)\b|\*{3,} Running",
    r"(?P<pct>\d+)%\|[^|]*\| ?(?P<n>\d+(?:\.\d+)?[kMG]?)/(?P<total>\d+)",
    r"loss.{1,3}nan$",
    r"a.b",
    r"[█▏]{2,}",
    r"caf[éè] [[:alpha:]]+",
    r"\Qx.y*\E\d{2}",
    r"(?i:err)OR \S+\s",
    r"^Xid \D+(?P<xid>\d{1,3}),",
    r"\[(?P<rank>\d+)\] is setting up NCCL communicator",
    r"\[(?P<rank>\d+)\]: params\[(?P<i>\d+)\] in this process",
    r"\x41\x{e9}?[^\w\s]{2}",
    r"(?:foo|bar|)baz\b",
)
TOKENS = (
    "[rank3]: ", "OpType=ALLREDUCE", "starting the Validation", "*** Running", " 24%|██▍ | 120/500", "loss nan",
    "loss =nan", "a█b", "axb", "██▏", "café au", "x.y*42", "ERROR x ", "Xid (a): 79,",
    "[1] is setting up NCCL communicator",
    "[1]: params[0] in this process", "Aé!!", "foobaz", "baz", "plain", "12", " ", "é", "\t",
)  # fmt: skip
PIECES = st.one_of(
    st.sampled_from([token.encode() for token in TOKENS]),
    st.sampled_from([b"\xff", b"\xc3", b"\x00", b"\r", b"\n", b"\r\n"]),
    st.binary(max_size=3),
)
DATA = st.lists(PIECES, max_size=40).map(b"".join)
ENGINES: tuple[EngineFactory, ...] = (HyperscanEngine, Re2Engine)


def segments(data: bytes) -> list[tuple[int, int]]:
    ends = [found.start() for found in re.finditer(rb"[\r\n]", data)] + [len(data)]
    return list(zip([0] + [end + 1 for end in ends[:-1]], ends, strict=True))


@pytest.fixture(scope="module")
def engines() -> list[Engine]:
    return [make(PATTERNS) for make in ENGINES]


@given(data=DATA)
@settings(max_examples=300, deadline=None)
def test_no_engine_misses_a_segment_that_the_exact_matcher_accepts(engines: list[Engine], data: bytes) -> None:
    exact = [re2.compile(pattern) for pattern in PATTERNS]
    wanted = {
        (start, index)
        for start, end in segments(data)
        for index, pattern in enumerate(exact)
        if end > start and pattern.search(data[start:end].decode("utf-8", "replace")) is not None
    }
    for engine in engines:
        named = {
            (max(start for start, _ in segments(data) if start <= position), index)
            for position, index in engine.scan(data)
        }
        assert wanted <= named, engine.name


@pytest.mark.parametrize("make", ENGINES)
def test_patterns_that_share_a_beginning_do_not_hide_each_other(make: EngineFactory) -> None:
    engine = make([r"\[(?P<rank>\d+)\] is setting up NCCL communicator", r"\[(?P<rank>\d+)\]: params\["])
    for number in range(12):
        data = b"." * 80 + b"[%d]: params[" % number + b"." * 80
        assert [index for _, index in engine.scan(data)] == [1]


@pytest.mark.parametrize("make", ENGINES)
def test_a_candidate_lies_inside_the_hit_segment(make: EngineFactory) -> None:
    data = b"nothing\nold bar\rOpType=RECV more\nnothing\n"
    hits = {data.rfind(b"\r", 0, position) for position, _ in make([r"OpType=\w+.*"]).scan(data)}
    assert hits == {data.index(b"\r")}


@pytest.mark.parametrize("make", ENGINES)
def test_a_pattern_that_may_match_anything_names_every_segment(make: EngineFactory) -> None:
    hits = make([r"x*", "needle"]).scan(b"a\nb\rneedle")
    assert [position for position, index in hits if index == 0] == [0, 2, 4]
    assert {index for _, index in hits} == {0, 1}


@pytest.mark.parametrize("make", ENGINES)
def test_an_engine_without_patterns_finds_nothing(make: EngineFactory) -> None:
    assert make([]).scan(b"anything\n") == []


def test_optional_ends_are_cut_and_anchors_dropped() -> None:
    assert loosen(trimmed(r"^\s*foo\d+.*$")) == rb"foo[\x30-\x39]"
    assert loosen(trimmed(r"x*")) is None


def test_a_prefilter_starts_at_a_literal_that_ordinary_lines_do_not_hold() -> None:
    assert from_literal(trimmed(r"[Ff]atal.*(?:\[Errno 28\]|No space left)")) == rb"(?:\x5bErrno 28\x5d|No space left)"
    assert from_literal(trimmed(r"(?:e|ing) best=\d+")) == rb" best=[\x30-\x39]"
    assert from_literal(trimmed(r"ab\d+cd")) == rb"ab[\x30-\x39]+cd"
    assert from_literal(trimmed(r"\d+-\d+")) == rb"\x2d[\x30-\x39]"


def test_samples_are_accepted_by_the_pattern_they_come_from() -> None:
    for index, pattern in enumerate(PATTERNS):
        engine = Re2Engine([pattern])
        made = samples(trimmed(pattern), 5, index)
        assert any(engine.scan(sample) for sample in made), pattern


def test_many_threads_share_one_hyperscan_database() -> None:
    engine = HyperscanEngine(PATTERNS)
    data = b"x OpType=ALLREDUCE y\n" * 2000
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(len(engine.scan(data)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(counts)) == 1
    assert counts[0] >= 2000


def test_a_pattern_that_hyperscan_refuses_runs_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = loosen(trimmed("odd one"))
    monkeypatch.setattr(
        hyperscan_engine, "from_literal", lambda tree: b"(" if loosen(tree) == refused else loosen(tree)
    )
    engine = HyperscanEngine(["plain", "odd one"])
    assert {index for _, index in engine.scan(b"plain\nodd one\n")} == {0, 1}


def test_what_goes_wrong_while_it_compiles_is_raised_to_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room for the database")

    monkeypatch.setattr(hyperscan_engine, "_compile_all", broken)
    scanner = Scanner([], HyperscanEngine)
    with pytest.raises(MemoryError, match="no room"):
        scanner.wait()


def test_a_process_that_ends_while_rules_are_compiled_waits_for_that() -> None:
    code = (
        "import atexit, threading\n"
        "from denpexd.scan.hyperscan_engine import HyperscanEngine\n"
        "atexit.register(lambda: print(*(thread.name for thread in threading.enumerate())))\n"
        "HyperscanEngine([f'worker {n} .{{0,40}} lost (?:node|gpu) {n}' for n in range(400)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"MainThread\n")


def test_the_choice_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert choose_engine() is HyperscanEngine
    assert "hyperscan (self-test passed)" in caplog.text


def test_the_self_test_knows_the_right_counts() -> None:
    hyperscan_engine.self_test()
