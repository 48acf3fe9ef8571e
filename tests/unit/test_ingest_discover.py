"""Discovery finds the logs of every common launcher and claims a rank only where the path carries one."""

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from denpexd.core.events import UNKNOWN_RANK
from denpexd.errors import SettingsError
from denpexd.ingest.discover import Discovery, Found
from denpexd.ingest.layouts import rank_of


def make(root: Path, *names: str, text: str = "line\n") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def scan(*paths: str | Path, job: str | None = None) -> dict[str, Found]:
    return {found.path.name: found for found in Discovery([str(path) for path in paths], job).scan()}


def ranks(*paths: str | Path) -> list[int]:
    return sorted(found.rank for found in Discovery([str(path) for path in paths], None).scan())


@pytest.mark.parametrize(
    ("name", "rank", "attempt", "stream", "local"),
    [
        ("none_a1b2c3d4/attempt_0/1/stdout.log", 1, 0, "stdout", True),
        ("job42_zz_9_abc/attempt_2/0/stderr.log", 0, 2, "stderr", True),
        ("attempt_0/3/stderr.log", 3, 0, "stderr", True),
        ("rank3.log", 3, None, "", False),
        ("rank_03.out", 3, None, "stdout", False),
        ("train-rank-12.err", 12, None, "stderr", False),
        ("rank7/stdout", 7, None, "stdout", False),
        ("attempt_1/rank0.log", 0, 1, "", False),
        ("r12.log", 12, None, "", False),
        ("train_rank3_gpu1.log", 3, None, "", False),
        ("1/rank.5/stderr", 5, None, "stderr", False),
        ("local_rank1.log", 1, None, "", True),
        ("stderr/rank2.log", 2, None, "stderr", False),
    ],
)
def test_a_path_that_carries_the_rank_is_read_alone(
    name: str, rank: int, attempt: int | None, stream: str, local: bool
) -> None:
    layout = rank_of(f"/logs/run/{name}", "/logs/run")
    assert (layout.rank, layout.attempt, layout.stream, layout.local) == (rank, attempt, stream, local)
    assert not layout.siblings


@pytest.mark.parametrize(
    "name",
    ["train.log", "slurm-4711.out", "slurm-4711_3.out", "node_rank0.log", "noderank1.log", "job-gpt2.out", "frank3.log",
     "error.log", "num_workers_4.log", "rankings.log"],
)  # fmt: skip
def test_other_names_are_merged_streams(name: str) -> None:
    assert rank_of(f"/logs/run/{name}", "/logs/run").rank == UNKNOWN_RANK


def test_folders_above_the_root_do_not_count_except_the_last() -> None:
    assert rank_of("/home/rank9/logs/train.log", "/home/rank9/logs").rank == UNKNOWN_RANK
    assert rank_of("/logs/rank2/train.log", "/logs/rank2").rank == 2
    assert rank_of("/tmp/none_a1b2c3d4/attempt_1/5/stdout.log", "/tmp/none_a1b2c3d4/attempt_1").attempt == 1


@pytest.mark.parametrize(
    "pattern",
    [
        "{}.log",
        "{}/train.log",
        "job5-{}.out",
        "job-python3-6.0-HOST-{}.log",
        "worker-{}.log",
        "gpu{}/out.log",
        "proc_{}.log",
    ],
)
def test_weak_numbers_are_ranks_among_siblings_that_count_from_zero(tmp_path: Path, pattern: str) -> None:
    make(tmp_path, *(pattern.format(n) for n in range(4)))
    assert ranks(tmp_path) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "names",
    [["slurm-101.out", "slurm-102.out"], ["job-gpt2-4711.out", "job-gpt2-4712.out"], ["gpu8/train.log"],
     ["7.log", "12.log"], ["100.log", "200.log", "0.log"], ["worker-3.log"]],
)  # fmt: skip
def test_numbers_that_do_not_count_from_zero_are_no_ranks(tmp_path: Path, names: list[str]) -> None:
    make(tmp_path, *names)
    assert set(ranks(tmp_path)) == {UNKNOWN_RANK}


def test_a_rank_is_learned_when_the_siblings_appear(tmp_path: Path) -> None:
    make(tmp_path, "1.log")
    discovery = Discovery([str(tmp_path)], None)
    assert [found.rank for found in discovery.scan()] == [UNKNOWN_RANK]
    make(tmp_path, "0.log")
    assert [found.rank for found in discovery.scan()] == [0, 1]


