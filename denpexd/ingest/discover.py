"""Find the log files of a job and say whose they are.

Ranks are claimed only where the path carries them. A wrong rank names a wrong culprit, so whatever is ambiguous becomes
UNKNOWN_RANK with a note: two torchrun folders of one attempt (two nodes: nothing in their paths gives the node rank, so
no offset can be known), the same rank in two folders, workers beside a master. Lines with `[rankN]:` still tell.
"""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from denpexd.core.events import UNKNOWN_RANK
from denpexd.ingest.layouts import Layout, counts_ranks, is_leader, rank_of
from denpexd.ingest.links import Links
from denpexd.ingest.patterns import Mark, Match, Template, Walk, is_magic, mark
from denpexd.ingest.runs import Source, with_launchers, without_earlier_runs

log = logging.getLogger(__name__)

_BINARY = re.compile(
    r"\.(?:pt|pth|ckpt|safetensors|bin|npz|npy|pkl|pickle|h5|hdf5|lmdb|mdb|arrow|parquet|tfrecord|onnx|gguf|so|pyc|pyo"
    r"|gz|bz2|xz|zst|zip|tar|tgz|7z|png|jpe?g|gif|pdf|mp4|wav|db|sqlite3?|nsys-rep|qdrep|core)$|events\.out\.tfevents",
    re.IGNORECASE,
)
# PBS, Torque and Grid Engine: <job name>.o<job id>, .e<job id>, and .po, .pe of a parallel environment.
_LOG = re.compile(
    r"\.(?:log|out|err|stdout|stderr)$|^(?:stdout|stderr|log)$|\.p?[oe]\d{3,}(?:[._-]\d+)?$", re.IGNORECASE
)
_TEXT = re.compile(r"^[^.]*$|\.txt$", re.IGNORECASE)
_OURS = re.compile(r"log|out|err|train|console", re.IGNORECASE)
_FULL = 16  # every so many scans look at everything, even if no folder seems to have changed
_NOT_LOGS = {"filtered_stdout.log", "filtered_stderr.log", "requirements.txt", "CMakeLists.txt"}


@dataclass(frozen=True, slots=True)
class Found:
    """A log file. `rank` UNKNOWN_RANK: a merged stream, or see `note`. `local`: the rank counts within its node only.

    `stream`: "stdout", "stderr" or "". `run`: the folder torchrun made for this run ("" elsewhere); another run of the
    same job is another start of it. A later scan may know the rank of the same path better (siblings appeared).
    `how`, `job_how`: what tells rank and job, for people.
    """

    path: Path
    job: str
    rank: int
    attempt: int | None
    stream: str
    local: bool
    run: str = ""
    note: str = ""
    how: str = field(default="", compare=False)
    job_how: str = field(default="", compare=False)


