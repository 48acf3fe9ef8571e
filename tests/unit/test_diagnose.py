"""Finished logs are explained as the daemon would have explained them, and nothing is claimed that they do not say."""

import gzip
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denpexd.catalog.load import load, shipped_rules
from denpexd.clock import ManualClock
from denpexd.diagnose import Diagnosis
from denpexd.errors import SourceError

STEPS = "".join(f"epoch 0 step {n}/900 loss 2.31\n" for n in range(40))
BOOM = """Traceback (most recent call last):
  File "/ws/train.py", line 88, in <module>
    main()
  File "/ws/train.py", line 61, in main
    raise ValueError("bad sample at index 17")
ValueError: bad sample at index 17
"""
CLOSED = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/ws/train.py", line 49, in main
[rank{rank}]:     dist.all_reduce(g)
[rank{rank}]: RuntimeError: [/pytorch/third_party/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:9
"""
UNICODE = """Traceback (most recent call last):
  File "/ws/data.py", line 12, in read
    text = f.read()
  File "/usr/lib/python3.11/codecs.py", line 322, in decode
    (result, consumed) = self._buffer_decode(data, self.errors, final)
UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position 10: invalid continuation byte
"""
HDF5 = """Traceback (most recent call last):
  File "/ws/data.py", line 40, in __getitem__
    return self.file["images"][index]
  File "h5py/_objects.pyx", line 54, in h5py._objects.with_phil.wrapper
  File "/opt/conda/lib/python3.10/site-packages/h5py/_hl/dataset.py", line 841, in __getitem__
    self.id.read(mspace, fspace, arr, mtype, dxpl=self._dxpl)
OSError: Can't read data (inflate() failed)
"""
OOM = """Traceback (most recent call last):
  File "train.py", line 120, in <module>
    loss = model(x)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB.
"""
UNUSED = """Traceback (most recent call last):
  File "train.py", line 55, in <module>
    output = model(batch)
RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error \
indicates that your module has parameters that were not used in producing loss.
Parameter indices which did not receive grad for rank 0: 2 3
"""
SYNCBN = """Process 27284: python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 27284 (idle): "MainThread"
    all_gather (torch/distributed/distributed_c10d.py:4287)
    forward (torch/nn/modules/_functions.py:83)
    forward (torch/nn/modules/batchnorm.py:888)
    evaluate (train.py:27)
    <module> (train.py:40)
"""
BARRIER = """Process {pid}: python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:5356)
    wrapper (torch/distributed/c10d_logger.py:83)
    <module> (train.py:41)
"""


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    catalog, errors = load([shipped_rules()])
    assert not errors
    return Diagnosis(catalog, clock=ManualClock())


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def verdicts(diagnosis: Diagnosis, *paths: Path | str, stdin: str = "") -> list[dict[str, Any]]:
    return [dict(v) for v in diagnosis.paths([str(path) for path in paths], io.BytesIO(stdin.encode()))]


def only(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    assert len(found) == 1, [v["failure"] for v in found]
    return found[0]


def stamped(text: str, start: int, every: float = 1.0) -> str:
    """Each line with a time, from `start` seconds past ten o'clock on."""
    lines = text.splitlines()
    seconds = [start + int(n * every) for n in range(len(lines))]
    return "".join(
        f"2025-03-15 10:{s // 60:02d}:{s % 60:02d} INFO {line}\n" for s, line in zip(seconds, lines, strict=True)
    )


# --- what is pasted ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "failure", "ranks"),
    [
        (HDF5, "hdf5-data-corruption", []),
        (OOM, "cuda-out-of-memory", []),
        (UNICODE, "text-encoding-mismatch", []),
        (UNUSED, "ddp-unused-parameters", [0]),
        (BOOM, "single-rank-exception", []),
    ],
)
def test_a_pasted_traceback_is_enough(diagnosis: Diagnosis, text: str, failure: str, ranks: list[int]) -> None:
    verdict = only(verdicts(diagnosis, "-", stdin=text))
    assert (verdict["failure"], verdict["initiating_ranks"]) == (failure, ranks)
    assert verdict["certainty"] == "likely"


def test_tags_of_a_merged_stream_tell_victims_from_the_culprit(diagnosis: Diagnosis) -> None:
    culprit = "".join(f"[rank2]: {line}\n" for line in BOOM.splitlines())
    verdict = only(verdicts(diagnosis, "-", stdin=STEPS + culprit + CLOSED.format(rank=0) + CLOSED.format(rank=1)))
    assert (verdict["failure"], verdict["initiating_ranks"]) == ("single-rank-exception", [2])
    assert verdict["collateral_ranks"] == [0, 1]
    assert verdict["certainty"] == "confirmed"  # one stream: its order is known


