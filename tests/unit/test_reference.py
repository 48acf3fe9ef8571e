"""What the console knows without a job: the encyclopedia, its search, and pasted logs, which a child reads."""

import asyncio
from pathlib import Path

import pytest

from denpexd import reference
from denpexd.catalog.packs import Packs, load_packs
from denpexd.errors import SourceError
from denpexd.reference import RuleReference
from denpexd.web import server

OOM = (Path(__file__).parents[1] / "e2e" / "jobs" / "oom.txt").read_bytes()


@pytest.fixture(scope="module")
def packs() -> Packs:
    return load_packs([])


@pytest.fixture
def known(packs: Packs) -> RuleReference:
    return RuleReference(lambda: packs)


def test_every_rule_is_an_entry_and_every_entry_an_article(known: RuleReference, packs: Packs) -> None:
    entries = known.entries()
    assert {entry.id for entry in entries} == set(packs.catalog.rules)
    for entry in entries:
        article = known.article(entry.id)
        assert article is not None
        assert article.chapters[0].head == "What to do"
        assert article.data["id"] == entry.id
        assert "{" not in entry.quick_answer
    alias, failure = next(iter(packs.catalog.aliases.items()))
    assert (known.article(alias) or pytest.fail(alias)).entry.id == failure
    assert known.article("nope") is None


def test_a_line_finds_its_failure_and_secrets_in_it_are_hidden(known: RuleReference) -> None:
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB token=hf_abcdefghijklmnopqrstuvwxyz0123"
    )
    first, *_ = known.search(line)
    assert first.id == "cuda-out-of-memory"
    assert first.quotes
    assert "hf_abcdefghij" not in str(first.quotes)


async def test_a_child_explains_a_log_and_leaves_nothing(
    known: RuleReference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    explained = asyncio.create_task(known.diagnose(OOM + b"password=hunter2secret\n"))
    await asyncio.sleep(0)
    with pytest.raises(BlockingIOError):
        await known.diagnose(OOM)
    verdicts = await explained
    assert [v["failure"] for v in verdicts] == ["cuda-out-of-memory"]
    assert "hunter2secret" not in str(verdicts)
    assert list(tmp_path.iterdir()) == []


async def test_what_is_no_log_is_said(known: RuleReference, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "denpexd: stdin: is not a text log, token=hf_abcdefghijklmnopqrstuvwxyz0123"
    monkeypatch.setattr(reference, "_CHILD", f"import sys; sys.stderr.write({said!r}); sys.exit(2)")
    with pytest.raises(SourceError, match=r"not a text log(?!.*hf_abc)"):
        await known.diagnose(bytes(range(256)) * 50)


async def test_what_takes_too_long_is_given_up(known: RuleReference, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_CHILD", "import time; time.sleep(60)")
    monkeypatch.setattr(reference, "SECONDS", 0.3)
    with pytest.raises(SourceError, match="took more than"):
        await known.diagnose(OOM)
    monkeypatch.setattr(reference, "_CHILD", "raise MemoryError")
    monkeypatch.setattr(reference, "SECONDS", 30.0)
    with pytest.raises(SourceError, match="too much memory or time"):
        await known.diagnose(OOM)


def test_whoever_pastes_a_slow_log_is_still_told_why_there_is_no_answer() -> None:
    assert reference.SECONDS + 5 < server.ANSWERING