class Discovery:
    """Looks for files again and again. `paths`: folders, files, globs, templates, in any mixture.

    `job` restricts `{job}` to that value. `errors`: what is wrong now, each also logged once. `limit`: files at most.
    `links`: folders that links below the paths may lead into, whoever made them. `passed_over`: give a mapping to learn
    which files are no logs, and why.
    Scanning touches the file system: call it off the event loop. SettingsError for a wrong placeholder.
    """

    def __init__(
        self,
        paths: Sequence[str],
        job: str | None,
        *,
        limit: int = 20_000,
        links: Sequence[Path] = (),
        passed_over: dict[str, str] | None = None,
    ) -> None:
        self._job, self._limit, self._passed_over = job, limit, passed_over
        self._paths = [str(Path(text).expanduser().absolute()) for text in paths]
        self.links = Links(self._paths, links)
        # A path that exists as written is meant as written, whatever brackets are in its name.
        magic = [text for text in self._paths if is_magic(text) and not os.path.exists(text)]
        self._templates = {text: Template(self._bound(text)) for text in magic}
        self._sources: dict[tuple[str, str], Source] = {}  # by path, and the text that led to it
        self._current: list[Source] = []
        self._said: set[str] = set()
        self._scans, self._settled = 0, False
        self._marks: dict[str, Mark] = {}
        self._result: list[Found] = []
        self.errors: list[str] = []
        self.directories: set[str] = set()  # where a change matters: for the Waker

    def _bound(self, text: str) -> str:
        return text.replace("{job}", re.sub(r"([*?\[])", r"[\1]", self._job)) if self._job else text

    def scan(self) -> list[Found]:
        """All log files there are now, by path, the same file under two names only once; the same list: as before."""
        self._scans += 1
        if self._settled and self._scans % _FULL and all(mark(path) == seen for path, seen in self._marks.items()):
            return self._result
        self.errors = []
        walk = Walk(self._say, self.links.enters)
        sources = self._met(walk)
        if len(sources) > self._limit:
            self._say(f"{len(sources)} files", f"only the first {self._limit} are read: narrow the paths")
        current, over = without_earlier_runs(sources[: self._limit])
        for run in over:
            self._say(run, "an earlier run in the same log folder: it is not read, give its path to diagnose it")
        current, undecided = (current, False) if self._job else with_launchers(current)
        notes = self._ambiguous(current)
        self._said.intersection_update(self.errors)
        # Settled after two equal looks: one time stamp of a folder can cover a change before and one after a look.
        plain = not walk.links and len(current) == len(sources) and not notes and not undecided
        self._settled, self._marks = plain and walk.marks == self._marks, walk.marks
        if self._settled and current == self._current:
            return self._result
        self._current = current
        self._result = [_found(source, notes.get(source.path, "")) for source in current]
        self.directories = _watchable(current, walk.folders)
        return self._result

    def _met(self, walk: Walk) -> list[Source]:
        known, self._sources = self._sources, {}
        chosen: dict[tuple[int, int], Source] = {}
        own = _own_output()
        for text in self._paths:
            nothing = True
            for match, root, template in self._expand(walk, text):
                nothing = False
                if match.identity in own:  # it quotes what it found, and would find that again
                    self._say(match.path, "takes this daemon's own output: it is not read")
                    continue
                source = known.get((match.path, text))
                if source is None or source.link != match.link or source.root != root:
                    source = self._source(match, root, template)
                self._sources[match.path, text] = source
                other = chosen.get(match.identity)
                if other is None or (source.link, source.path) < (other.link, other.path):
                    chosen[match.identity] = source
            if nothing:
                self._say(text, "no log file there yet: waiting for one")
        return sorted(chosen.values(), key=lambda source: source.path)

    def _say(self, what: str, why: str) -> None:
        text = f"{what}: {why}"
        if text not in self.errors:
            self.errors.append(text)
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)

    def _expand(self, walk: Walk, text: str) -> Iterator[tuple[Match, str, Template | None]]:
        path = Path(text)
        if os.path.isdir(text):
            for match in walk.tree(text, self._accepts):
                yield match, text, None
            return
        template = None if os.path.exists(text) else self._templates.get(text)
        if template is None:
            if _BINARY.search(path.name):
                self._say(text, "is an archive or a binary file by its name: it is not read")
                return
            for match in walk.file(text):
                yield match, str(path.parent), None
            return
        for match in walk.files(template):
            if not _BINARY.search(match.path) and template.match(match.path) is not None:
                yield match, template.base, template

    def _accepts(self, path: str) -> bool:
        why = why_no_log(path.rpartition("/")[2])
        if why and self._passed_over is not None:
            self._passed_over[path] = why
        return not why

    def _source(self, match: Match, root: str, template: Template | None) -> Source:
        layout = rank_of(match.path, root)
        values = template.match(match.path) if template else None
        if values and "rank" in values:
            origin = match.path.rpartition("/")[0]
            layout = Layout(int(values["rank"]), layout.attempt, layout.stream, origin=origin, how="{rank} of the path")
        if values and "attempt" in values:
            layout = replace(layout, attempt=int(values["attempt"]))
        job = self._job or (values or {}).get("job") or layout.job or root.rpartition("/")[2]
        named = bool(values and values.get("job"))
        how = (self._job and "given") or (named and "{job} of the path") or (layout.job and "torchrun's run id")
        return Source(match.path, match.link, root, job, layout, named, how or "the name of the folder")

    def _ambiguous(self, sources: list[Source]) -> dict[str, str]:
        """Path -> why its rank cannot be told."""
        notes = _bare_numbers(sources) | _workers(sources)
        claims: dict[tuple[str, int | None, int, str], set[str]] = defaultdict(set)
        for source in sources:
            layout = source.layout
            if layout.rank != UNKNOWN_RANK and source.path not in notes:
                claims[source.job, layout.attempt, layout.rank, layout.stream].add(layout.origin)
        reasons: dict[str, str] = {}
        for (_, _, rank, _), origins in sorted(claims.items(), key=lambda claim: claim[0][2]):
            if len(origins) > 1:
                first, second = sorted(origins)[:2]
                why = f"rank {rank} is claimed in {first} and in {second}"
                reasons.update((origin, why) for origin in origins if origin not in reasons)
        for why in sorted(set(reasons.values())):
            self._say(why, "two nodes or two runs; ranks come from the lines only. Name one run, or use {job}/{rank}")
        return notes | {
            source.path: reasons[source.layout.origin]
            for source in sources
            if source.layout.origin in reasons and source.path not in notes and source.layout.rank != UNKNOWN_RANK
        }


