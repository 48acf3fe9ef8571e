"""Runs alone in a process of its own (python -I -S FILE): decodes Flight Recorder dumps that nobody vouches for.

Standard library only, nothing of denpexd. Its arguments are how many operations to keep of a file, and the numbers of
open files; for each it prints one line of JSON: `{"dump": ...}` with what the reader needs, or `{"wrong": ...}`.
Pickles hold plain values only: every global, every persistent id is refused, so nothing that a file names is ever
imported or called.
"""

import io
import json
import os
import pickle
import resource
import sys
from typing import Any

MEMORY = 1 << 30
SECONDS = 30  # of CPU for all files of one process
MOST = 64 << 20  # bytes of one file
NODES = 1_500_000  # values in what is printed: shared parts of a pickle could multiply without end
FRAMES = 40
TEXT = 300
MEMBERS = 1 << 20  # characters: the ranks of a group are one text, "[0, 1, 2]"
DEEP = 6
KEPT = (
    *("record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "seq_id", "profiling_name"),
    *("input_sizes", "output_sizes", "input_dtypes", "state", "retired", "is_p2p"),
)
PLAIN_WRONGS = ("empty file", "neither a pickle nor JSON", "it holds no dump", "it holds more than a dump can")


class Refused(pickle.UnpicklingError):
    """The file wants something that plain values never need."""


class Plain(pickle.Unpickler):
    """Reads dicts, lists, tuples, texts, numbers, None; nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        raise Refused(f"it asks for {str(module)[:60]}.{str(name)[:60]}, which no dump needs")

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("it refers to objects outside of the file")


def decode(data: bytes) -> Any:
    """The plain value of a dump, pickle or JSON; raises what explains the damage."""
    if not data:
        raise ValueError("empty file")
    if data.lstrip()[:1] in (b"{", b"["):
        return json.loads(data)
    if data[:1] != b"\x80":
        raise ValueError("neither a pickle nor JSON")
    return Plain(io.BytesIO(data)).load()


class Lean:
    """Makes a document small and plain: known keys, short texts, few levels, a bounded number of values."""

    def __init__(self, most: int) -> None:
        self.most, self.nodes = most, 0

    def plain(self, value: Any, depth: int = 0, text: int = TEXT) -> Any:
        """The same value with everything cut that no dump needs; `text`: characters to keep of each text."""
        self.nodes += 1
        if self.nodes > NODES:
            raise ValueError("it holds more than a dump can")
        if isinstance(value, str):
            self.nodes += min(len(value), text) // TEXT
            return value[:text]
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value if -(1 << 63) <= value < 1 << 64 else 0
        if depth >= DEEP:
            return None
        if isinstance(value, dict):
            known = {k: v for k, v in value.items() if isinstance(k, str | int)}
            return {str(k)[:TEXT]: self.plain(v, depth + 1, text) for k, v in known.items()}
        return [self.plain(v, depth + 1, text) for v in value] if isinstance(value, list | tuple) else None

    def document(self, whole: Any) -> dict[str, Any]:
        """A dump without what the reader does not look at: old entries that are done, frames of these."""
        if isinstance(whole, list):
            whole = {"version": "1", "entries": whole}  # torch 2.2 wrote the bare list
        if not isinstance(whole, dict) or not ("version" in whole or "entries" in whole):
            raise ValueError("it holds no dump")
        lean = {key: self.plain(whole[key]) for key in ("version", "pg_status") if key in whole}
        if "pg_config" in whole:
            lean["pg_config"] = self.plain(whole["pg_config"], text=MEMBERS)
        entries = whole.get("entries")
        if isinstance(entries, list | tuple):
            old, new = entries[: -self.most], entries[-self.most :]
            kept = [e for e in old if isinstance(e, dict) and is_open(e)][: self.most]
            kept += [e for e in new if isinstance(e, dict)]
            lean["entries"] = [self.entry(e) for e in kept]
        return lean

    def entry(self, entry: dict[Any, Any]) -> dict[str, Any]:
        """One operation; where it was called only if it may still be waited for."""
        lean = {key: self.plain(entry[key], 2) for key in KEPT if key in entry}
        frames = entry.get("frames")
        if isinstance(frames, list | tuple) and is_open(entry):
            lean["frames"] = self.plain(frames[:FRAMES], 2)
        return lean


def is_open(entry: dict[Any, Any]) -> bool:
    """It may be pending."""
    return entry.get("state") != "completed" and entry.get("retired") is not True


def answer(number: int, most: int) -> dict[str, Any]:
    """What is printed for one open file."""
    data = b""
    try:
        with os.fdopen(number, "rb") as file:
            data = file.read(MOST + 1)
        if len(data) > MOST:
            return {"wrong": f"larger than {MOST >> 20} MiB"}
        return {"dump": Lean(most).document(decode(data)), "bytes": len(data)}
    except Refused as wrong:
        return {"wrong": f"refused: {wrong}", "bytes": len(data)}
    except MemoryError:
        return {"wrong": "it needs more memory than a dump can", "bytes": len(data)}
    except RecursionError:
        return {"wrong": "corrupt: nested too deeply", "bytes": len(data)}
    except Exception as wrong:  # damaged pickles raise nearly everything
        return {"wrong": explained(wrong, data), "bytes": len(data)}


def explained(wrong: Exception, data: bytes) -> str:
    """Cut off or corrupt."""
    text = str(wrong)[:200]
    if isinstance(wrong, ValueError) and text in PLAIN_WRONGS:
        return text
    cut = isinstance(wrong, EOFError) or "truncated" in text or "exhausted" in text
    if isinstance(wrong, json.JSONDecodeError):
        cut = wrong.pos >= len(data.rstrip()) - 1 or "Unterminated" in text
    return f"truncated: it ends after {len(data)} bytes" if cut else f"corrupt: {text or type(wrong).__name__}"


def main() -> None:
    """Limits first, then file after file."""
    for what, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(what, (most, most))
    most, *numbers = map(int, sys.argv[1:])
    for number in numbers:
        sys.stdout.write(json.dumps(answer(number, most)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
