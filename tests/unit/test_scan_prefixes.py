"""Whose line it is, from prefixes as launchers and containers really write them."""

import pytest

from denpexd.core.events import UNKNOWN_RANK
from denpexd.scan.guesses import rank_in_text
from denpexd.scan.prefixes import Line, PrefixReader


def read(line: bytes, rank: int = UNKNOWN_RANK, *before: bytes) -> Line:
    reader = PrefixReader(rank)
    for earlier in (*before, line):
        reader.sample(earlier + b"\n")
        lines = reader.read(earlier)
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("raw", "rank", "text"),
    [
        (b"[rank3]: Traceback (most recent call last):", 3, "Traceback (most recent call last):"),
        (b"[rank3]:[E1206 18:44:12.7 P.cpp:607] [Rank 1] x", 3, "[E1206 18:44:12.7 P.cpp:607] [Rank 1] x"),
        (b'[default1]:  File "/x/y.py", line 3 in f', 1, '  File "/x/y.py", line 3 in f'),
        (b"[default1]:[rank5]: ValueError: x", 5, "ValueError: x"),
        (b"[1,3]<stderr>:node-a:2131:2290 [3] NCCL WARN x", 3, "node-a:2131:2290 [3] NCCL WARN x"),
        (b"[1,0]<stderr>:[rank0]:   File", 0, "  File"),
        (b"[prterun-node-1-41211@1,2]<stderr>: NCCL WARN x", 2, "NCCL WARN x"),
        (b" 12: [rank12]:[E709 x", 12, "[E709 x"),
        (b"3: iteration 100/ 500 |", 3, "iteration 100/ 500 |"),
        (b"[pod/train-worker-2/pytorch] step 9", UNKNOWN_RANK, "step 9"),
        (b"2025-05-04T05:05:38.400000000Z stdout F rank=4 step 9", 4, "rank=4 step 9"),
        (b"2025-05-04T05:05:38.400000001Z [rank4]: ValueError: x", 4, "ValueError: x"),
        (b"2025-05-04T05:05:38.400000Z [info] step 9", UNKNOWN_RANK, "2025-05-04T05:05:38.400000Z [info] step 9"),
        (b"[pod/t-2/c] 2025-05-04T05:05:38.4Z stderr F [default0]:[rank8]: x", 8, "x"),
        (b"(RayTrainWorker pid=30751, ip=10.0.0.4) Moving model", UNKNOWN_RANK, "Moving model"),
        (b"[rank: 1] Seed set to 42", 1, "[rank: 1] Seed set to 42"),
        (b"[epoch3]: loss 1", UNKNOWN_RANK, "[epoch3]: loss 1"),
        (b"12:30:01 INFO step", UNKNOWN_RANK, "12:30:01 INFO step"),
    ],
)
def test_prefixes_go_and_the_rank_stays(raw: bytes, rank: int, text: str) -> None:
    line = read(raw)
    assert (line.rank, line.text) == (rank, text)


def test_torchs_tag_and_mpirun_and_srun_win_over_the_file_and_the_rest_does_not() -> None:
    assert read(b"[rank3]: x", 1).rank == 3
    assert read(b"[1,3]<stdout>:x", 1).rank == 3
    assert read(b"[3]<stderr>:x", 1).rank == 3  # horovodrun
    assert read(b"3: x", 1).rank == 3
    assert read(b"[default3]:x", 1).rank == 1
    assert read(b"rank=3 step 9", 1).rank == 1


def test_srun_labels_count_only_where_the_stream_is_labelled() -> None:
    assert read(b"3: item", UNKNOWN_RANK, b"no label", b"none here").rank == UNKNOWN_RANK
    assert read(b"3: item", UNKNOWN_RANK, b"0: a", b"srun: error: node-a: task 1: Killed", b"10: b").rank == 3


def test_a_label_that_torch_contradicts_is_the_number_of_a_node() -> None:
    assert read(b"1: step 3", UNKNOWN_RANK, b"0: a", b"1: [rank9]: x").rank == UNKNOWN_RANK


def test_torchruns_tag_is_local_until_the_global_rank_has_been_seen() -> None:
    assert read(b"[default1]:x").rank == 1
    assert read(b"[default1]:x", UNKNOWN_RANK, b"[default1]:[rank5]: y").rank == 5
    assert read(b"[rank0]:[titan] x", UNKNOWN_RANK, b"[rank0]:[rank8]: y").rank == 8