def test_pasted_stacks_stand_for_a_job_that_hangs(diagnosis: Diagnosis) -> None:
    text = SYNCBN + "\n" + BARRIER.format(pid=27285) + "\n" + BARRIER.format(pid=27286)
    verdict = only(verdicts(diagnosis, "-", stdin=text))
    assert (verdict["failure"], verdict["initiating_ranks"]) == ("syncbatchnorm-single-rank-eval-deadlock", [0])
    assert verdict["certainty"] == "likely"  # nobody said whose stacks they are
    assert any("which rank" in missing["fact"] for missing in verdict["missing"])


def test_stacks_in_files_named_by_rank_are_those_ranks(diagnosis: Diagnosis, tmp_path: Path) -> None:
    write(tmp_path, {"rank0.txt": BARRIER.format(pid=1), "rank1.txt": SYNCBN, "rank2.txt": BARRIER.format(pid=2)})
    verdict = only(verdicts(diagnosis, tmp_path))
    assert (verdict["failure"], verdict["initiating_ranks"]) == ("syncbatchnorm-single-rank-eval-deadlock", [1])


def test_harmless_text_is_nothing(diagnosis: Diagnosis) -> None:
    assert verdicts(diagnosis, "-", stdin="hello\nworld\n" + STEPS) == []


# --- silence and healthy jobs -----------------------------------------------------------------------------------------


def test_silence_at_the_end_of_a_log_proves_nothing(diagnosis: Diagnosis, tmp_path: Path) -> None:
    write(tmp_path, {"rank0.log": STEPS + "epoch 0 done, running validation on rank 0\n", "rank1.log": STEPS})
    assert verdicts(diagnosis, tmp_path) == []


def test_an_hour_of_silence_within_a_log_proves_nothing(diagnosis: Diagnosis, tmp_path: Path) -> None:
    later = "".join(f"2025-03-15 12:00:0{n} INFO epoch 0 step {n + 50}/900 loss 2.31\n" for n in range(5))
    write(tmp_path, {"rank0.log": stamped(STEPS, 0) + later})
    assert verdicts(diagnosis, tmp_path) == []


def test_an_error_that_training_survived_is_no_failure(diagnosis: Diagnosis, tmp_path: Path) -> None:
    handled = "2025-03-15 10:00:20 WARNING skipping batch 4: ValueError: bad sample, retrying\n"
    lines = stamped(STEPS, 0).splitlines(keepends=True)
    write(tmp_path, {"rank0.log": "".join([*lines[:20], handled, *lines[20:]])})
    assert verdicts(diagnosis, tmp_path) == []


# --- several ranks ----------------------------------------------------------------------------------------------------


def crashed(rank: int, *, times: bool) -> dict[str, str]:
    """Logs of four ranks of which `rank` raised and the others noticed, three seconds later."""
    files = {}
    for each in range(4):
        end = BOOM if each == rank else CLOSED.format(rank=each)
        last = f"2025-03-15 10:00:{41 if each == rank else 44} INFO the process ends\n" if times else ""
        files[f"rank{each}.log"] = (stamped(STEPS, 0) if times else STEPS) + last + end
    return files


@given(rank=st.integers(0, 3), times=st.booleans())
@settings(max_examples=6, deadline=None)
def test_the_rank_that_raised_is_named_whichever_it_is(
    diagnosis: Diagnosis, tmp_path_factory: pytest.TempPathFactory, rank: int, times: bool
) -> None:
    root = write(tmp_path_factory.mktemp("job"), crashed(rank, times=times))
    verdict = only(verdicts(diagnosis, root))
    assert (verdict["failure"], verdict["initiating_ranks"]) == ("single-rank-exception", [rank])
    assert verdict["collateral_ranks"] == [each for each in range(4) if each != rank]


def test_without_timestamps_the_order_of_ranks_is_not_confirmed(diagnosis: Diagnosis, tmp_path: Path) -> None:
    verdict = only(verdicts(diagnosis, write(tmp_path, crashed(1, times=False))))
    assert verdict["certainty"] == "likely"
    assert any(missing["fact"] == "the order of the ranks' errors" for missing in verdict["missing"])


def test_with_timestamps_it_is(diagnosis: Diagnosis, tmp_path: Path) -> None:
    verdict = only(verdicts(diagnosis, write(tmp_path, crashed(1, times=True))))
    assert verdict["certainty"] == "confirmed"
    assert 1742032841 <= verdict["opened_t"] <= 1742032841 + 60  # 2025-03-15 10:00:41 and the time to settle


