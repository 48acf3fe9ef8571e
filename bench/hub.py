"""How much a hub takes: many nodes of 8 ranks with a step a second, through a real broker, into one hub.

    python bench/hub.py [RANKS [SECONDS [STEP]]]   # 10,000 ranks, 60 s, 5 s a step; needs nats-server on PATH

The nodes are made of events, not of daemons: what 1,250 of them would send is made in one process and published at its
time, in messages as denpexd run makes them. Printed: messages a second, bytes, CPU of hub and broker, memory.
"""

import asyncio
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nats

from denpexd.core.events import Activity, Event, Hit, Joined
from denpexd.hub.uplink import HOLD
from denpexd.hub.wire import Message, encode_message, lines, subject

A_NODE = 8
A_JOB = 64  # ranks of most jobs; one has a quarter of all
TICK = os.sysconf("SC_CLK_TCK")


def jobs(ranks: int) -> list[tuple[str, list[range]]]:
    """Name and nodes, each the ranks that live on it."""
    found = []
    sizes = [ranks // 4]
    while sum(sizes) < ranks:
        sizes.append(min(A_JOB, ranks - sum(sizes)))
    for number, size in enumerate(sizes):
        found.append((f"job-{number}", [range(r, min(size, r + A_NODE)) for r in range(0, size, A_NODE)]))
    return found


def batches(ranks: range, since: int, until: int, t: float, step: int) -> list[list[Event]]:
    """What a node reads in these seconds: of every rank a line a step."""
    found: list[list[Event]] = []
    for second in range(since, until):
        if second % step:
            continue
        at = t - (until - second)
        for rank in ranks:
            text = f"step {second}/100000 loss 2.{second % 100:02} lr 1.0e-4"
            fields = {"step": str(second), "total": "100000"}
            source = f"/logs/rank{rank}.log"
            hit = Hit(at, rank, "progress.step", source, second * 50, text, fields)
            found.append([Activity(at, rank, source, 50), hit])
    return found


class Node:
    def __init__(self, name: str, job: str, ranks: range, size: int) -> None:
        self.name, self.job, self.ranks, self.size = name, job, ranks, size
        self.number, self.second = 0, 0

    def message(self, now: float, seconds: int, step: int) -> bytes | None:
        """What the node sends now; None: nothing yet."""
        found = batches(self.ranks, self.second, self.second + seconds, now, step)
        self.second += seconds
        if not found:
            return None
        self.number += 1
        if self.number == 1:
            found.insert(0, [Joined(now, rank, self.name, 1000 + rank, self.size) for rank in self.ranks])
        head = Message(self.name, self.job, now, tuple(self.ranks), self.size)
        return encode_message(head, [("run", self.number, lines(found))])


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def rss(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def drive(url: str, nodes: list[Node], seconds: int, step: int) -> tuple[int, int, float]:
    """Publish what they would, each every two seconds at a moment of its own; messages, bytes, our own CPU share."""
    connection = await nats.connect(url)
    stream = connection.jetstream(publish_async_max_pending=4000)
    chance, sent, size = random.Random(1), 0, 0
    due = sorted((chance.uniform(0, HOLD), number) for number in range(len(nodes)))
    began, spent = time.time(), time.process_time()
    turn = 0
    while time.time() - began < seconds:
        for offset, number in due:
            wait = began + turn * HOLD + offset - time.time()
            if wait > 0.005:
                await asyncio.sleep(wait)
            node = nodes[number]
            if (data := node.message(time.time(), int(HOLD), step)) is None:
                continue
            await stream.publish_async(subject(node.job), data)
            sent, size = sent + 1, size + len(data)
        turn += 1
    await stream.publish_async_completed()
    lasted = time.time() - began
    share = (time.process_time() - spent) / lasted
    await connection.close()
    print(f"sent in {lasted:.0f} s; the maker of the messages took {share:.0%} of a core")
    return sent, size, lasted


def metric(port: int, name: str) -> float:
    import urllib.request

    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    step = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    if shutil.which("nats-server") is None:
        sys.exit("nats-server is not installed (Debian: apt install nats-server)")
    nodes = [
        Node(f"node-{job}-{n}", job, part, parts[-1].stop) for job, parts in jobs(ranks) for n, part in enumerate(parts)
    ]
    with tempfile.TemporaryDirectory(prefix="denpexd-hub-") as made:
        folder, port, web = Path(made), free_port(), free_port()
        broker = subprocess.Popen(
            ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "js")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        url = f"nats://127.0.0.1:{port}"
        config = folder / "hub.yaml"
        config.write_text(f'{{state_dir: "{folder}", hub: {{url: "{url}", size: 1GiB}}, web: {{port: {web}}}}}')
        config.chmod(0o600)
        command = [sys.executable, "-m", "denpexd", "hub", "-c", str(config)]
        with (folder / "hub.log").open("wb") as log:
            hub = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while "partitions are ours" not in (folder / "hub.log").read_text():
                await asyncio.sleep(0.3)
            print(f"{ranks} ranks, {len(nodes)} nodes, {len(jobs(ranks))} jobs, {step} s a step")
            before = cpu(hub.pid), cpu(broker.pid)
            sent, size, lasted = await drive(url, nodes, seconds, step)
            after = cpu(hub.pid), cpu(broker.pid)
            read = metric(web, 'denpexd_hub_messages_total{outcome="read"}')
            rate, mean = sent / lasted, size / sent
            print(f"messages    {rate:8.0f} a second, {mean:.0f} bytes each, {rate * mean / 1e6:.2f} MB/s")
            print(f"steps       {ranks / step:8.0f} a second")
            print(f"hub         {(after[0] - before[0]) / lasted:8.0%} of a core, {rss(hub.pid):.0f} MiB")
            print(f"broker      {(after[1] - before[1]) / lasted:8.0%} of a core, {rss(broker.pid):.0f} MiB")
            print(f"read        {read / sent:8.1%} of the messages by now")
            lag = metric(web, "denpexd_loop_lag_seconds")
            print(f"loop lag    {lag:8.2f} s; waiting {metric(web, 'denpexd_hub_waiting'):.0f} batches")
        finally:
            hub.terminate()
            hub.wait(20)
            broker.terminate()
            print((folder / "hub.log").read_text()[-600:])


if __name__ == "__main__":
    asyncio.run(main())
