"""The daemon beside an executed command, a process of its own: `python -m denpexd.beside PLAN`."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denpexd.errors import DenpexdError
from denpexd.evidence.procfs import ProcFs
from denpexd.evidence.ranks import DEAD_STATES
from denpexd.watch import is_chosen, log_to_stderr

EXIT_CODE = "exit_code"  # file by which the daemon learns how the command ended
READY = "ready"  # file by which it tells that it watches
LAST_LINES = 5.0  # seconds the relay gets to pass on what the command has written


class _Ended:
    """The command has ended, its output is in the spools as far as it will ever be, and all of it is read.

    The daemon looks itself: nobody could tell it if its parent were killed.
    """

    def __init__(self, command: int, relay: int, folder: Path) -> None:
        self._command, self._relay, self._ended_at = _Process(command), _Process(relay), 0.0
        self._code, self._ready, self._told = folder / EXIT_CODE, folder / READY, False

    def __call__(self, daemon: Any) -> bool:
        if not self._told and daemon.ready()[0]:
            self._told = True
            with contextlib.suppress(OSError):
                self._ready.touch()
        if self._command.alive():
            return False
        now = daemon.clock.now()
        self._ended_at = self._ended_at or now
        waited = now - self._ended_at
        written = not self._relay.alive() or waited > LAST_LINES
        with contextlib.suppress(OSError, ValueError):
            daemon.code = int(self._code.read_text())
        return bool(written and waited > 1.0 and self._told and not daemon.reader.behind())


class _Process:
    """A process that need not be our child."""

    def __init__(self, pid: int) -> None:
        self._pid, self._fs = pid, ProcFs(Path("/proc"))
        self._start = self._look()

    def alive(self) -> bool:
        return self._start is not None and self._look() == self._start

    def _look(self) -> int | None:
        """When it started; None if it has ended."""
        try:
            found = self._fs.stat(self._pid)
        except OSError:
            return None
        return found[0].start if found and found[0].state not in DEAD_STATES else None


def beside(plan: Mapping[str, Any]) -> int:
    """The daemon beside an executed command: reports to standard error, sees only that command's processes.

    Without a chosen `state_dir` the state is temporary, as the command is; what is kept of incidents is not.
    """
    from denpexd.app import run
    from denpexd.settings import load
    from denpexd.settings_sources import default_state_dir
    from denpexd.state import of_command

    root = int(plan["root_pid"])
    ended = _Ended(root, int(plan["relay_pid"]), Path(plan["folder"]))
    config, flags = Path(plan["config"]) if plan["config"] else None, dict(plan["flags"])
    keep = None
    if not is_chosen(config, flags, "state_dir"):
        flags["state_dir"], keep = plan["state_dir"], default_state_dir(os.environ)
    settings = load(config, overrides=flags, environ=os.environ)
    log_to_stderr("warning")
    return asyncio.run(
        run(
            settings,
            stream=sys.stdout,
            color=sys.stdout.isatty(),
            root_pid=root,
            until=ended,
            any_port=True,
            state=of_command,
            fresh=True,
            keep=keep,
        )
    )


if __name__ == "__main__":
    try:
        sys.exit(beside(json.loads(sys.argv[1])))
    except DenpexdError as failed:
        sys.stderr.write(f"denpexd: not watching: {failed}\n")
        sys.exit(2)
