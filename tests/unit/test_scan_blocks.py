"""Tracebacks and stack dumps, as they stand in recorded logs, through a whole stream."""

import textwrap

import pytest

from denpexd.core.events import UNKNOWN_RANK, Event, Frame, Frames, Raised
from denpexd.scan.frames import canonical_path
from denpexd.scan.re2_engine import Re2Engine
from denpexd.scan.scanner import Scanner
from denpexd.scan.stream import Stream

SCANNER = Scanner([], Re2Engine)


def events(text: str, rank: int = 0, t: float = 5.0) -> list[Event]:
    stream = Stream(SCANNER, "log", rank)
    return stream.feed(t, 0, textwrap.dedent(text).lstrip("\n").encode()) + stream.flush(t + 9)


def raised(text: str, rank: int = 0) -> list[Raised]:
    return [event for event in events(text, rank) if isinstance(event, Raised)]


def stacks(text: str, rank: int = 0) -> list[Frames]:
    return [event for event in events(text, rank) if isinstance(event, Frames)]


def tagged(text: str, tag: str) -> str:
    lines = textwrap.dedent(text).strip("\n").splitlines()
    return "".join(f"{tag}{line}\n" if line else "\n" for line in lines)


PLAIN = """
    Traceback (most recent call last):
      File "/workspace/jobs/train.py", line 74, in <module>
        record(main)() if a.record else main()
                                        ^^^^^^
      File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _call_impl
        return forward_call(*args, **kwargs)
    ValueError: Expected input batch_size (7) to match target batch_size (8).
"""

WORKER = """
    Traceback (most recent call last):
      File "/opt/venv/lib/python3.11/site-packages/torch/_utils.py", line 794, in reraise
        raise exception
    RuntimeError: Caught RuntimeError in DataLoader worker process 1.
    Original Traceback (most recent call last):
      File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 57, in fetch
        return self.collate_fn(data)
               ^^^^^^^^^^^^^^^^^^^^^
      File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/collate.py", line 275, in collate_tensor_fn
        return torch.stack(batch, 0, out=out)
    RuntimeError: stack expects each tensor to be equal size, but got [3, 8, 9] at entry 0

"""

CHAINED = """
    Traceback (most recent call last):
      File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1003, in save
        _save(obj, opened_zipfile)
    RuntimeError: basic_ios::clear: iostream error

    During handling of the above exception, another exception occurred:

    Traceback (most recent call last):
      File "train.py", line 36, in <module>
        lib.loop(a, log, net, opt, hook=hook)
      File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 834, in __exit__
        self.file_like.write_end_of_file()
    RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 10368 vs 10296
"""

LAUNCHER = """
    E1130 02:43:52.360000 9764 torch/distributed/elastic/multiprocessing/api.py:1002] failed
    Traceback (most recent call last):
      File "/opt/venv/bin/torchrun", line 8, in <module>
        sys.exit(main())
      File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
        raise ChildFailedError(
    torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
    ============================================================
"""


def test_an_uncaught_exception_with_its_frames_innermost_first() -> None:
    (event,) = raised(PLAIN)
    assert event.chain == (("ValueError", "Expected input batch_size (7) to match target batch_size (8)."),)
    assert event.frames == (
        Frame("_call_impl", "torch/nn/modules/module.py", 1778),
        Frame("<module>", "train.py", 74),
    )
    assert (event.rank, event.t, event.offset, event.uncaught) == (0, 5.0, 0, True)
    assert event.text.startswith("ValueError: Expected input")
    (stack,) = stacks(PLAIN)
    assert (stack.kind, stack.frames) == ("traceback", event.frames)


def test_torchs_hook_tags_every_line() -> None:
    (event,) = raised("2025-10-14 03:00:12 ERROR step failed\n" + tagged(PLAIN, "[rank3]: "), UNKNOWN_RANK)
    assert (event.rank, event.uncaught, len(event.frames)) == (3, True, 2)


