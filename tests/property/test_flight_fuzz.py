"""Damaged and hostile Flight Recorder dumps: no crash, no hang, nothing imported. `make explore` tries 10,000."""

import os
import random
import time
from pathlib import Path

from mutations import dice_of

from denpexd.core.flight_verdict import analyse
from denpexd.evidence.flight_read import read_files, read_folder

DATA = Path(__file__).parents[1] / "data" / "flight"
COUNT = 250 * int(os.environ.get("DENPEXD_EXPLORE", "1"))
AT_ONCE = 125


def hostile(canary: Path) -> list[bytes]:
    """Pickles that would run a command, or grow without end, in a reader that is not restricted."""
    run = f"touch {canary}".encode()
    return [
        b"cposix\nsystem\n(S'" + run + b"'\ntR.",
        b"\x80\x02cposix\nsystem\nX" + len(run).to_bytes(4, "little") + run + b"\x85R.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c" + bytes([len(run)]) + run + b"\x85R.",
        b"\x80\x02cbuiltins\neval\nX" + len(run).to_bytes(4, "little") + run + b"\x85R.",
        b"\x80\x02Pname\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02]q\x00" + b"".join(b"]q" + bytes([n]) + b"(" + b"h" + bytes([n - 1]) for n in range(1, 200)) + b".",
        b"\x80\x02]\x94" + b"".join(b"](" + b"h\x00" * 20 + b"e\x94" for _ in range(30)) + b".",
        b"\x80\x02K\x01r\xff\xff\xff\x7f.",
        b"\x80\x02X\xff\xff\xff\x7fabc",
        b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7fabc",
        b"[" * 200_000,
        b'{"version": "2.10", "entries": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"version": "2.10", "entries": [{"profiling_name": "nccl:x", "collective_seq_id": 1e999}]}',
        b'{"version": "2.10", "entries": [{"collective_seq_id": ' + b"9" * 5000 + b"}]}",
    ]


def shared_without_end() -> bytes:
    """A few hundred bytes whose values, written out, fill any memory."""
    layers = b"]q\x00X\x01\x00\x00\x00aa"
    for n in range(1, 40):
        layers += b"]q" + bytes([n]) + b"(" + (b"h" + bytes([n - 1])) * 8 + b"e"
    return b"\x80\x02}(X\x07\x00\x00\x00entries" + layers[-1:] + b"N" + b"X\x09\x00\x00\x00pg_config" + layers + b"u."


def mutated(data: bytes, dice: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(out) + 1)
        match dice.randrange(7):
            case 0:
                out = out[:at]
            case 1 if out:
                out[at % len(out)] = dice.randrange(256)
            case 2:
                out[at:at] = dice.randbytes(dice.randint(1, 8))
            case 3:
                del out[at : at + dice.randint(1, 64)]
            case 4:
                out[at:at] = out[max(0, at - 64) : at] * dice.randint(1, 4)
            case 5:
                out[at:at] = dice.choice(
                    [b"cos\nsystem\n", b"R", b"\x93", b"b", b"\x81", b"0" * 9, b"null", b"-", b"[]"]
                )
            case _ if out:
                out[at % len(out)] ^= 1 << dice.randrange(8)
    return bytes(out)


def test_mutated_dumps_are_read_or_explained(tmp_path: Path) -> None:
    dice = dice_of(7)
    originals = [path.read_bytes() for path in sorted(DATA.glob("*/*rank*"))]
    canary = tmp_path / "canary"
    bad = [*hostile(canary), shared_without_end()]
    for begin in range(0, COUNT, AT_ONCE):
        folder = tmp_path / "dumps"
        folder.mkdir(exist_ok=True)
        for number in range(AT_ONCE):
            base = dice.choice(bad if dice.random() < 0.15 else originals)
            (folder / f"trace_rank_{number}").write_bytes(mutated(base, dice))
        started = time.monotonic()
        found = read_folder(folder)
        assert len(found) == AT_ONCE, begin
        assert all(one.dump is not None or one.wrong for one in found)
        analyse({one.rank: one.dump for one in found if one.dump is not None})
        assert time.monotonic() - started < 60.0
        assert not canary.exists()


def test_hostile_files_are_refused_by_name_in_bounded_time(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for number, data in enumerate([*hostile(canary), shared_without_end()]):
        file = tmp_path / f"trace_rank_{number}"
        file.write_bytes(data)
        started = time.monotonic()
        (found,) = read_files([file])
        assert time.monotonic() - started < 60.0, number
        assert found.dump is None or not found.dump.ops, number
    assert not canary.exists()


def test_a_dump_cut_at_any_byte_is_told_and_stops_no_other(tmp_path: Path) -> None:
    whole = DATA / "kinds3" / "trace_rank_1"
    data = whole.read_bytes()
    for cut in range(0, len(data), 7):
        (tmp_path / f"trace_rank_{cut}").write_bytes(data[:cut])
    found = read_folder(tmp_path)
    assert [one.wrong.split(":")[0] for one in found] == ["empty file", *["truncated"] * (len(found) - 1)]
