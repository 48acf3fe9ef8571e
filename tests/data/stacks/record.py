"""Records the dumps of this folder: `python record.py PYTHON...` with interpreters and py-spy (0.4.3) on PATH.

Each interpreter runs train.py; py-spy looks at it as text, as JSON and with native frames, then faulthandler prints all
threads. 3.14.faulthandler.txt was not recorded: it is 3.13's with what 3.14 adds (names of threads, the C stack), as
its documentation and source show.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    for python in sys.argv[1:]:
        said = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True)
        name = said.stdout.decode().strip()
        with (HERE / f"{name}.faulthandler.txt").open("wb") as dumped:
            rank = subprocess.Popen(
                [python, "train.py"],
                cwd=HERE,
                env={"PYTHONPATH": "site-packages"},
                stdout=subprocess.PIPE,
                stderr=dumped,
            )
            assert rank.stdout is not None
            rank.stdout.readline()
            time.sleep(1.0)
            for ending, options in (
                ("py-spy.txt", ["--nonblocking"]),
                ("py-spy.json", ["--nonblocking", "--json"]),
                ("native.txt", ["--native"]),
            ):
                with (HERE / f"{name}.{ending}").open("wb") as file:
                    subprocess.run(["py-spy", "dump", *options, "--pid", str(rank.pid)], stdout=file, check=True)
            rank.send_signal(signal.SIGUSR1)
            time.sleep(1.0)
            rank.kill()
            rank.wait()


if __name__ == "__main__":
    main()
