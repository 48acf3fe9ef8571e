"""The relay never hurts the job: every byte passes unchanged, whatever happens to its outputs or to the daemon."""

import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from denpexd import relay
from denpexd.ingest.open_files import OpenFiles
from denpexd.ingest.tail import Tail, new_buffer


def command(spool: Path, *more: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(relay.__file__), "--spool", str(spool), *more]


def run(spool: Path, data: bytes, *more: str) -> bytes:
    done = subprocess.run(command(spool, *more), input=data, stdout=subprocess.PIPE, check=True)
    return done.stdout


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 3_000_000])
def test_bytes_pass_unchanged_and_are_kept(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert run(tmp_path / "s", data) == data
    assert (tmp_path / "s").read_bytes() == data if size else not (tmp_path / "s").exists()


def test_a_part_of_a_line_passes_at_once(tmp_path: Path) -> None:
    with subprocess.Popen(command(tmp_path / "s"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin
        assert process.stdout
        for piece in (b"no newline", b"\rtqdm 1%", b"\n"):
            process.stdin.write(piece)
            assert process.stdout.read(100) == piece
        process.stdin.close()
        assert process.wait() == 0


def test_the_copy_is_bounded_and_its_two_files_are_contiguous(tmp_path: Path) -> None:
    data = b"".join(b"%07d\n" % n for n in range(200_000))
    assert run(tmp_path / "s", data, "--max-bytes", "300000") == data
    old, new = (tmp_path / "s.1").read_bytes(), (tmp_path / "s").read_bytes()
    assert len(old) <= 300_000
    assert len(new) <= 300_000
    assert data.endswith(old + new)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "s.1"]


def test_it_appends_to_what_an_earlier_one_left(tmp_path: Path) -> None:
    run(tmp_path / "s", b"one\n")
    run(tmp_path / "s", b"two\n")
    assert (tmp_path / "s").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600


def test_a_reader_that_goes_away_does_not_stop_the_job(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(command(tmp_path / "s"), stdin=subprocess.PIPE, stdout=writer, bufsize=0) as process:
        os.close(writer)
        assert process.stdin
        process.stdin.write(b"heard\n")
        assert os.read(reader, 100) == b"heard\n"
        os.close(reader)
        for number in range(2000):
            process.stdin.write(b"unheard %d\n" % number)
        process.stdin.close()
        assert process.wait() == 0
    assert (tmp_path / "s").read_bytes().endswith(b"unheard 1999\n")


def test_output_that_is_full_is_skipped_and_the_copy_is_whole(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command(tmp_path / "s"), input=b"text\n", stdout=full, check=True)
    assert done.returncode == 0
    assert (tmp_path / "s").read_bytes() == b"text\n"


def test_a_copy_that_cannot_be_written_does_not_stop_the_output(tmp_path: Path) -> None:
    assert run(tmp_path / "missing" / "s", b"text\n" * 50_000) == b"text\n" * 50_000
    assert run(Path("/dev/full"), b"text\n" * 50_000) == b"text\n" * 50_000


def test_what_is_missing_in_the_copy_is_told_when_it_works_again(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    spool = relay.Spool(str(folder / "s"), 1000)
    spool.append(b"lost\n")
    spool.append(b"also lost\n")
    folder.mkdir()
    spool.append(b"kept\n")
    note = b"\n[denpexd relay: 15 bytes missing: No such file or directory]\n"
    assert (folder / "s").read_bytes() == note + b"kept\n"


def test_a_file_size_limit_costs_the_copy_only(tmp_path: Path) -> None:
    data = b"x" * 63 + b"\n"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        command(tmp_path / "s"), input=data * 5000, stdout=subprocess.PIPE, preexec_fn=limit, check=True
    )
    assert done.stdout == data * 5000
    assert (tmp_path / "s").stat().st_size == 100_000


def test_signals_that_end_a_session_do_not_end_it(tmp_path: Path) -> None:
    with subprocess.Popen(command(tmp_path / "s"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"up\n")
        assert process.stdout.read(100) == b"up\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGPIPE):
            process.send_signal(number)
        process.stdin.write(b"still up\n")
        assert process.stdout.read(100) == b"still up\n"
        process.stdin.close()
        assert process.wait() == 0


def test_an_output_made_non_blocking_by_somebody_else_loses_nothing(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = random.Random(1).randbytes(1_000_000)
    source = tmp_path / "in"
    source.write_bytes(data)
    got = bytearray()
    with source.open("rb") as stdin, subprocess.Popen(command(tmp_path / "s"), stdin=stdin, stdout=writer):
        os.close(writer)
        while piece := os.read(reader, 10_000):
            got += piece
    os.close(reader)
    assert bytes(got) == data


@pytest.mark.parametrize(
    "arguments",
    ["", "--spool", "--fd-in 3", "--spool x --max-bytes 0", "--spool x --nope 1", "--spool x --fd-in y"],
)
def test_wrong_arguments_are_refused(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert relay.main(arguments.split()) == 2
    assert "usage: relay" in capsys.readouterr().err


# The way `exec` uses it


def start(folder: Path, **outputs: int) -> relay.Relay:
    return relay.start(folder / "spool", outputs)


def test_two_streams_pass_through_one_relay(tmp_path: Path) -> None:
    out, err = (tmp_path / "out").open("wb"), (tmp_path / "err").open("wb")
    running = start(tmp_path, stdout=out.fileno(), stderr=err.fileno())
    job = "import sys\nfor n in range(20000): print(n); print(-n, file=sys.stderr)"
    with subprocess.Popen(
        [sys.executable, "-c", job], stdout=running.writers["stdout"], stderr=running.writers["stderr"]
    ):
        running.close_writers()
    assert running.process.wait(90) == 0
    expected = {"stdout": range(20000), "stderr": (-n for n in range(20000))}
    for name, numbers in expected.items():
        text = "".join(f"{n}\n" for n in numbers).encode()
        assert running.spools[name].read_bytes() == text
        assert (tmp_path / name[3:]).read_bytes() == text
    out.close()
    err.close()


def fill(fd: int) -> None:
    """Write to a non-blocking pipe until it takes no more."""
    try:
        while True:
            os.write(fd, b"x" * 65536)
    except BlockingIOError:
        return


def test_a_stream_that_nobody_reads_does_not_hold_up_the_other(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    out = (tmp_path / "out").open("wb")
    running = start(tmp_path, stderr=writer, stdout=out.fileno())
    os.close(writer)
    os.set_blocking(running.writers["stderr"], False)
    fill(running.writers["stderr"])
    buffer, tail = new_buffer(), Tail(running.spools["stdout"], None, files=OpenFiles(), history=False)
    for number in range(100):
        os.write(running.writers["stdout"], b"%d\n" % number)
    os.set_blocking(reader, True)
    got = b""
    while not got.endswith(b"99\n"):
        got += tail.read(buffer, 0.0).data
    os.close(reader)
    running.close_writers()
    assert running.process.wait(90) == 0
    out.close()


def test_it_outlives_its_starter_until_the_job_ends(tmp_path: Path) -> None:
    program = """
import os, pathlib, subprocess, sys
from denpexd import relay
running = relay.start(pathlib.Path(sys.argv[1]), {"stdout": 1})
subprocess.Popen(["sh", "-c", "read x < " + sys.argv[2] + "; echo after"], stdout=running.writers["stdout"])
os._exit(0)
"""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "spool"), str(gate)], stdout=subprocess.PIPE
    ) as starter:
        assert starter.wait(90) == 0
        gate.write_text("go\n")
        assert starter.stdout
        assert starter.stdout.read() == b"after\n"
    assert (tmp_path / "spool" / "stdout.log").read_bytes() == b"after\n"


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_start_leaves_nothing_open_when_it_fails(tmp_path: Path) -> None:
    before = open_descriptors()
    with pytest.raises(OSError, match="Bad file descriptor"):
        relay.start(tmp_path, {"stdout": 9999})
    assert open_descriptors() == before
