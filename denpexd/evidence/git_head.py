"""The commit that a folder is at, from the files of git: git itself is not run, so none of its hooks are."""

import os
import re
import stat
from collections.abc import Callable, Iterator

_SMALL, _REFS = 16 << 10, 4 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/(?!.*(?:\.\.|//|/\.))[A-Za-z0-9._/+@=-]{1,200}")


def commit_of(folder: str, inside: Callable[[str], str] = str) -> dict[str, str]:
    """Commit and branch if this folder is the top of a git repository; its files are read, git is not asked."""
    top = f"{folder}/.git"
    try:
        if not stat.S_ISDIR(os.lstat(top).st_mode):  # a worktree: the file says where
            target = read_file(top, _SMALL).decode("utf-8", "replace").removeprefix("gitdir:").strip()
            top = inside(target) if target.startswith("/") else f"{folder}/{target}"
        head = read_file(f"{top}/HEAD", _SMALL).decode("ascii", "replace").strip()
    except OSError:
        return {}
    if _COMMIT.fullmatch(head):
        return {"git.commit": head}
    ref = head.removeprefix("ref:").strip()
    if not _REF.fullmatch(ref):
        return {}
    for base in _bases(top, inside):
        for commit in _commits(base, ref):
            return {"git.commit": commit, "git.branch": ref.removeprefix("refs/heads/")}
    return {"git.branch": ref.removeprefix("refs/heads/")}


def _bases(top: str, inside: Callable[[str], str]) -> Iterator[str]:
    """A worktree has its own HEAD; the branches are in the repository that it belongs to."""
    yield top
    try:
        common = read_file(f"{top}/commondir", _SMALL).decode("utf-8", "replace").strip()
    except OSError:
        return
    yield inside(common) if common.startswith("/") else f"{top}/{common}"


def _commits(base: str, ref: str) -> Iterator[str]:
    try:
        commit = read_file(f"{base}/{ref}", _SMALL).decode("ascii", "replace").strip()
        if _COMMIT.fullmatch(commit):
            yield commit
    except OSError:
        pass
    try:
        packed = read_file(f"{base}/packed-refs", _REFS).decode("utf-8", "replace")
    except OSError:
        return
    for line in packed.splitlines():
        commit, _, name = line.partition(" ")
        if name == ref and _COMMIT.fullmatch(commit):
            yield commit


def read_file(path: str, limit: int, *, links: bool = False) -> bytes:
    """At most `limit` bytes of an ordinary file; OSError for anything else, so that nobody can make us wait."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    handle = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "not an ordinary file", path)
        return os.read(handle, limit)
    finally:
        os.close(handle)