def test_workers_beside_a_master_are_not_numbered_by_rank(tmp_path: Path) -> None:
    make(tmp_path, "job-master-0.log", "job-worker-0.log", "job-worker-1.log")
    found = scan(tmp_path)
    assert found["job-worker-0.log"].rank == UNKNOWN_RANK
    assert "beside a master" in found["job-worker-0.log"].note


def test_torchrun_restart_has_two_attempts_of_each_local_rank(tmp_path: Path) -> None:
    streams = [f"attempt_{a}/{r}/{s}.log" for a in (0, 1) for r in (0, 1) for s in ("stdout", "stderr")]
    make(tmp_path, *(f"job42_abcd_123/{name}" for name in streams), "job42_abcd_123/attempt_0/0/error.json")
    found = Discovery([str(tmp_path)], None).scan()
    assert len(found) == 8
    assert {(f.attempt, f.rank, f.stream) for f in found} == {
        (a, r, s) for a in (0, 1) for r in (0, 1) for s in ("stdout", "stderr")
    }
    assert all(f.local and f.job == "job42" and f.run == str(tmp_path / "job42_abcd_123") for f in found)


def two_torchrun_folders(root: Path, *, gap: float, last_of_first: float) -> None:
    """Two runs in one log folder: started `gap` seconds apart, the first wrote for `last_of_first` seconds."""
    for name, start, last in (
        ("none_aaaaaaaa", 1000.0, 1000.0 + last_of_first),
        ("none_bbbbbbbb", 1000.0 + gap, 5000.0),
    ):
        make(root, f"{name}/attempt_0/0/stdout.log", f"{name}/attempt_0/1/stdout.log")
        for rank in (0, 1):
            os.utime(root / name / "attempt_0" / str(rank) / "stdout.log", (last, last))
        os.utime(root / name / "attempt_0", (start, start))


def a_run(root: Path, job: str, *, start: float = 1000.0, last: float = 5000.0) -> None:
    """The folder of one torchrun with two ranks."""
    make(root, *(f"{job}_abcd_123/attempt_0/{rank}/stdout.log" for rank in (0, 1)))
    for rank in (0, 1):
        os.utime(root / f"{job}_abcd_123/attempt_0/{rank}/stdout.log", (last, last))
    os.utime(root / f"{job}_abcd_123/attempt_0", (start, start))


def jobs(*paths: str | Path, job: str | None = None) -> dict[str, str]:
    """The job of each merged log."""
    return {name: one.job for name, one in scan(*paths, job=job).items() if one.rank == UNKNOWN_RANK}


def test_what_a_launcher_prints_beside_the_folders_of_its_ranks_belongs_to_their_job(tmp_path: Path) -> None:
    make(tmp_path, "launcher.log", "train.log", "slurm-4711.out")
    discovery = Discovery([str(tmp_path)], None)
    assert {f.job for f in discovery.scan()} == {tmp_path.name}
    a_run(tmp_path, "1f2e3d")
    assert {f.job for f in discovery.scan()} == {"1f2e3d"}


def test_what_pbs_and_grid_engine_name_after_their_job_is_a_log(tmp_path: Path) -> None:
    make(tmp_path, "train.o98765", "train.e98765", "train.po4711", "train.o98765.3", "model.o", "weights.e5", "go123")
    assert set(jobs(tmp_path)) == {"train.o98765", "train.e98765", "train.po4711", "train.o98765.3"}


def test_further_up_only_a_launchers_log_belongs_to_the_run(tmp_path: Path) -> None:
    make(tmp_path, "torchrun.log", "other.log", "elsewhere/launcher.log")
    a_run(tmp_path / "ranks", "1f2e3d")
    own = tmp_path.name
    assert jobs(tmp_path) == {"launcher.log": own, "other.log": own, "torchrun.log": "1f2e3d"}


def test_with_several_runs_a_launchers_log_belongs_to_the_one_that_goes_on(tmp_path: Path) -> None:
    make(tmp_path, "launcher.log")
    a_run(tmp_path, "first", start=1000.0, last=1500.0)
    a_run(tmp_path, "second", start=1600.0)
    assert jobs(tmp_path) == {"launcher.log": "second"}


def test_of_two_runs_at_the_same_time_none_gets_the_launchers_log_until_one_is_over(tmp_path: Path) -> None:
    make(tmp_path, "launcher.log")
    a_run(tmp_path, "first", start=1000.0, last=5000.0)
    a_run(tmp_path, "second", start=1600.0)
    discovery = Discovery([str(tmp_path)], None)
    for _ in range(3):
        assert {f.job for f in discovery.scan()} == {"first", "second", tmp_path.name}
    for rank in (0, 1):
        os.utime(tmp_path / f"first_abcd_123/attempt_0/{rank}/stdout.log", (1500.0, 1500.0))
    assert {f.job for f in discovery.scan()} == {"first", "second"}


