"""The stack of a real torch process through the worker server that torch gives it."""

import asyncio
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from denpexd.errors import EvidenceUnavailable
from denpexd.evidence.worker_server import VARIABLE, stack

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed (group e2e)"),
]

JOB = """
import time
from torch.distributed.elastic.control_plane import worker_main

def evaluate():
    time.sleep(600)

@worker_main()
def main():
    evaluate()

main()
"""


def test_torchs_own_server_tells_where_the_rank_stands(place: Any) -> None:
    socket = str(Path(place.folder) / "rank0.sock")
    process = place.start([sys.executable, "-c", JOB], env={**os.environ, "RANK": "0", VARIABLE: socket})
    for _ in range(1500):
        try:
            frames = asyncio.run(stack(socket, process.pid, 0, 1.0))
        except EvidenceUnavailable:
            time.sleep(0.1)
            continue
        if "evaluate" in [frame.function for frame in frames.frames]:
            break
    assert [frame.function for frame in frames.frames][:2] == ["evaluate", "main"]