def test_interleaved_tracebacks_of_two_ranks_are_told_apart() -> None:
    one, other = tagged(PLAIN, "[rank1]: ").splitlines(), tagged(WORKER, "[rank2]: ").splitlines()
    mixed = [line for pair in zip(one, other, strict=False) for line in pair] + other[len(one) :]
    found = {event.rank: event for event in raised("\n".join(mixed) + "\n", UNKNOWN_RANK)}
    assert found[1].chain[0][0] == "ValueError"
    assert len(found[2].chain) == 2


def test_a_quoted_worker_traceback_belongs_to_the_exception_that_quotes_it() -> None:
    for text in (WORKER, tagged(WORKER, "[rank1]: ")):
        (event,) = raised(text)
        assert event.chain == (
            ("RuntimeError", "Caught RuntimeError in DataLoader worker process 1."),
            ("RuntimeError", "stack expects each tensor to be equal size, but got [3, 8, 9] at entry 0"),
        )
        assert [frame.function for frame in event.frames] == ["reraise", "collate_tensor_fn", "fetch"]
        (stack,) = stacks(text)
        assert [frame.function for frame in stack.frames] == ["reraise"]
        assert [label for label, _ in stack.others] == ["quoted"]


def test_a_chain_is_one_exception_the_last_raised_first() -> None:
    for text in (CHAINED, tagged(CHAINED, "[rank0]: "), tagged(CHAINED, "[1,0]<stderr>:[rank0]: ")):
        (event,) = raised(text)
        assert [message[:10] for _, message in event.chain] == ["[enforce f", "basic_ios:"]
        assert [frame.line for frame in event.frames] == [834, 36, 1003]


def test_a_message_may_have_many_lines_but_not_what_starts_something_new() -> None:
    (event,) = raised(
        """
        Traceback (most recent call last):
          File "train.py", line 1, in f
        torch.AcceleratorError: CUDA error: device-side assert triggered
        CUDA kernel errors might be asynchronously reported at some other API call.
        Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
        2025-10-14 03:00:12 INFO next
        """
    )
    assert event.chain[0][1].endswith("device-side assertions.")


def test_an_exception_without_a_message_and_one_without_frames() -> None:
    assert raised('Traceback (most recent call last):\n  File "a.py", line 3, in f\nKeyError\n')[0].chain == (
        ("KeyError", ""),
    )
    cut = raised('Traceback (most recent call last):\n  File "a.py", line 3, in f\n')
    assert cut[0].chain == (("", ""),)
    assert cut[0].frames == (Frame("f", "a.py", 3),)


def test_a_logged_exception_ended_nothing() -> None:
    header = "2025-10-14 03:00:12,200 ERROR train: step failed, going on\n"
    found = events(header + textwrap.dedent(PLAIN).lstrip())
    assert [event.uncaught for event in found if isinstance(event, Raised)] == [False]
    assert not [event for event in found if isinstance(event, Frames)]
    assert raised("2025-10-14 03:00:12,200 INFO train: step 3\n" + textwrap.dedent(PLAIN).lstrip())[0].uncaught


def test_a_json_log_may_hold_a_traceback_in_one_line() -> None:
    line = (
        '{"level": "error", "exc": "Traceback (most recent call last):\\n  File \\"a.py\\", line 3, in f\\n    x\\n'
        'KeyError: 3"}\n'
    )
    (event,) = raised(line)
    assert (event.chain, event.uncaught) == ((("KeyError", "3"),), False)


def test_every_line_of_a_traceback_may_carry_a_log_header() -> None:
    (event,) = raised(tagged(PLAIN, "(EngineCore_DP0 pid=9) ERROR 10-14 03:00:12 [core.py:710] "))
    assert (event.chain[0][0], len(event.frames), event.uncaught) == ("ValueError", 2, False)