def test_a_log_from_long_before_the_run_is_not_taken_for_its_launchers(tmp_path: Path) -> None:
    make(tmp_path, "launcher.log")
    os.utime(tmp_path / "launcher.log", (1000.0, 1000.0))
    a_run(tmp_path, "first", start=9000.0, last=9500.0)
    discovery = Discovery([str(tmp_path)], None)
    for _ in range(3):
        assert {f.job for f in discovery.scan()} == {"first", tmp_path.name}
    os.utime(tmp_path / "launcher.log", (9400.0, 9400.0))
    assert {f.job for f in discovery.scan()} == {"first"}


def test_a_job_that_was_given_stays_the_job_of_all(tmp_path: Path) -> None:
    make(tmp_path, "bert/launcher.log")
    a_run(tmp_path / "bert", "1f2e3d")
    assert {f.job for f in Discovery([str(tmp_path)], "gpt").scan()} == {"gpt"}
    assert jobs(f"{tmp_path}/{{job}}/*.log", tmp_path / "bert")["launcher.log"] == "bert"


def test_two_nodes_on_a_shared_folder_have_unknown_ranks_and_say_why(tmp_path: Path) -> None:
    two_torchrun_folders(tmp_path, gap=1.0, last_of_first=4000.0)
    discovery = Discovery([str(tmp_path)], None)
    found = discovery.scan()
    assert [f.rank for f in found] == [UNKNOWN_RANK] * 4
    assert all("is claimed in" in f.note and not f.local for f in found)
    assert len([error for error in discovery.errors if "two nodes or two runs" in error]) == 1


def test_an_earlier_run_in_the_same_folder_is_left_out(tmp_path: Path) -> None:
    two_torchrun_folders(tmp_path, gap=100.0, last_of_first=50.0)
    discovery = Discovery([str(tmp_path)], None)
    found = discovery.scan()
    assert [(f.rank, f.local) for f in found] == [(0, True), (1, True)]
    assert all("none_bbbbbbbb" in f.run for f in found)
    assert any("none_aaaaaaaa" in error and "earlier run" in error for error in discovery.errors)


def test_the_same_rank_in_two_folders_is_not_guessed(tmp_path: Path) -> None:
    make(tmp_path, "hostA/rank0.log", "hostA/rank1.log", "hostB/rank0.log")
    assert set(ranks(tmp_path)) == {UNKNOWN_RANK}
    assert ranks(tmp_path / "hostA") == [0, 1]


def test_two_streams_or_two_logs_of_one_rank_do_not_clash(tmp_path: Path) -> None:
    make(tmp_path, "out/rank0.log", "err/rank0.log", "rank1.log", "rank1_debug.log")
    assert ranks(tmp_path) == [0, 0, 1, 1]


def test_a_folder_gives_its_logs_and_nothing_else(tmp_path: Path) -> None:
    make(
        tmp_path, "train.log", "a/b/c/rank0.log", "stdout", "console.txt",
        "model.pt", "x.npz", "events.out.tfevents.17.host", "old.log.gz", "core.core", ".hidden.log", ".git/x.log",
        "README",         "requirements.txt", "train.py", "train.log.1", "attempt_0/filtered_stdout.log",
    )  # fmt: skip
    discovery = Discovery([str(tmp_path)], None)
    assert {f.path.name for f in discovery.scan()} == {"train.log", "rank0.log", "stdout", "console.txt"}


def test_a_glob_gives_what_it_names_but_no_archives(tmp_path: Path) -> None:
    make(tmp_path, "r0.log", "r0.log.1", "r0.log.2.gz", "x/r1.log", "x/y/r2.log", "x/.h/r3.log")
    assert {f.path.name for f in Discovery([f"{tmp_path}/r0.log*"], None).scan()} == {"r0.log", "r0.log.1"}
    assert ranks(f"{tmp_path}/**/r*.log") == [0, 1, 2]
    assert ranks(f"{tmp_path}/x/**/r?.log") == [1, 2]
    assert ranks(f"{tmp_path}/*/r[0-2].log") == [1]
    assert ranks(f"{tmp_path}/*/r[!1].log") == []


