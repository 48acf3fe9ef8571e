"""Path patterns: globs with `**`, and templates with `{job}`, `{rank}`, `{attempt}`, `{node}`.

A walk of its own instead of `glob`: it visits each folder once whatever the links do, and says what it could not read.
"""

import difflib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from denpexd.errors import SettingsError

_PLACEHOLDERS = {"job": r"[^/]+?", "rank": r"\d+", "attempt": r"\d+", "node": r"[^/]+?"}
_TOKEN = re.compile(r"\*+|\?|\[!?\]?[^\]/]*\]|\{[^{}/]*\}|[^*?\[{]+|.")
_MAGIC = re.compile(r"[*?\[{]")


Mark = tuple[int, int] | None
STRANGE = (
    "a link out of the watched folders, made by somebody else than root, our user and the owner of the folder, "
    "is not followed: name the folder in ingest.links"
)


@dataclass(frozen=True, slots=True)
class Match:
    """A regular file that a pattern names; `identity` is device and inode, `link` whether the name is a link."""

    path: str
    identity: tuple[int, int]
    link: bool


class Template:
    """An absolute path with placeholders, as `/logs/{job}/rank{rank}.log`; `*`, `?`, `[...]`, `**` as in a glob.

    A hidden name needs its dot spelled out. `base`: the folder below which everything lies.
    SettingsError for an unknown placeholder or a broken brace.
    """

    def __init__(self, text: str) -> None:
        self.text = text if text.startswith("/") else f"{Path.cwd()}/{text}"
        self.placeholders: set[str] = set()
        parts = [part for part in self.text.split("/") if part not in ("", ".")]
        self.steps: list[str | re.Pattern[str] | None] = [self._step(part) for part in parts]
        named = "".join("(?:/[^/]+)*" if part == "**" else "/" + self._regex(part, named=True) for part in parts)
        self._path = re.compile(named)
        literal = next((i for i, step in enumerate(self.steps) if not isinstance(step, str)), len(self.steps) - 1)
        self.base = "/" + "/".join(parts[:literal])

    def match(self, path: str) -> dict[str, str] | None:
        """The values of the placeholders if the path fits, else None."""
        found = self._path.fullmatch(path)
        return found.groupdict() if found else None

    def _step(self, part: str) -> str | re.Pattern[str] | None:
        if part == "**":
            return None
        return re.compile(self._regex(part, named=False)) if _MAGIC.search(part) else part

    def _regex(self, part: str, *, named: bool) -> str:
        pieces = ["" if part.startswith(".") else r"(?!\.)"]
        for piece in _TOKEN.findall(part):
            if piece.startswith("*"):
                pieces.append("[^/]*")
            elif piece == "?":
                pieces.append("[^/]")
            elif piece.startswith("[") and piece.endswith("]"):
                pieces.append(_set(piece[1:-1]))
            elif piece.startswith("{"):
                pieces.append(self._placeholder(piece, named=named))
            else:
                pieces.append(re.escape(piece))
        return "".join(pieces)

    def _placeholder(self, token: str, *, named: bool) -> str:
        name = token[1:-1]
        if not token.endswith("}") or name not in _PLACEHOLDERS:
            near = difflib.get_close_matches(name, _PLACEHOLDERS, n=1)
            hint = f"did you mean {{{near[0]}}}?" if near else "known are {job}, {rank}, {attempt}, {node}"
            raise SettingsError(f"paths: {self.text}: {token} is no placeholder; {hint}")
        if not named:
            return f"(?:{_PLACEHOLDERS[name]})"
        if name in self.placeholders:
            return f"(?P={name})"
        self.placeholders.add(name)
        return f"(?P<{name}>{_PLACEHOLDERS[name]})"


