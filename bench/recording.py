"""What keeping evidence costs: processor time of the pipeline with and without the recording, and of one bundle.

Run by hand: `python bench/recording.py [SECONDS] [ROUNDS]`. The same log of eight ranks goes through two pipelines by
turns, one of which records, so that both see the same machine; medians count, and the best rounds, since other load
only adds. Then the recording is filled and made a bundle, as for an incident: what the event loop waits for, and what
a thread does.
"""

import gc
import random
import statistics
import sys
import time
from pathlib import Path

from denpexd.archive import pack
from denpexd.bundle import Material, files
from denpexd.catalog.packs import load_packs
from denpexd.core.cadence import Limits
from denpexd.core.rule import Catalog
from denpexd.ingest.discover import Found
from denpexd.ingest.tail import TailRead
from denpexd.pipeline import Pipeline
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner

RANKS, LINES = 8, 40
ROOM = 16 << 20


def text(second: int, rank: int) -> bytes:
    """What one rank prints in a second: ordinary lines and a step."""
    took = random.random()
    lines = [
        f"2026-11-30 10:00:00,{n:03d} INFO worker: shard {n} in {took:.4f} s on cuda:{rank}\n" for n in range(LINES)
    ]
    return "".join([*lines, f"step {second}/100000 loss={2 + took:.4f} lr=1e-4\n"]).encode()


def play(catalog: Catalog, scanner: Scanner, log: list[list[bytes]], room: int) -> tuple[float, Pipeline]:
    """Processor seconds of the pipeline for the whole log."""
    pipeline = Pipeline(catalog, scanner, start_t=1000.0, limits=Limits(), record=(room, 3600.0))
    places = [Found(Path(f"/logs/rank{r}.log"), "run", r, None, "stdout", False, "", "") for r in range(RANKS)]
    offsets = [0] * RANKS
    gc.collect()
    began = time.process_time()
    for second, chunks in enumerate(log):
        for rank, data in enumerate(chunks):
            pipeline.feed(places[rank], TailRead(data, offsets[rank]), 1000.0 + second)
            offsets[rank] += len(data)
        pipeline.tick(1000.5 + second)
    return time.process_time() - began, pipeline


def main() -> None:
    seconds, rounds = (int(a) for a in [*sys.argv[1:], *["80", "15"][len(sys.argv) - 1 :]])
    catalog = load_packs(()).catalog
    scanner = Scanner([s for s in catalog.signals.values() if s.kind == "log"], choose_engine())
    random.seed(1)
    log = [[text(second, rank) for rank in range(RANKS)] for second in range(seconds)]
    play(catalog, scanner, log, ROOM)
    bare, recorded = [], []
    for turn in range(rounds):
        for room, times in ((0, bare), (ROOM, recorded))[:: 1 if turn % 2 else -1]:
            times.append(play(catalog, scanner, log, room)[0])
    ratio = statistics.median(recorded) / statistics.median(bare)
    best = min(recorded) / min(bare)
    print(f"{seconds} s of {RANKS} ranks, processor time with / without recording: {ratio:.3f}, best rounds {best:.3f}")
    tape = play(catalog, scanner, log, ROOM)[1].job("run").tape
    assert tape is not None
    batches = tape.cut().batches
    while tape.bytes < ROOM - 10_000:
        for batch in batches:
            tape.add(batch)
    cut_at = time.process_time()
    cut = tape.cut()
    made_at = time.process_time()
    content = files(Material({"key": "k", "job": "run", "opened_t": 1000.0, "title": "t"}, cut))
    packed_at = time.process_time()
    archive = pack(content, "bundle", preset=1)
    done = time.process_time()
    print(f"a full recording ({len(cut.batches)} batches): {1e3 * (made_at - cut_at):.1f} ms on the event loop")
    print(f"in a thread {packed_at - made_at:.2f} s to write and redact {sum(map(len, content.values())) >> 20} MiB,")
    print(f"and {done - packed_at:.2f} s to pack it into {len(archive) >> 10} KiB")


if __name__ == "__main__":
    main()