def test_a_template_gives_job_rank_and_attempt(tmp_path: Path) -> None:
    make(tmp_path, "gpt/try1/p-3.txt", "gpt/try1/p-x.txt", "bert/try0/p-0.txt")
    found = Discovery([f"{tmp_path}/{{job}}/try{{attempt}}/p-{{rank}}.txt"], None).scan()
    assert [(f.job, f.attempt, f.rank, f.local) for f in found] == [("bert", 0, 0, False), ("gpt", 1, 3, False)]


def test_a_given_job_restricts_the_template(tmp_path: Path) -> None:
    make(tmp_path, "gpt/rank3.log", "bert/rank0.log")
    found = Discovery([f"{tmp_path}/{{job}}/rank{{rank}}.log"], "gpt").scan()
    assert [(f.job, f.rank) for f in found] == [("gpt", 3)]


def test_a_placeholder_twice_must_mean_the_same(tmp_path: Path) -> None:
    make(tmp_path, "a/a-0.log", "a/b-1.log")
    assert ranks(f"{tmp_path}/{{job}}/{{job}}-{{rank}}.log") == [0]


def test_nodes_in_a_template_with_equal_ranks_are_ambiguous(tmp_path: Path) -> None:
    make(tmp_path, "n0/rank0.log", "n1/rank0.log")
    assert set(ranks(f"{tmp_path}/{{node}}/rank{{rank}}.log")) == {UNKNOWN_RANK}


@pytest.mark.parametrize(
    ("text", "hint"), [("{rnak}.log", "did you mean {rank}"), ("{pid}.log", "known are"), ("{rank", "")]
)
def test_an_unknown_placeholder_is_a_settings_error(text: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=r"no placeholder") as error:
        Discovery([f"/logs/{text}"], None)
    assert hint in str(error.value)


@pytest.mark.parametrize("name", ["a[1].log", "a,b.log", "with space.log", "é.log", "-x.log", "{odd}.log"])
def test_odd_names_given_literally_are_found(tmp_path: Path, name: str) -> None:
    make(tmp_path, name)
    assert [f.path for f in Discovery([str(tmp_path / name)], None).scan()] == [tmp_path / name]
    assert [f.path for f in Discovery([str(tmp_path)], None).scan()] == [tmp_path / name]


def test_one_file_under_many_names_is_found_once(tmp_path: Path) -> None:
    make(tmp_path, "r0.log")
    (tmp_path / "latest.log").symlink_to("r0.log")
    os.link(tmp_path / "r0.log", tmp_path / "r0b.log")
    found = Discovery([f"{tmp_path}/*.log", f"{tmp_path}/r0*", str(tmp_path)], None).scan()
    assert [f.path.name for f in found] == ["r0.log"]


def test_loops_of_links_end(tmp_path: Path) -> None:
    make(tmp_path, "d/r0.log")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "loop2").symlink_to(".")
    (tmp_path / "a.log").symlink_to("b.log")
    (tmp_path / "b.log").symlink_to("a.log")
    for paths in ([f"{tmp_path}/**/*.log"], [str(tmp_path)]):
        discovery = Discovery(paths, None)
        assert [f.path for f in discovery.scan()] == [tmp_path / "d/r0.log"]
        assert any("a.log" in error for error in discovery.errors)


def test_a_dangling_link_is_found_when_its_target_comes(tmp_path: Path) -> None:
    (tmp_path / "r0.log").symlink_to("late/r0.log")
    discovery = Discovery([f"{tmp_path}/r0.log"], None)
    assert discovery.scan() == []
    make(tmp_path, "late/r0.log")
    assert [f.rank for f in discovery.scan()] == [0]


def test_rescans_that_may_be_short_see_every_change(tmp_path: Path) -> None:
    make(tmp_path, "a/rank0.log", "b/rank1.log")
    discovery = Discovery([str(tmp_path), f"{tmp_path}/late/*.txt", f"{tmp_path}/one.dat"], None)

    def names() -> list[str]:
        return [f.path.name for f in discovery.scan()]

    def settled() -> list[str]:
        return [names() for _ in range(4)][-1]

    assert settled() == ["rank0.log", "rank1.log"]
    make(tmp_path, "b/rank2.log", "a/rank0.log")
    assert names() == ["rank0.log", "rank1.log", "rank2.log"]
    settled()
    make(tmp_path, "late/rank3.txt")
    assert "rank3.txt" in settled()
    make(tmp_path, "one.dat")
    assert "one.dat" in settled()
    (tmp_path / "a").rename(tmp_path / "c")
    assert [f.path for f in discovery.scan()][2] == tmp_path / "c/rank0.log"
    settled()
    (tmp_path / "one.dat").unlink()
    assert names() == ["rank1.log", "rank2.log", "rank0.log", "rank3.txt"]