class Walk:
    """Expands patterns. `problem` is told (path, why) for every folder or file that should be readable and is not.

    `marks`: what the outcome rests on, as `mark` saw it; while all of them stay, another walk would find the same
    (unless `links` were met: what they lead to is not marked). `enters`: whether a link to a folder is followed.
    """

    def __init__(
        self, problem: Callable[[str, str], None], enters: "Callable[[os.DirEntry[str]], bool]" = lambda entry: True
    ) -> None:
        self._problem, self._enters = problem, enters
        self.marks: dict[str, Mark] = {}
        self.folders: set[str] = set()  # that were listed
        self.links = False

    def files(self, template: Template) -> Iterator[Match]:
        """Every regular file that the template names, each folder visited once."""
        yield from self._below("", template.steps, 0, set())

    def file(self, path: str) -> Iterator[Match]:
        """The file itself, if it is there."""
        self.marks[path] = mark(path)
        yield from self._file(path, os.path.islink(path), wanted=True)

    def tree(self, root: str, accept: Callable[[str], bool]) -> Iterator[Match]:
        """Every regular file below a folder whose name is accepted; hidden folders are left out."""
        yield from self._tree(root, accept, set())

    def _below(
        self, folder: str, steps: list[str | re.Pattern[str] | None], at: int, seen: set[tuple[int, int, int]]
    ) -> Iterator[Match]:
        step, last = steps[at], at == len(steps) - 1
        if isinstance(step, str):
            path = f"{folder}/{step}"
            if last:
                yield from self.file(path)
            else:
                yield from self._below(path, steps, at + 1, seen)
            return
        if step is None and not self._first_time(folder, at, seen):
            return
        if step is None and not last:
            yield from self._below(folder, steps, at + 1, seen)
        for entry in self._entries(folder or "/"):
            path = f"{folder}/{entry.name}"
            if step is None:
                if last:
                    yield from self._file(path, entry.is_symlink(), wanted=False)
                if self._is_folder(entry) and not entry.name.startswith("."):
                    yield from self._below(path, steps, at, seen)
            elif step.fullmatch(entry.name):
                if last:
                    yield from self._file(path, entry.is_symlink(), wanted=True)
                elif self._is_folder(entry):
                    yield from self._below(path, steps, at + 1, seen)

    def _tree(self, folder: str, accept: Callable[[str], bool], seen: set[tuple[int, int, int]]) -> Iterator[Match]:
        if not self._first_time(folder, 0, seen):
            return
        for entry in self._entries(folder):
            path = f"{folder.rstrip('/')}/{entry.name}"
            if entry.name.startswith("."):
                continue
            if self._is_folder(entry):
                yield from self._tree(path, accept, seen)
            elif accept(path):
                yield from self._file(path, entry.is_symlink(), wanted=False)

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        # Links come last, so that a folder is found under its own name first.
        self.marks[folder] = mark(folder)
        try:
            with os.scandir(folder) as entries:
                self.folders.add(folder)
                return sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as problem:
            self._problem(folder, _denied("listed", problem))
            return []

    def _file(self, path: str, link: bool, *, wanted: bool) -> Iterator[Match]:
        try:
            info = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as problem:
            self._problem(path, _denied("looked at", problem))
            return
        self.links = self.links or link
        if stat.S_ISREG(info.st_mode):
            yield Match(path, (info.st_dev, info.st_ino), link)
        elif wanted:
            kind = "a directory" if stat.S_ISDIR(info.st_mode) else "a FIFO, socket or device"
            self._problem(path, f"is {kind} where a log file is expected: it is left out")

    def _is_folder(self, entry: "os.DirEntry[str]") -> bool:
        try:
            if not entry.is_dir():
                return False
            if entry.is_symlink() and not self._enters(entry):
                self._problem(entry.path, STRANGE)
                return False
        except OSError:
            return False  # a loop of links
        return True

    @staticmethod
    def _first_time(folder: str, at: int, seen: set[tuple[int, int, int]]) -> bool:
        try:
            info = os.stat(folder or "/")
        except OSError:
            return True  # the listing will say why
        key = (info.st_dev, info.st_ino, at)
        if key in seen:
            return False
        seen.add(key)
        return True


def _denied(what: str, problem: OSError) -> str:
    why = f"cannot be {what} by uid {os.geteuid()}: {problem.strerror}"
    return f"{why}; grant access, no restart needed" if isinstance(problem, PermissionError) else why


def mark(path: str) -> Mark:
    """Changes whenever the entries of a folder do, or another file gets the name; None if there is nothing."""
    try:
        info = os.stat(path)
    except OSError as problem:
        return None if isinstance(problem, (FileNotFoundError, NotADirectoryError)) else (problem.errno or 0, 0)
    return (info.st_ino, info.st_ctime_ns) if stat.S_ISDIR(info.st_mode) else (info.st_ino, info.st_dev)


def _set(inside: str) -> str:
    negated = inside.startswith("!")
    members = re.escape(inside[1:] if negated else inside).replace(r"\-", "-")
    return f"[{'^/' if negated else ''}{members}]"


def is_magic(text: str) -> bool:
    """Does the path hold wildcards or placeholders?"""
    return _MAGIC.search(text) is not None
