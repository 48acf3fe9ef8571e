"""The daemon without any rights: as `nobody`, without capabilities, with a careless umask."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import denpexd

from .waiting import DENPEXD

can_drop = subprocess.run(["sh", "-c", "setpriv --version && unshare -m true"], capture_output=True).returncode == 0
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    pytest.mark.skipif(not can_drop, reason="setpriv is missing, or no mount namespace may be made"),
]

NOBODY = "65534"
# What a CI of root has installed below /root, which nobody else may enter: seen through a mount of our own.
OPEN_ROOT = """
set -e
mount --make-rprivate /; mount --bind "$1" /mnt
mount -t tmpfs -o mode=755 none /root; mkdir -p "$1"; mount --bind /mnt "$1"; shift
exec "$@"
"""


def as_nobody(*command: str) -> list[str]:
    """The command line that runs a command without rights."""
    plain = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    base = Path(sys.executable).resolve().parent.parent
    if base.is_relative_to("/root"):
        return ["unshare", "-m", "bash", "-c", OPEN_ROOT, "bash", str(base), *plain, *command]
    return [*plain, *command]


def test_it_explains_a_failure_as_nobody_and_leaves_nothing_readable(place: Any, tmp_path: Path) -> None:
    home = Path("/tmp") / f"denpexd-nobody-{os.getpid()}"  # pytest's folders are root's alone
    logs, sink = home / "logs", place.sink()
    umask = os.umask(0o022)  # ours may be another one
    logs.mkdir(parents=True)
    (home / "var").mkdir()
    os.chown(home / "var", int(NOBODY), int(NOBODY))
    os.mkfifo(logs / "rank7.log")
    try:
        settings = {"state_dir": str(home / "var" / "state"), "web": {"port": 0}, "paths": [str(logs)]}
        (home / "denpexd.yaml").write_text(
            yaml.safe_dump({**settings, "log_level": "debug", "sinks": [{"type": "webhook", "url": sink.url}]})
        )
        command = [*DENPEXD, "run", "-c", str(home / "denpexd.yaml")]
        environ = {**os.environ, "HOME": "/nonexistent", "PYTHONPATH": str(Path(denpexd.__file__).parents[1])}
        with (tmp_path / "err").open("wb") as err:
            daemon = place.start(
                as_nobody(*command), stdout=err, stderr=err, env=environ, umask=0, cwd="/", start_new_session=True
            )
        for rank in (0, 1):
            steps = "".join(f"[rank{rank}] step {n}/100 loss=2.31\n" for n in range(1, 30))
            (logs / f"rank{rank}.log").write_text(steps)
        with (logs / "rank1.log").open("a") as log:
            log.write(
                "Traceback (most recent call last):\n"
                '  File "train.py", line 7, in <module>\n    main()\n'
                '  File "train.py", line 3, in main\n    open("/data/shard-7.tar")\n'
                "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-7.tar'\n"
            )
        assert sink.wait(200), (tmp_path / "err").read_text()
        verdict = sink.alerts[-1].verdict
        assert verdict["initiating_ranks"] == [1], json.dumps(verdict)[:500]
        assert Path(f"/proc/{daemon.pid}").stat().st_uid == int(NOBODY)
        daemon.terminate()
        assert daemon.wait(90) == 0
        assert stat.S_IMODE((home / "var" / "state").stat().st_mode) == 0o700
        kept = list((home / "var" / "state").rglob("*"))
        assert kept
        for path in kept:
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    finally:
        os.umask(umask)
        shutil.rmtree(home)