def test_a_ray_worker_keeps_the_rank_that_one_of_its_lines_named() -> None:
    told = b"(RayTrainWorker pid=7, ip=10.0.0.4) Setting up process group rank=3 world_size=8"
    line = read(b"(RayTrainWorker pid=7, ip=10.0.0.4) CUDA out of memory", UNKNOWN_RANK, told)
    assert line.rank == 3
    assert line.fields == {"actor": "RayTrainWorker", "pid": "7", "ip": "10.0.0.4"}
    assert read(b"(RayTrainWorker pid=8, ip=10.0.0.4) x", UNKNOWN_RANK, told).rank == UNKNOWN_RANK
    assert read(b"(raylet, ip=10.0.0.5) 1 workers killed", 2).text == "1 workers killed"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        (b"Worker_TP2 pid=312", 2),
        (b"Worker_TP1_EP1 pid=312", 1),
        (b"VllmWorker rank=2 pid=71", 2),
        (b"VllmWorker TP3", UNKNOWN_RANK),
        (b"Worker_PP1_TP0 pid=312", UNKNOWN_RANK),
        (b"Worker_DP1_TP0 pid=312", UNKNOWN_RANK),
        (b"EngineCore_DP0 pid=233", UNKNOWN_RANK),
        (b"APIServer pid=101", UNKNOWN_RANK),
    ],
)
def test_a_worker_of_an_engine_is_its_tensor_parallel_rank(name: bytes, rank: int) -> None:
    assert read(b"(" + name + b") ERROR worker hit an exception").rank == rank


def test_mpirun_glues_pieces_of_several_ranks_to_one_line() -> None:
    raw = b"[1,2]<stdout>:loss=2.3[1,0]<stdout>:loss=2.4[1,2]<stdout>:"
    assert [(line.rank, line.text) for line in PrefixReader().read(raw)] == [(2, "loss=2.3"), (0, "loss=2.4"), (2, "")]


def test_torchs_tag_behind_a_progress_bar_begins_a_new_piece() -> None:
    raw = b"train[0]:  50%|##  | 4/8 [00:07<00:04, loss=2.4619][rank0]: Traceback (most recent call last):"
    lines = PrefixReader(0).read(raw)
    assert [line.text for line in lines][-1] == "Traceback (most recent call last):"
    assert lines[-1].hooked


@pytest.mark.parametrize("opened", [b'prompt: explain "', b'{"text": "a \\"', b"log='", b"see `"])
def test_a_tag_behind_an_opening_quotation_mark_is_quoted(opened: bytes) -> None:
    (line,) = PrefixReader(0).read(opened + b"[rank3]:[E ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught a timeout")
    assert (line.rank, line.hooked) == (0, False)


def test_a_tag_behind_a_word_in_quotation_marks_begins_a_new_piece() -> None:
    lines = PrefixReader(0).read(b'saved "out/last"[rank1]: ValueError: x')
    assert (lines[-1].rank, lines[-1].text) == (1, "ValueError: x")


def test_what_follows_a_carriage_return_belongs_to_the_writer_of_the_line() -> None:
    reader = PrefixReader()
    head = reader.read(b"[default2]:")[0]
    assert reader.read(b" 24%|## | 120/500 [02:52<08:48]", head)[0].rank == 2


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("[rank 0] epoch 0 step 0/5 loss 0.6843", 0),
        ("2026-11-30 02:34:07,101 INFO [rank2] trainer: epoch 0 step 0/5", 2),
        ('{"ts": 1796006527.113, "rank": 7, "epoch": 0}', 7),
        (f'{{"severity": "ERROR", "message": "{"x" * 900}", "rank": 7, "pid": 41}}', 7),
        (f'{{"severity": "ERROR", "message": "{"x" * 900} \\"rank\\": 7"}}', UNKNOWN_RANK),
        ("level=info rank=3 epoch=0 step=0", 3),
        ("rank 1 | epoch 2 step   100 | loss 3.1172", 1),
        ("[2025-08-08 07:39:00] rank6 batch 0 loss 3.119", 6),
        ("train[2]:   0%|          | 0/8 [00:00<?, ?it/s]", 2),
        ("step 100 rank 4 loss 3.093", 4),
        ("Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8", 3),
        ("[E ProcessGroupNCCL.cpp:475] [Rank 3] NCCL watchdog thread terminated", 3),
        ("RuntimeError: Rank 3 failed to pass monitoredBarrier in 6000 ms", UNKNOWN_RANK),
        ("Rank 3 is not responding", UNKNOWN_RANK),
        ("[PG ID 7 PG GUID 7(PIPELINE) Rank 1] [Rank 1] timeout", UNKNOWN_RANK),
        ("local_rank=3 node_rank=1", UNKNOWN_RANK),
        ("disagreement between rank0 and rank6", UNKNOWN_RANK),
    ],
)
def test_the_rank_that_a_text_gives_itself(text: str, rank: int) -> None:
    assert rank_in_text(text) == rank


@pytest.mark.parametrize("form", ["trainer-{} | ", "trainer_{}  | ", "rank{}> ", "trainer/{} ", "worker{}| "])
def test_names_with_numbers_are_ranks_where_nearly_all_lines_have_them(form: str) -> None:
    lines = [form.format(n % 3).encode() + b"step 1" for n in range(6)]
    assert [read(line, UNKNOWN_RANK, *lines).rank for line in lines[:3]] == [0, 1, 2]
    assert read(lines[2], UNKNOWN_RANK, *lines).text == "step 1"
    assert read(lines[0], UNKNOWN_RANK, *[b"loading data"] * 9).rank == UNKNOWN_RANK


