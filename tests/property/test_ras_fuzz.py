"""Whatever listens on the port of NCCL's RAS may answer anything: a report or a plain refusal, and quickly."""

import json

from mutations import dice_of

from denpexd.core.events import Fact
from denpexd.evidence.ras_findings import facts, global_ranks
from denpexd.evidence.ras_report import parse

ROUNDS = 10_000


def rank(number, launched):
    return {
        "rank": number,
        "host": "10.0.0.1",
        "pid": 100 + number,
        "status": {"init_state": 0},
        "collective_counts": {"AllReduce": launched, "AllGather": 3, "Send": number},
    }


AS_JSON = json.dumps(
    {
        "nccl_version": "2.29.7",
        "communicators": [
            {
                "hash": "0x1",
                "size": 5,
                "ranks": [rank(number, 7 - (number == 2)) for number in (0, 1, 2, 4)],
                "missing_ranks": [{"rank": 3, "host": "10.0.0.1", "pid": 103, "status": {"unresponsive": True}}],
            },
            {"hash": "0x0", "size": 0, "ranks": [], "missing_ranks": []},
        ],
    },
    indent=2,
)
AS_TEXT = """NCCL version 2.26.5 compiled with CUDA 12.6
Communicators... (2.05s)
    0         1         1       4-5         5        20   RUNNING  INCOMPLETE,MISMATCH

INCOMPLETE
  Missing communicator data from 1 job process
  Process 103 on node 10.0.0.1 managing GPU 3

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 103 on node 10.0.0.1 managing GPU 3

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 3

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different status
  2 ranks have status RUNNING
  Rank 1 has status ABORT -- GPU 1 managed by process 101 on node 10.0.0.1
  Communicator ranks have different collective operation counts
  3 ranks have launched up to operation 7
  Rank 2 has launched up to operation 6 -- GPU 2 (NVML 5) managed by process 102 on node 10.0.0.1
"""
NUMBERS = ("-1", "0", "1e400", "99999999999999999999999999", "null", "true", '"x"', "[]", "{}", "NaN", "0.5")


def mutated(text, chance):
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(text) + 1)
        match chance.randrange(5):
            case 0:
                text = text[:at]
            case 1:
                text = text[:at] + chance.choice('{}[]",:\n #\0é') + text[at:]
            case 2:
                text = text[:at] + text[at + chance.randint(1, 40) :]
            case 3:
                text = text[:at] + text[at : at + 200] * chance.randint(1, 4) + text[at:]
            case 4:
                start = next((i for i in range(at, len(text)) if text[i].isdigit()), None)
                if start is not None:
                    text = text[:start] + chance.choice(NUMBERS) + text[start + 1 :]
    return text


def test_no_answer_does_harm():
    chance = dice_of(7)
    good = parse(AS_JSON)
    read = 0
    for number in range(ROUNDS):
        try:
            report = parse(mutated(AS_TEXT if number % 2 else AS_JSON, chance))
        except ValueError:
            continue
        read += 1
        ranks = global_ranks(report, {0: {100}, 2: {102}}, 5, lambda host: True)
        found = [*facts(good, report, ranks, 1.0), *facts(report, report, ranks, 1.0)]
        assert all(isinstance(fact, Fact) and 0 <= fact.rank < 100_000 for fact in found)
    assert read > ROUNDS / 4


def test_the_unharmed_answers_say_who_lags_and_who_is_lost():
    for text in (AS_JSON, AS_TEXT):
        report = parse(text)
        ranks = global_ranks(report, {n: {100 + n} for n in range(5)}, 5, lambda host: True)
        assert [(fact.name, fact.rank) for fact in facts(report, report, ranks, 1.0)] == [
            ("unreachable", 3),
            ("launched_less", 2),
        ]
