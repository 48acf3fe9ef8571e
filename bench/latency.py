"""Line written -> POST received: the whole daemon, durable outbox included, on this machine.

Run by hand: `python bench/latency.py [ALERTS]` (default 1000). Starts the real daemon with a webhook sink, writes for
each of many jobs the line that completes a verdict (a victim's report after a crash), and measures from just before
that write until a local server holds the whole body. Prints p50, p99 and the slowest, in milliseconds.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOBS_AT_ONCE = 50  # of one daemon: above sixty an hour incidents are told together
GAP = 0.25  # one failure at a time; closer ones wait for each other
CRASH = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/ws/train.py", line 57, in <module>
[rank0]:     main()
[rank0]: ValueError: bad label 7
"""
VICTIM = (
    "[rank1]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
    "Connection closed by peer [10.0.0.3]:3495.\n"
)


class Receiver:
    """Holds when each incident's first POST was complete."""

    def __init__(self) -> None:
        self.arrived: dict[str, float] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            size = next(
                int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
            )
            verdict = json.loads(await reader.readexactly(size))
            self.arrived.setdefault(verdict["job"], time.perf_counter())
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()


async def one_round(receiver: Receiver, port: int, jobs: int) -> list[float]:
    """Start a daemon, let `jobs` jobs fail one after the other, return the latencies in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "logs").mkdir()
        config = {
            "paths": [f"{folder}/logs/{{job}}-rank{{rank}}.log"],
            "state_dir": f"{folder}/state",
            "sinks": [{"type": "webhook", "url": f"http://127.0.0.1:{port}/"}],
            "web": {"port": 0},
            "evidence": {"stacks": "off"},
            "log_level": "error",
        }
        (root / "denpexd.yaml").write_text(json.dumps(config))
        names = [f"job{n:04d}" for n in range(jobs)]
        files = {(n, r): (root / "logs" / f"{n}-rank{r}.log").open("ab", buffering=0) for n in names for r in (0, 1)}
        for file in files.values():
            file.write(b"step 1 loss 2.5\nstep 2 loss 2.4\n")
        daemon = subprocess.Popen([sys.executable, "-m", "denpexd", "run", "-c", str(root / "denpexd.yaml")])
        try:
            await asyncio.sleep(5.0)  # caught up
            for name in names:
                files[name, 0].write(CRASH.encode())
            await asyncio.sleep(4.0)  # the tracebacks are complete
            receiver.arrived.clear()
            written = {}
            for name in names:
                written[name] = time.perf_counter()
                files[name, 1].write(VICTIM.encode())
                await asyncio.sleep(GAP)
            await asyncio.sleep(2.0)
        finally:
            daemon.terminate()
            daemon.wait()
            for file in files.values():
                file.close()
        missing = written.keys() - receiver.arrived.keys()
        if missing:
            print(f"{len(missing)} of {jobs} alerts did not arrive")
        return [receiver.arrived[n] - written[n] for n in names if n in receiver.arrived]


async def main(alerts: int) -> None:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, limit=1 << 22)
    port = server.sockets[0].getsockname()[1]
    taken: list[float] = []
    while len(taken) < alerts:
        taken += await one_round(receiver, port, min(JOBS_AT_ONCE, alerts - len(taken)))
    taken.sort()
    p50, p99 = statistics.median(taken) * 1e3, taken[int(0.99 * (len(taken) - 1))] * 1e3
    print(f"{len(taken)} alerts: p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {taken[-1] * 1e3:.2f} ms")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