def why_no_log(name: str) -> str:
    """Why a file in a watched folder is no log, by its name; "" if it is one."""
    if _BINARY.search(name):
        return "an archive or a binary file by its name"
    if name in _NOT_LOGS:
        return "known not to be a log"
    if _LOG.search(name):
        return ""
    # Without a telling suffix the name must say so otherwise: job folders are full of READMEs and file lists.
    if _TEXT.search(name):
        ours = _OURS.search(name) or rank_of(f"/{name}", "").rank != UNKNOWN_RANK
        return "" if ours else "neither log, out, err, train, console nor a rank is in its name"
    return f"the suffix .{name.rpartition('.')[2]} is not that of a log: name it, or a pattern for it, in the paths"


def _found(source: Source, note: str) -> Found:
    layout = source.layout
    rank, local = (UNKNOWN_RANK, False) if note else (layout.rank, layout.local)
    how = layout.how if rank != UNKNOWN_RANK else ""
    return Found(
        Path(source.path), source.job, rank, layout.attempt, layout.stream, local, layout.run, note, how, source.job_how
    )


def _watchable(sources: Iterable[Source], listed: set[str]) -> set[str]:
    """The folders of the files (of links: also the target's), and above them those where new ones may appear."""
    wanted: set[str] = set()
    for source in sources:
        folder = source.path.rpartition("/")[0]
        if source.link:
            wanted.add(str(Path(source.path).resolve().parent))
        wanted.add(folder)
        while (folder := folder.rpartition("/")[0]) in listed and folder not in wanted:
            wanted.add(folder)
    return wanted or set(listed)


def _bare_numbers(sources: Iterable[Source]) -> dict[str, str]:
    families: dict[str, list[Source]] = defaultdict(list)
    for source in sources:
        if source.layout.siblings:
            families[source.layout.siblings].append(source)
    return {
        source.path: "the number in its name is not a rank as far as its siblings tell"
        for family in families.values()
        if not counts_ranks({source.layout.rank for source in family})
        for source in family
    }


def _workers(sources: Iterable[Source]) -> dict[str, str]:
    led = {source.root for source in sources if is_leader(source.path[len(source.root) :])}
    return {
        source.path: "a worker beside a master: its number is not its rank"
        for source in sources
        if source.layout.worker and source.root in led
    }


def _own_output() -> set[tuple[int, int]]:
    """Device and inode of what our standard output and standard error are written to."""
    found = set()
    for fd in (1, 2):
        try:
            status = os.fstat(fd)
        except OSError:
            continue
        found.add((status.st_dev, status.st_ino))
    return found
