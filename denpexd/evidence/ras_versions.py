"""Which releases of NCCL can be asked through RAS without risk to the job, and which release a process runs.

A report is made inside the job: a bug there ends the training that we are to protect. So the release is looked up
without any contact (the name of the library, or the metadata of its wheel), and where that fails, by commands that a
RAS thread answers from memory without collecting anything.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from denpexd.errors import EvidenceUnavailable

Version = tuple[int, int, int]
FIRST, JSON, MENDED = (2, 24, 0), (2, 28, 7), (2, 29, 2)
_LIBRARY = re.compile(r"libnccl\.so\.(\d+)\.(\d+)\.(\d+)")
_WHEEL = re.compile(r"nvidia_nccl_cu\d+-(\d+)\.(\d+)\.(\d+)[\w.]*\.dist-info")
_MAPS_LIMIT = 4 << 20


@dataclass(frozen=True, slots=True)
class Flaw:
    """Releases from `since` up to before `until` in which a query can end the job."""

    since: Version
    until: Version
    what: str
    url: str


FLAWS = (
    Flaw(
        (2, 24, 0),
        (2, 27, 3),
        "a query while a communicator is being set up crashes the process",
        "https://github.com/NVIDIA/nccl/issues/1718",
    ),
    Flaw(
        (2, 26, 2),
        MENDED,
        "a query while ranks are missing reads memory that is not the report's",
        "https://github.com/NVIDIA/nccl/issues/1762",
    ),
)


def refuse(version: Version, *, daring: bool) -> None:
    """EvidenceUnavailable if this release must not be asked; `daring`: the user has accepted the known flaws."""
    name = ".".join(map(str, version))
    if version < FIRST:
        raise EvidenceUnavailable(f"NCCL {name} has no RAS", "it came with NCCL 2.24")
    flaw = next((flaw for flaw in FLAWS if flaw.since <= version < flaw.until), None)
    if flaw is not None and not daring:
        raise EvidenceUnavailable(
            f"NCCL {name} is not asked through RAS: {flaw.what} ({flaw.url})",
            "run the job with NCCL 2.29.2 or later, or accept the risk with evidence.ras: on",
        )


def of_process(proc: Path, pid: int) -> Version | None:
    """The release that a process has loaded, by the files it has mapped; None where that does not tell."""
    try:
        with (proc / str(pid) / "maps").open("rb") as handle:
            maps = handle.read(_MAPS_LIMIT).decode("utf-8", "replace")
        found = re.search(r"\S*/libnccl\.so\S*", maps)
        if found is None:
            return None
        library = Path(found.group())
        if named := _LIBRARY.search(library.name):
            return _numbers(named)
        # A wheel keeps site-packages/nvidia/nccl/lib/libnccl.so.2 and, beside nvidia, its metadata.
        site = proc / str(pid) / "root" / library.relative_to("/").parents[3]
        for entry in site.glob("nvidia_nccl_cu*.dist-info"):
            if wheel := _WHEEL.fullmatch(entry.name):
                return _numbers(wheel)
    except (OSError, ValueError, IndexError):
        return None
    return None


def _numbers(found: re.Match[str]) -> Version:
    return int(found.group(1)), int(found.group(2)), int(found.group(3))