def test_what_rich_breaks_below_its_box_is_one_line_again() -> None:
    box = """
        ╭──────────── Traceback (most recent call last) ────────────╮
        │ /ws/train.py:318 in <module>                              │
        │ ❱ 318     main()                                          │
        ╰───────────────────────────────────────────────────────────╯
        OutOfMemoryError: CUDA out of memory. Tried to allocate 2.62
        GiB. GPU 2 has a total capacity of 79.11 GiB.
        See the manual
    """
    for indent in ("", " " * 29):
        (event,) = raised(tagged(box, indent))
        text = (
            "CUDA out of memory. Tried to allocate 2.62 GiB. GPU 2 has a total capacity of 79.11 GiB.\nSee the manual"
        )
        assert event.chain == (("OutOfMemoryError", text),)


def test_a_traceback_in_a_warning_of_torch_ended_nothing() -> None:
    glog = "1201 04:00:12.112000 7011 torch/_dynamo/convert_frame.py:1125] "
    for prefix, uncaught in ((f"W{glog}", False), (f"[rank0]:W{glog}", False), (f"E{glog}", True)):
        (event,) = raised(tagged(PLAIN, prefix))
        assert (event.chain[0][0], len(event.frames), event.uncaught) == ("ValueError", 2, uncaught)


def test_every_line_of_a_traceback_may_carry_the_prefix_of_some_wrapper() -> None:
    for prefix in ("(worker1, pid=2211, ip=10.0.0.5) ", "trainer-2  | "):
        (found,) = raised(tagged(PLAIN, prefix))
        assert found.chain == (("ValueError", "Expected input batch_size (7) to match target batch_size (8)."),)
        assert found.uncaught


def test_what_a_spawned_process_raised_belongs_to_its_rank() -> None:
    text = "-- Process 3 terminated with the following error:\n" + textwrap.dedent(PLAIN).lstrip("\n")
    assert [event.rank for event in raised(text, UNKNOWN_RANK)] == [3]


def test_what_a_thread_or_finaliser_raised_ended_nothing() -> None:
    for above in ("Exception in thread Thread-3 (push):", "Exception ignored in: <function Loader.__del__ at 0x7f>"):
        (found,) = raised(f"{above}\n" + textwrap.dedent(PLAIN).lstrip("\n"))
        assert not found.uncaught


def test_the_launchers_own_traceback_belongs_to_no_rank() -> None:
    (event,) = raised(LAUNCHER, rank=0)
    assert event.rank == UNKNOWN_RANK
    assert event.chain[0][0].endswith("ChildFailedError")


def test_what_a_message_announces_with_a_colon_may_stand_below_an_empty_line() -> None:
    text = """
        Traceback (most recent call last):
          File "/ws/train.py", line 40, in main
            torch.load(path)
        _pickle.UnpicklingError: Weights only load failed. WeightsUnpickler error:

        Unsupported operand 118

        loading again
    """
    ((_, message),) = raised(text)[0].chain
    assert message.endswith("Unsupported operand 118")


@pytest.mark.parametrize(
    "stamp", ["2025-03-01T10:00:00.{:09d}Z ", "[2025-03-01 10:00:{:02d}] ", "Mar  1 10:00:{:02d} "]
)
def test_another_time_before_each_line_is_no_part_of_a_traceback(stamp: str) -> None:
    lines = textwrap.dedent(PLAIN).strip("\n").splitlines()
    (one,) = raised("\n".join(stamp.format(n) + line for n, line in enumerate(lines)) + "\n")
    assert one.chain[0][0] == "ValueError"
    assert one.uncaught


def test_torchs_checkpoint_exception_quotes_the_ranks_that_failed() -> None:
    (one,) = raised(
        """
        Traceback (most recent call last):
          File "/ws/train.py", line 40, in main
            dcp.save(state, checkpoint_id=path)
        torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([3, 5])
        Traceback (most recent call last): (RANK 3)
          File "/opt/torch/distributed/checkpoint/utils.py", line 192, in all_reduce
            local_data = map_fun()
        OSError: [Errno 28] No space left on device
        Traceback (most recent call last): (RANK 5)
          File "/opt/torch/distributed/checkpoint/utils.py", line 192, in all_reduce
            local_data = map_fun()
        OSError: [Errno 28] No space left on device

        """
    )
    assert [kind.rsplit(".", 1)[-1] for kind, _ in one.chain] == ["CheckpointException", "OSError", "OSError"]