def test_names_counted_from_one_and_counters_are_no_ranks() -> None:
    containers = [f"trainer-{n} | step 1".encode() for n in (1, 2, 3, 1)]
    assert read(containers[0], UNKNOWN_RANK, *containers).rank == UNKNOWN_RANK
    epochs = [f"epoch{n} | loss 2.{n}".encode() for n in (0, 1, 2, 3)]
    assert read(epochs[1], UNKNOWN_RANK, *epochs).rank == UNKNOWN_RANK


def test_an_actor_may_name_its_rank() -> None:
    line = read(b"(worker1, rank=1, pid=77) ValueError: x")
    assert (line.rank, line.text, line.outer) == (1, "ValueError: x", "pid:77")
    assert read(b"(epoch 3, loss=1.2) step").text == "(epoch 3, loss=1.2) step"


@pytest.mark.parametrize(
    ("said", "rank"),
    [
        ([b"[pod/llm-0/c] rank=0 up", b"[pod/llm-1/c] rank=1 up"], 3),
        ([b"[pod/llm-0/c] [rank0]: up", b"[pod/llm-2/c] [rank2]: up"], 3),
        ([b"[pod/job-master-0/c] rank=0 up", b"[pod/llm-0/c] rank=1 up", b"[pod/llm-1/c] rank=2 up"], 4),
        ([b"[pod/llm-0/c] rank=1 up", b"[pod/llm-1/c] rank=2 up"], UNKNOWN_RANK),
        ([b"[pod/llm-0/c] rank=0 up"], UNKNOWN_RANK),
        ([b"[pod/llm-1/c] rank=1 up", b"[pod/llm-1/c] rank=2 up"], UNKNOWN_RANK),
        ([b"[pod/other-1/c] rank=1 up"], UNKNOWN_RANK),
    ],
)
def test_a_pod_is_the_rank_of_its_number_where_the_pods_have_said_so(said: list[bytes], rank: int) -> None:
    assert read(b"[pod/llm-3/c] ValueError: bad", UNKNOWN_RANK, *said).rank == rank


def test_pods_with_a_launcher_in_each_count_nodes() -> None:
    said = [b"[pod/llm-0/c] [default0]:up", b"[pod/llm-1/c] [default0]:up", b"[pod/llm-1/c] [default1]:up"]
    assert read(b"[pod/llm-3/c] ValueError: bad", UNKNOWN_RANK, *said).rank == UNKNOWN_RANK


@pytest.mark.parametrize("host", [b"worker-1", b"10.0.0.3", b"gpunode"])
@pytest.mark.parametrize(
    "proof",
    [
        b"[2026-11-30 10:00:01,113] [INFO] [launch.py:152:main] nnodes=2, num_local_procs=4, node_rank=1",
        b"[rank4]: x",
        b"W1130 02:37:05.8 1809 torch/distributed/run.py:766] ",
    ],
)
def test_the_node_that_pdsh_puts_before_each_line_is_a_tag_once_a_line_proves_it(host: bytes, proof: bytes) -> None:
    assert read(host + b": step 9").text == host.decode() + ": step 9"
    line = read(host + b": [rank6]: Traceback", UNKNOWN_RANK, host + b": " + proof)
    assert (line.text, line.rank, line.outer) == ("Traceback", 6, host.decode())
    line = read(host + b": step 9", UNKNOWN_RANK, host + b": " + proof)
    assert (line.text, line.rank, line.outer) == ("step 9", UNKNOWN_RANK, host.decode())


@pytest.mark.parametrize("word", [b"ERROR", b"warning", b"ValueError", b"UserWarning"])
def test_a_level_or_an_exception_before_a_tag_is_no_node(word: bytes) -> None:
    assert read(word + b": x", UNKNOWN_RANK, word + b": [rank4]: x").text == word.decode() + ": x"


@pytest.mark.parametrize(
    "proof",
    [
        b"[2] Traceback (most recent call last):",
        b'[2]   File "/x/y.py", line 3, in f',
        b"[2] [rank2]: x",
        b"[2] node-a:2131:2290 [0] NCCL INFO Bootstrap",
        b"[2] /opt/venv/lib/python3.11/site-packages/x.py:7: FutureWarning: x",
    ],
)
def test_a_number_in_brackets_is_a_rank_once_a_line_proves_that_it_is_a_tag(proof: bytes) -> None:
    assert read(b"[3] loss 2.3").rank == UNKNOWN_RANK
    line = read(b"[3] loss 2.3", UNKNOWN_RANK, proof)
    assert (line.text, line.rank, line.outer) == ("loss 2.3", 3, "task3")
    assert read(b"[3] loss 2.3", 1, proof).rank == 1


def test_hydras_tag_that_torch_contradicts_is_no_rank() -> None:
    assert read(b"[1] step 9", UNKNOWN_RANK, b"[1] [rank5]: x").rank == UNKNOWN_RANK