def test_the_order_of_the_paths_does_not_matter(diagnosis: Diagnosis, tmp_path: Path) -> None:
    paths = sorted(write(tmp_path, crashed(2, times=True)).iterdir())
    there, back = verdicts(diagnosis, *paths), verdicts(diagnosis, *reversed(paths))
    assert [v["initiating_ranks"] for v in there] == [v["initiating_ranks"] for v in back] == [[2]]


def test_files_listed_by_a_shell_are_one_job(diagnosis: Diagnosis, tmp_path: Path) -> None:
    files = {f"node{name[4]}/{name}": text for name, text in crashed(3, times=True).items()}
    root = write(tmp_path / "run7", files)
    verdict = only(verdicts(diagnosis, *sorted(root.rglob("*.log"))))
    assert (verdict["job"], verdict["initiating_ranks"]) == ("run7", [3])


@pytest.mark.parametrize(
    ("names", "jobs"),
    [(("good", "lr-0.1", "wide"), 3), (("run1", "run2", "run3"), 3), (("node1", "node2", "node3"), 1)],
)
def test_folders_of_runs_side_by_side_are_jobs_and_those_of_nodes_are_one(
    diagnosis: Diagnosis, tmp_path: Path, names: tuple[str, ...], jobs: int
) -> None:
    for name in names:
        (tmp_path / name).mkdir()
        for rank in range(4):
            crash = OOM if (name, rank) == (names[1], 3) else ""
            (tmp_path / name / f"rank{rank}.log").write_text(STEPS + crash)
    verdicts = diagnosis.paths([str(tmp_path)], io.BytesIO())
    assert diagnosis.coverage.jobs == jobs
    if jobs > 1:
        assert [(v["job"], v["failure"], v["initiating_ranks"]) for v in verdicts] == [
            (names[1], "cuda-out-of-memory", [3])
        ]


def test_errors_in_a_file_of_their_own_come_after_the_steps(diagnosis: Diagnosis, tmp_path: Path) -> None:
    files = {}
    for rank in range(2):
        files[f"rank{rank}/stdout.log"] = STEPS * 5
        files[f"rank{rank}/stderr.log"] = BOOM if rank == 1 else CLOSED.format(rank=0)
    verdict = only(verdicts(diagnosis, write(tmp_path, files)))
    assert (verdict["failure"], verdict["initiating_ranks"]) == ("single-rank-exception", [1])
    assert verdict["state"] == "open"


def test_a_rank_that_printed_nothing_is_known_to_exist(diagnosis: Diagnosis, tmp_path: Path) -> None:
    write(tmp_path, {"rank0.log": STEPS + BOOM, "rank1.log": "", "rank2.log": ""})
    verdict = only(verdicts(diagnosis, tmp_path))
    assert verdict["collateral_ranks"] == [1, 2]
    assert verdict["unheard_ranks"] == [1, 2]


# --- attempts ---------------------------------------------------------------------------------------------------------


def attempts(root: Path, *ends: str) -> Path:
    """A folder as torchrun makes it, one attempt for each of `ends`, which rank 1 prints last."""
    for number, end in enumerate(ends):
        text = STEPS * 3
        folder = {f"none_ab12cd34/attempt_{number}/{rank}/stdout.log": text for rank in range(2)}
        folder |= {f"none_ab12cd34/attempt_{number}/{rank}/stderr.log": end if rank else "" for rank in range(2)}
        write(root, folder)
    return root


def test_the_newest_attempt_is_the_one_that_counts(diagnosis: Diagnosis, tmp_path: Path) -> None:
    found = verdicts(diagnosis, attempts(tmp_path, BOOM, UNICODE))
    assert [(v["failure"], v["state"], v["attempt"]) for v in sorted(found, key=lambda v: v["attempt"])] == [
        ("single-rank-exception", "closed", 0),
        ("text-encoding-mismatch", "open", 1),
    ]


def test_a_failure_that_a_restart_cured_is_closed(diagnosis: Diagnosis, tmp_path: Path) -> None:
    verdict = only(verdicts(diagnosis, attempts(tmp_path, BOOM, "")))
    assert (verdict["failure"], verdict["state"]) == ("single-rank-exception", "closed")


# --- input ------------------------------------------------------------------------------------------------------------


def test_a_gzip_file_is_read(diagnosis: Diagnosis, tmp_path: Path) -> None:
    path = tmp_path / "rank3.log.gz"
    path.write_bytes(gzip.compress((STEPS + BOOM).encode()))
    verdict = only(verdicts(diagnosis, path))
    assert verdict["initiating_ranks"] == [3]