def test_it_tells_which_folders_to_watch(tmp_path: Path) -> None:
    make(tmp_path, "run/attempt_0/rank0.log", "code/src/x.py", "elsewhere/rank9.log")
    (tmp_path / "run" / "link.log").symlink_to(tmp_path / "elsewhere" / "rank9.log")
    discovery = Discovery([str(tmp_path / "run")], None)
    discovery.scan()
    assert discovery.directories == {str(tmp_path / name) for name in ("run", "run/attempt_0", "elsewhere")}
    empty = Discovery([str(tmp_path / "code")], None)
    empty.scan()
    assert empty.directories == {str(tmp_path / "code"), str(tmp_path / "code/src")}


def test_nothing_there_yet_is_said_once_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    discovery = Discovery([f"{tmp_path}/late/*.log", str(tmp_path / "later")], None)
    with caplog.at_level(logging.WARNING):
        assert discovery.scan() == []
        assert discovery.scan() == []
    assert len(caplog.records) == 2
    assert all("waiting" in record.getMessage() for record in caplog.records)
    make(tmp_path, "late/rank0.log", "later/rank1.log")
    assert [f.rank for f in discovery.scan()] == [0, 1]
    assert discovery.errors == []


def test_a_directory_in_place_of_a_file_is_said(tmp_path: Path) -> None:
    make(tmp_path, "rank0.log", "rank1.log/inner")
    os.mkfifo(tmp_path / "rank2.log")
    discovery = Discovery([f"{tmp_path}/rank*.log"], None)
    assert [f.rank for f in discovery.scan()] == [0]
    assert any("rank1.log: is a directory" in error for error in discovery.errors)
    assert any("rank2.log: is a FIFO" in error for error in discovery.errors)


def test_more_files_than_the_limit_are_cut_and_said(tmp_path: Path) -> None:
    make(tmp_path, *(f"rank{n}.log" for n in range(5)))
    discovery = Discovery([str(tmp_path)], None, limit=3)
    assert len(discovery.scan()) == 3
    assert any("only the first 3" in error for error in discovery.errors)


UNREADABLE = """
import os, sys
from denpexd.ingest.discover import Discovery
os.setgid(65534)
os.setuid(65534)
d = Discovery([sys.argv[1], f"{sys.argv[1]}/closed/sub/{{job}}/rank{{rank}}.log", f"{sys.argv[1]}/closed/sub"], None)
print([f.rank for f in d.scan()], [e for e in d.errors if "cannot be" in e])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_cannot_be_read_does_not_hide_its_siblings() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        root = Path(folder)
        make(root, "closed/rank0.log", "open/rank1.log")
        (root / "closed").chmod(0)
        for path, mode in ((root, 0o755), (root / "open", 0o755), (root / "open" / "rank1.log", 0o644)):
            path.chmod(mode)  # whatever our own umask is
        done = subprocess.run([sys.executable, "-c", UNREADABLE, folder], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[1] [")
    assert "closed: cannot be listed by uid 65534" in done.stdout
    assert "closed/sub: cannot be looked at by uid 65534: Permission denied; grant access" in done.stdout


def test_a_path_that_the_system_refuses_is_said_and_stops_nothing(tmp_path: Path) -> None:
    make(tmp_path, "rank0.log")
    too_long = f"{tmp_path}/{'n' * 300}"
    discovery = Discovery([str(tmp_path), too_long, f"{too_long}/rank{{rank}}.log"], None)
    assert [found.rank for found in discovery.scan()] == [0]
    assert [error for error in discovery.errors if "File name too long" in error]


def test_what_takes_our_own_output_is_not_read(tmp_path: Path) -> None:
    make(tmp_path, "rank0.log")
    code = "import sys; from denpexd.ingest.discover import Discovery\n"
    code += "print(*(f.path.name for f in Discovery([sys.argv[1]], None).scan()))"
    with (tmp_path / "denpexd.log").open("wb") as out, (tmp_path / "errors.log").open("wb") as err:
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=out, stderr=err, check=True)
    assert (tmp_path / "denpexd.log").read_text() == "rank0.log\n"
    assert {found.path.name for found in Discovery([str(tmp_path)], None).scan()} > {"rank0.log", "denpexd.log"}