def test_an_exception_group_keeps_its_members_as_quoted() -> None:
    (event,) = raised(
        """
          + Exception Group Traceback (most recent call last):
          |   File "a.py", line 9, in main
          | ExceptionGroup: two failed (2 sub-exceptions)
          +-+---------------- 1 ----------------
            | Traceback (most recent call last):
            |   File "a.py", line 3, in f
            | ValueError: a
            +---------------- 2 ----------------
            | TypeError: b
            +------------------------------------
        """
    )
    assert [kind for kind, _ in event.chain] == ["ExceptionGroup", "ValueError", "TypeError"]
    assert [frame.line for frame in event.frames] == [9, 3]


def test_a_boxed_traceback_of_rich() -> None:
    (event,) = raised(
        """
        ╭──────────── Traceback (most recent call last) ────────────╮
        │ /ws/train.py:62 in main                                   │
        │                                                           │
        │ ❱ 62     loss.backward()                                  │
        ╰───────────────────────────────────────────────────────────╯
        RuntimeError: boom
        """
    )
    assert (event.chain, event.frames) == ((("RuntimeError", "boom"),), (Frame("main", "train.py", 62),))


def test_a_multiprocessing_traceback_is_quoted_by_the_one_below_it() -> None:
    (event,) = raised(
        '''
        multiprocessing.pool.RemoteTraceback:
        """
        Traceback (most recent call last):
          File "/opt/conda/lib/python3.11/multiprocessing/pool.py", line 125, in worker
        ValueError: inner
        """

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "train.py", line 9, in main
        ValueError: inner
        '''
    )
    assert event.chain[0] == ("ValueError", "inner")
    assert len(event.chain) == 2


def test_faulthandler_tells_the_main_thread_from_helpers() -> None:
    (stack,) = stacks(
        """
        [default1]:Timeout (0:05:00)!
        [default1]:Thread 0x00007f7ee57d5840 (most recent call first):
        [default1]:  File "/opt/conda/lib/python3.11/threading.py", line 331 in wait
        [default1]:  File "/opt/conda/lib/python3.11/site-packages/tqdm/_monitor.py", line 60 in run
        [default1]:  File "/opt/conda/lib/python3.11/threading.py", line 1002 in _bootstrap
        [default1]:
        [default1]:Thread 0x00007fce30134f (most recent call first):
        [default1]:  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/x.py", line 9 in barrier
        [default1]:  File "/ws/main.py", line 220 in <module>
        """,
        UNKNOWN_RANK,
    )
    assert (stack.kind, stack.rank) == ("faulthandler", 1)
    assert [frame.canonical for frame in stack.frames] == [
        "barrier torch/distributed/x.py",
        "<module> main.py",
    ]
    assert [label for label, _ in stack.others] == ["0x00007f7ee57d5840"]


def test_a_crash_dump_names_its_thread() -> None:
    (stack,) = stacks(
        """
        Fatal Python error: Segmentation fault

        Thread 0x00007f1c2b1ff640 (most recent call first):
          <no Python frame>

        Current thread 0x00007f1d4a0b5740 (most recent call first):
          File "/opt/conda/lib/python3.11/site-packages/custom_ops/_C.py", line 41 in fused_bias_act
          File "/ws/model.py", line 88 in forward

        Extension modules: numpy (total: 1)
        """,
        3,
    )
    assert [frame.function for frame in stack.frames] == ["fused_bias_act", "forward"]


