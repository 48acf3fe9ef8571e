"""Keeps the evidence of every incident: a bundle in the state folder, made while what it needs is still known.

The event loop only takes references (`Tape.cut`); encoding, redacting, compressing and writing happen in a thread, one
bundle at a time, the latest of an incident only. What cannot be kept is counted and said once; nobody waits for it.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from denpexd.archive import pack
from denpexd.bundle import Material, file_name, files
from denpexd.clock import Clock
from denpexd.core.events import Closed, Opened, Updated
from denpexd.core.evidence import beginning
from denpexd.errors import SourceError
from denpexd.ingest.open_files import open_regular
from denpexd.ingest.remote import Mounts, RemoteReader
from denpexd.notify.text import items
from denpexd.pipeline import Pipeline
from denpexd.shelf import Shelf

log = logging.getLogger(__name__)

FOLDER, ENDING = "incidents", ".tar.xz"
AGAIN = 60.0  # seconds after the last change, when late ranks and stacks are in
_MOST_WAITING = 64  # bundles; each holds on to what its job showed
_PRESET = 1  # of xz: a third larger than usual, ten times as fast
_LAST = 10.0  # seconds for what is not written yet when the daemon ends

Verdict = Mapping[str, object]
Opener = Callable[[Path], tuple[int, os.stat_result]]

BEFORE, AFTER = 8 << 10, 8 << 10
LINES = 20
_LONGEST = 2_000


class Keeper:
    """The bundles of one daemon. `about`: configuration and versions, as they are when a bundle is made.

    `sources`: the files that are watched; no other file is read for a bundle, and these by `opened`.
    """

    def __init__(
        self,
        shelf: Shelf,
        pipeline: Pipeline,
        clock: Clock,
        about: Callable[[], tuple[str, Mapping[str, object]]],
        sources: Callable[[], Sequence[Path]],
        more: Callable[[str], Mapping[str, object]] = lambda job: {},
        opened: Opener = open_regular,
    ) -> None:
        self.shelf, self._pipeline, self._clock = shelf, pipeline, clock
        self._about, self._sources, self._more, self._opened = about, sources, more, opened
        self._waiting: dict[str, Material] = {}
        self._again: dict[str, tuple[float, Verdict]] = {}
        self._work: asyncio.Task[None] | None = None
        self._remote = RemoteReader(clock)
        self._said = False
        self.failed = self.skipped = 0

    @property
    def counts(self) -> dict[str, int]:
        """Bundles by what became of them."""
        return {
            **dict.fromkeys(("written", "aged", "evicted"), 0),
            **self.shelf.counts,
            "failed": self.failed,
            "skipped": self.skipped,
        }

    async def recorded(self, job: str) -> bytes | None:
        """What the core was told about a job lately, as an archive to replay; None where nothing of it is recorded."""
        known = self._pipeline.jobs.get(job)
        if known is None or known.tape is None:
            return None
        config, versions = self._about()
        material = Material(None, known.tape.cut(), config, versions, more=self._more(job))
        return await asyncio.to_thread(lambda: pack(files(material), f"denpexd-{file_name(job)}", preset=_PRESET))

    def note(self, changes: Sequence[Opened | Updated | Closed]) -> None:
        """Incidents that opened or changed; what was seen until now is taken, and written soon."""
        for change in changes:
            key = str(change.verdict["key"])
            if isinstance(change, Closed):
                if key in self._again:  # what came since the last word belongs to it
                    self._take(self._again.pop(key)[1])
                continue
            self._take(change.verdict)
            self._again[key] = (self._clock.now() + AGAIN, change.verdict)

    def tick(self, now: float) -> None:
        """Incidents that have been quiet for a while are kept once more, with the evidence that came late."""
        for key in [key for key, (at, _) in self._again.items() if now >= at]:
            self._take(self._again.pop(key)[1])

    def _take(self, verdict: Verdict) -> None:
        job = self._pipeline.jobs.get(str(verdict["job"]))
        if job is None or job.tape is None:
            return
        cut = job.tape.cut()
        if cut.since > float(str(verdict["opened_t"])):
            return  # what it followed from is no longer known; the bundle that was made at the time stays
        self._waiting.pop(str(verdict["key"]), None)
        while len(self._waiting) >= _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self.skipped += 1
        self._waiting[str(verdict["key"])] = Material(verdict, cut, more=self._more(job.name))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._write_all(), name="keep")

    async def _write_all(self) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            material = self._waiting.pop(key)
            try:
                config, versions = self._about()
                lines = await self._quoted(material.verdict or {})
                whole = replace(material, config=config, versions=versions, lines=lines)
                await asyncio.to_thread(self._write, key, whole)
            except OSError as error:
                self._cannot(f"{error.strerror or error}")
            except Exception as error:  # a bundle that cannot be made must not end the daemon
                log.debug("bundle of %s", key, exc_info=True)
                self._cannot(repr(error))

    def _write(self, key: str, material: Material) -> None:
        name = file_name(key)
        self.shelf.put(name + ENDING, pack(files(material), f"denpexd-{name}", preset=_PRESET), self._clock.wall())

    def _cannot(self, why: str) -> None:
        self.failed += 1
        if not self._said:
            log.warning("evidence of an incident cannot be kept in %s: %s", self.shelf.folder, why)
        self._said = True

    async def _quoted(self, verdict: Verdict) -> dict[str, str]:
        """The quoted lines with what stands around them; a mount that does not answer leaves a gap."""
        watched = {str(path): path for path in self._sources()}
        mounts = await asyncio.to_thread(Mounts)
        found: dict[str, str] = {}
        for number, quote in enumerate(items(verdict, "evidence")):
            path, offset = watched.get(str(quote.get("source"))), quote.get("offset")
            if path is None or not isinstance(offset, int):
                continue
            mount, text = mounts.remote(path), str(quote.get("text", ""))
            name = f"{number:02d}-rank{quote.get('rank')}.txt"
            try:
                if mount is None:
                    found[name] = await asyncio.to_thread(around, path, offset, text, self._opened)
                else:
                    found[name] = await self._remote.call(mount, around, path, offset, text, self._opened)
            except (OSError, SourceError) as error:
                found[name] = f"{path}, byte {offset}: cannot be read any more: {error}"
        return found

    async def finish(self) -> None:
        """Write what is not written yet, for a few seconds."""
        self.tick(float("inf"))
        if self._work is not None and not self._work.done():
            await asyncio.wait(
                [self._work, late := asyncio.ensure_future(self._clock.sleep(_LAST))],
                return_when=asyncio.FIRST_COMPLETED,
            )
            late.cancel()
        self._remote.close()


def around(path: Path, offset: int, quoted: str, opened: Opener = open_regular) -> str:
    """Some lines before and after the one at `offset`, which is marked; says so where it is no longer there.

    Blocks as any read does. OSError: it cannot be read, or is no ordinary file.
    """
    handle, _ = opened(path)
    try:
        start = max(0, offset - BEFORE)
        data = os.pread(handle, offset - start + AFTER, start)
    finally:
        os.close(handle)
    at = offset - start
    above, rest = data[:at].split(b"\n"), data[at:].split(b"\n")
    above = above[1:] if start else above  # only whole lines; the last one is empty where the quote begins a line
    whole = rest[:-1] if len(data) == at + AFTER else rest  # half a line could hold half a secret
    below = whole[1 : LINES + 1]
    head = f"{path}, byte {offset}"
    wanted = quoted.strip().split("\n")[0][:40].strip()
    if wanted and wanted not in data.decode("utf-8", "replace"):
        head += " (the quoted line no longer stands there: the file was rotated or written anew)"
    first = (above[-1] if above else b"") + rest[0]
    lines = [*((" ", line) for line in above[:-1][-LINES:]), (">", first), *((" ", line) for line in below)]
    shown = [(mark, beginning(line.decode("utf-8", "replace"), _LONGEST)) for mark, line in lines]
    return "\n".join([head, *(f"{mark} {text}".rstrip() for mark, text in shown)])
