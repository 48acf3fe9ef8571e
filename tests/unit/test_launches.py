"""How jobs were started, from run to run: what is kept, what the core is told, and that nothing secret is in it."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from denpexd.clock import ManualClock
from denpexd.core.events import Event, Fact
from denpexd.core.state import JobState
from denpexd.evidence.procs import RankProcess
from denpexd.launches import FOLDER, Launches

HF = "hf_" + "abcdefghijklmnopqrstuvwxyzabcdefghij"
FACTS = {"command": "train.py", "program": "train.py", "cwd": "/work", "nccl": "2.27.3", "env.NCCL_DEBUG": "INFO"}


class Machine:
    """A node: its ranks by number, and what a look at each of them finds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock(1000.0)
        self.ranks: dict[int, RankProcess] = {}
        self.facts: dict[int, dict[str, str]] = {}
        self.looks: list[int] = []
        self.launches = self.daemon()

    def daemon(self) -> Launches:
        """Another daemon, which knows only what is on disk."""
        made = Launches(self.folder, self.clock, lambda: self.ranks)
        made._looker = self
        return made

    def of(self, pid: int) -> dict[str, str]:
        self.looks.append(pid)
        return dict(self.facts.get(pid, {}))

    def start(self, *facts: Mapping[str, str], pid: int = 100) -> None:
        self.ranks, self.facts = {}, {}
        for rank, each in enumerate(facts):
            self.ranks[rank] = RankProcess(rank, pid + rank, 7, "n", rank, len(facts), None, "S", 0, None, 1, ())
            self.facts[pid + rank] = dict(each)

    async def see(self, job: JobState, times: int = 3, local: bool = True) -> list[Fact]:
        """Some ticks; what the core was told, which it is told as well."""
        told: list[Event] = []
        for _ in range(times):
            for _, events in self.launches.tick([job], job.job if local else None):
                told += events
            if self.launches._work is not None:
                await self.launches._work
        facts = [event for event in told if isinstance(event, Fact)]
        for fact in facts:
            job.launch.take(fact.name, fact.fields)
        return facts


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def job(name: str = "run", moves: int = 0, attempt: int = 0) -> JobState:
    made = JobState(name, 0.0, attempt=attempt)
    made.moves = moves
    return made


async def good(machine: Machine, *facts: Mapping[str, str], name: str = "run", pid: int = 100) -> None:
    """A run that makes progress, under a daemon of its own."""
    machine.launches = machine.daemon()
    machine.start(*facts, pid=pid)
    run = job(name)
    await machine.see(run)
    run.moves = 5
    await machine.see(run)
    machine.launches = machine.daemon()


async def test_ranks_that_were_started_alike_are_told_together(machine: Machine) -> None:
    machine.start(FACTS, FACTS, {**FACTS, "nccl": "2"})
    told = await machine.see(job())
    assert [(fact.name, fact.fields["ranks"], fact.fields["nccl"]) for fact in told] == [
        ("launch", "0-1", "2.27.3"),
        ("launch", "2", "2"),
    ]
    assert told[0].fields["nodes"] == "n"


async def test_the_last_other_run_that_made_progress_is_told(machine: Machine) -> None:
    await good(machine, FACTS, pid=100)
    machine.start({**FACTS, "nccl": "2.27.7"}, pid=200)  # makes no progress
    await machine.see(job())
    machine.launches = machine.daemon()
    machine.start({**FACTS, "nccl": "2.27.9"}, pid=300)
    told = await machine.see(job())
    assert [(fact.name, fact.fields["nccl"]) for fact in told] == [("launch", "2.27.9"), ("launch_before", "2.27.3")]
    assert told[1].fields["at"].startswith("2023-")


async def test_a_run_is_not_held_against_itself_after_a_restart_of_the_daemon(machine: Machine) -> None:
    await good(machine, FACTS)
    assert [fact.name for fact in await machine.see(job())] == ["launch"]


async def test_another_attempt_is_another_run(machine: Machine) -> None:
    run = job()
    machine.start(FACTS, pid=100)
    await machine.see(run)
    run.moves = 5
    await machine.see(run)
    run.attempt = 1
    machine.start({**FACTS, "nccl": "3"}, pid=200)
    told = await machine.see(run)
    assert [(fact.name, fact.fields["nccl"]) for fact in told] == [("launch", "3"), ("launch_before", "2.27.3")]


async def test_it_is_looked_at_again_since_libraries_are_loaded_one_after_another(machine: Machine) -> None:
    machine.start(FACTS)
    run = job()
    await machine.see(run)
    machine.facts[100]["torch"] = "2.8.0"
    assert await machine.see(run) == []
    machine.clock._now += 21.0
    assert [fact.fields.get("torch") for fact in await machine.see(run)] == ["2.8.0"]
    machine.clock._now += 1000.0
    await machine.see(run)
    assert machine.looks == [100, 100, 100]
    await machine.see(run)
    assert machine.looks == [100, 100, 100]