def test_the_watchdogs_stack_follows_its_header_without_a_tag() -> None:
    text = (
        "[rank2]:[E517 07:42:27.1 ProcessGroupNCCL.cpp:730] Stack trace of the failed collective: \n"
        "#0 barrier from /opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:4887\n"
        "#1 main from /app/train.py:269\n"
        "\n"
    )
    (stack,) = stacks(text)
    assert (stack.kind, stack.rank) == ("watchdog", 2)
    assert [frame.canonical for frame in stack.frames] == [
        "barrier torch/distributed/distributed_c10d.py",
        "main train.py",
    ]


def test_a_stack_that_was_not_found_is_none() -> None:
    assert (
        stacks("[rank2]:[E1 P.cpp:730] Stack trace of the failed collective not found, potentially because x\n") == []
    )


def test_canonical_paths() -> None:
    for path, wanted in (
        ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", "torch/nn/modules/module.py"),
        ("/usr/lib/python3/dist-packages/yaml/reader.py", "yaml/reader.py"),
        ("/opt/conda/lib/python3.11/threading.py", "threading.py"),
        ("/opt/pytorch/pytorch/torch/distributed/distributed_c10d.py", "torch/distributed/distributed_c10d.py"),
        ("torch/nn/modules/_functions.py", "torch/nn/modules/_functions.py"),
        ("/workspace/jobs/train.py", "train.py"),
        ("./src/train.py", "src/train.py"),
        ("<string>", "<string>"),
    ):
        assert canonical_path(path) == wanted


# --- exceptions without their traceback -------------------------------------------------------------------------------


def test_an_exception_printed_without_its_traceback_is_told_but_has_ended_nothing() -> None:
    for line in (
        "lmdb.CorruptedError: mdb_get: MDB_CORRUPTED: Located page was wrong type",
        "[rank3]: lmdb.CorruptedError: mdb_get: MDB_CORRUPTED: Located page was wrong type",
        "2025-10-14 03:00:10,000 ERROR train: lmdb.CorruptedError: mdb_get: MDB_CORRUPTED: Located page was wrong type",
        "[ERROR] step failed: lmdb.CorruptedError('mdb_get: MDB_CORRUPTED: Located page was wrong type')",
    ):
        (found,) = raised(line)
        assert found.chain == (("lmdb.CorruptedError", "mdb_get: MDB_CORRUPTED: Located page was wrong type"),)
        assert not found.frames
        assert found.uncaught == line.startswith("[rank3]")  # that is what torch's hook prints


def test_exceptions_whose_name_is_no_error_are_known_by_the_module_before_it() -> None:
    for line, kind in (
        ("pyarrow.lib.ArrowInvalid: Not an Arrow file", "pyarrow.lib.ArrowInvalid"),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "socket.gaierror"),
        ("cv2.error: OpenCV(4.10.0) resize.cpp:4152: error: (-215:Assertion failed)", "cv2.error"),
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared memory",
            "triton.runtime.errors.OutOfResources",
        ),
    ):
        assert [found.chain[0][0] for found in raised(line)] == [kind]


def test_words_about_exceptions_are_none() -> None:
    for line in (
        "class ValueError: raised for bad values",
        "INFO retry policy: on ConnectionError: wait 3 s",
        "WARNING data: skipped 17.jpg: ValueError: bad header",
        "2025-10-14 ERROR reading shard 3 failed (attempt 1/5): OSError: timeout; retrying",
        "Error: nothing",
        "SomeException: ",
    ):
        assert raised(line) == []


def test_the_last_line_of_a_traceback_is_not_told_twice() -> None:
    assert len(raised(PLAIN)) == 1


def test_a_traceback_announced_for_one_sample_was_caught_one_after_another_line_was_not() -> None:
    (announced,) = raised("[sandbox] sample 812 failed, reward 0.0:\n" + textwrap.dedent(PLAIN))
    (plain,) = raised("training starts now:\n" + textwrap.dedent(PLAIN))
    assert not announced.uncaught
    assert plain.uncaught


def test_a_quoted_traceback_of_a_past_run_is_nobodys() -> None:
    assert raised(tagged(PLAIN, "[launch.sh] > ")) == []
    assert len(raised(tagged(PLAIN, "[launch.sh] "))) == 1