def test_a_log_cut_by_rotation_with_a_hole_is_text(diagnosis: Diagnosis, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_bytes(b"\0" * 5000 + (STEPS + BOOM).encode())
    assert only(verdicts(diagnosis, tmp_path))["failure"] == "single-rank-exception"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("core.log", bytes(range(256)) * 40, "not a text log"),
        ("broken.log.gz", b"\x1f\x8b\x08 no gzip at all", "cannot be read"),
        ("empty.log", b"", "is empty"),
        ("model.pt", b"x", "archive or a binary file"),
    ],
)
def test_unusable_input_is_said_clearly(
    diagnosis: Diagnosis, tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SourceError, match=why):
        verdicts(diagnosis, path)


def test_a_path_that_is_not_there_is_said_clearly(diagnosis: Diagnosis, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file or folder"):
        verdicts(diagnosis, tmp_path / "nope")
    with pytest.raises(SourceError, match="no log files found"):
        verdicts(diagnosis, tmp_path)
    with pytest.raises(SourceError, match="is empty"):
        verdicts(diagnosis, "-")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_rights_is_said_clearly(diagnosis: Diagnosis, tmp_path: Path) -> None:
    path = write(tmp_path, {"rank0.log": STEPS}) / "rank0.log"
    path.chmod(0)
    with pytest.raises(SourceError, match="cannot be read"):
        verdicts(diagnosis, path)


def test_one_unusable_file_of_a_folder_does_not_stop_the_rest(diagnosis: Diagnosis, tmp_path: Path) -> None:
    write(tmp_path, {"rank0.log": STEPS + BOOM})
    (tmp_path / "rank1.log").write_bytes(bytes(range(256)) * 40)
    assert only(verdicts(diagnosis, tmp_path))["failure"] == "single-rank-exception"


def test_a_hole_in_the_middle_of_a_log_does_not_make_it_binary(diagnosis: Diagnosis, tmp_path: Path) -> None:
    write(tmp_path, {"rank0.log": STEPS})
    (tmp_path / "rank1.log").write_bytes(STEPS.encode() + b"\0" * 6000 + b"\n" + BOOM.encode())
    verdict = only(verdicts(diagnosis, tmp_path))
    assert (verdict["failure"], verdict["initiating_ranks"]) == ("single-rank-exception", [1])
    assert diagnosis.coverage.left_out == []


def test_some_binary_output_does_not_make_a_log_binary(diagnosis: Diagnosis, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_bytes(bytes(range(256)) * 32 + (STEPS * 40 + BOOM).encode())
    assert only(verdicts(diagnosis, tmp_path))["failure"] == "single-rank-exception"


def test_the_coverage_tells_what_was_read(diagnosis: Diagnosis, tmp_path: Path) -> None:
    write(tmp_path, {"rank0.log": STEPS, "rank1.log": STEPS})
    assert verdicts(diagnosis, tmp_path) == []
    assert diagnosis.coverage.text() == (
        "Read: 2 files, ranks 0-1, last step 39, no end line seen. "
        "Logs without stacks or times cannot show a silent hang."
    )


def test_the_coverage_names_the_ranks_that_ended_and_those_left_out(diagnosis: Diagnosis, tmp_path: Path) -> None:
    write(tmp_path, {"rank0.log": STEPS + "training finished\n", "rank3.log": STEPS})
    (tmp_path / "rank2.log").write_bytes(bytes(range(256)) * 40)
    assert verdicts(diagnosis, tmp_path) == []
    text = diagnosis.coverage.text()
    assert "Read: 2 files, ranks 0,3, last step 39, end line seen (rank 0)." in text
    assert f"Left out, so nothing is known of it: rank 2, {tmp_path}/rank2.log: is not a text log" in text


def test_the_coverage_of_a_stream_without_ranks_or_steps(diagnosis: Diagnosis) -> None:
    assert verdicts(diagnosis, "-", stdin="hello\n") == []
    assert diagnosis.coverage.text().startswith("Read: 1 file, no rank known, no step seen, no end line seen. ")


def test_the_last_line_of_a_traceback_alone_is_explained_where_the_log_ends_with_it(
    diagnosis: Diagnosis,
) -> None:
    words = "OSError: Can't read data (inflate() failed)\n"
    for text in (words, STEPS + words, f"[rank3]: {words}"):
        assert [v["failure"] for v in verdicts(diagnosis, "-", stdin=text)] == ["hdf5-data-corruption"]
    later = STEPS.replace("epoch 0", "epoch 1")
    assert verdicts(diagnosis, "-", stdin=STEPS + words + later) == []


def test_what_pasting_did_to_a_log_is_undone(diagnosis: Diagnosis) -> None:
    for text in ("".join(f"> {line}\n" for line in (STEPS + BOOM).splitlines()), (STEPS + BOOM).replace('"', "&quot;")):
        (found,) = verdicts(diagnosis, "-", stdin=text)
        assert found["failure"] == "single-rank-exception"
        assert "bad sample at index 17" in str(found["evidence"])