async def test_secrets_are_hidden_and_can_still_be_compared(machine: Machine, tmp_path: Path) -> None:
    secret = {**FACTS, "env.WANDB_API_KEY": "value-of-mine", "env.NCCL_X": HF, "command": f"train.py --token {HF}"}
    machine.start(secret)
    run = job()
    (first,) = await machine.see(run)
    run.moves = 5
    await machine.see(run)
    machine.launches = machine.daemon()
    machine.start(secret, pid=200)
    again = await machine.see(job())
    assert first.fields["env.WANDB_API_KEY"] == again[0].fields["env.WANDB_API_KEY"]
    assert first.fields["env.WANDB_API_KEY"].startswith("hidden:")
    assert first.fields["env.NCCL_X"].startswith("hidden:")
    for path in (tmp_path / FOLDER).iterdir():
        assert path.stat().st_mode & 0o77 == 0
        assert b"value-of-mine" not in path.read_bytes()
        assert HF.encode() not in path.read_bytes()
    assert HF not in str(first)
    other = Machine(tmp_path / "other")
    other.start(secret)
    assert (await other.see(job()))[0].fields["env.WANDB_API_KEY"] != first.fields["env.WANDB_API_KEY"]


async def test_jobs_that_nobody_named_are_known_by_program_and_folder(machine: Machine) -> None:
    await good(machine, FACTS, name="exec-20261130-120000")
    machine.start({**FACTS, "nccl": "9"}, pid=200)
    assert [f.name for f in await machine.see(job("exec-20261130-130000"))] == ["launch", "launch_before"]
    machine.launches = machine.daemon()
    machine.start({**FACTS, "program": "other.py"}, pid=300)
    assert [f.name for f in await machine.see(job("exec-20261130-140000"))] == ["launch"]


async def test_where_no_process_can_be_seen_the_log_is_what_is_kept(machine: Machine) -> None:
    first = job(moves=0)
    await machine.see(first)
    first.launch.now = {0: {"nccl": "1"}}
    first.moves = 9
    await machine.see(first)
    machine.launches = machine.daemon()
    second = job()
    await machine.see(second)
    second.launch.now, second.moves = {0: {"nccl": "2"}}, 9
    assert [(f.name, f.fields["nccl"]) for f in await machine.see(second)] == [("launch_before", "1")]


async def test_a_command_without_ranks_is_looked_at_itself(machine: Machine) -> None:
    machine.launches._root = 77
    machine.facts = {77: FACTS}
    machine.clock._now += 60.0  # it takes long to be up
    assert await machine.see(job()) == []
    machine.clock._now += 6.0
    assert [(f.name, f.fields["ranks"]) for f in await machine.see(job())] == [("launch", "0")]
    assert await machine.see(job("other"), local=False) == []


async def test_what_a_short_run_showed_is_kept_at_its_end(machine: Machine, tmp_path: Path) -> None:
    machine.start(FACTS)
    run = job()
    await machine.see(run)
    run.moves = 5
    await machine.launches.finish([run])
    assert len([path for path in (tmp_path / FOLDER).iterdir() if path.suffix == ".json"]) == 1
    machine.launches.close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"runs": 3}', '{"runs": [{"id": 1}]}', "[" * 99999, '{"runs": [[]]}'])
async def test_a_damaged_file_counts_as_none(machine: Machine, tmp_path: Path, text: str) -> None:
    await good(machine, FACTS)
    (path,) = (tmp_path / FOLDER).glob("*.json")
    path.write_text(text)
    machine.start({**FACTS, "nccl": "9"}, pid=200)
    assert [fact.name for fact in await machine.see(job())] == ["launch"]


async def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file")
    await good(machine, {**FACTS, "env.HF_TOKEN": "x"})
    machine.start(FACTS, pid=200)
    assert [fact.name for fact in await machine.see(job())] == ["launch"]


async def test_a_look_that_hangs_holds_nobody_up(machine: Machine) -> None:
    reader, writer = os.pipe()
    machine.of = lambda pid: {"x": os.read(reader, 1).decode()}
    machine.start(FACTS)
    run = job()
    machine.launches.tick([run], run.job)
    await asyncio.sleep(0)
    assert machine.launches.tick([run], run.job) == []
    work: Any = machine.launches._work
    await asyncio.sleep(0)
    await machine.clock.advance(11.0)
    with pytest.raises(Exception, match="not answered"):
        await work
    assert machine.launches.tick([run], run.job) == []
    os.write(writer, b"x")
    machine.launches.close()
