"""Archives of a bug report: .tar.xz and .zip, written from names and bytes, read from strangers.

What is read is refused as a whole when anything in it is not what we write: names that leave the folder, links,
devices, encrypted or twofold members, too many of them, or more bytes than they may grow to. Nothing is extracted
before its name, kind and size are known to be good, and counting happens on the bytes that really come out.
"""

import io
import lzma
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from denpexd.errors import CaseError

MAX_PACKED = 256 << 20
MAX_UNPACKED = 512 << 20
MAX_FILES = 2_000
MAX_NAME = 300
_MEMORY = 160 << 20  # of the decompressor; xz -9 needs 65 MiB
_STEP = 1 << 20
_XZ, _ZIP = b"\xfd7zXZ\0", b"PK\x03\x04"
_MODE = 0o600
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
_STRANGE = re.compile(r"[\x00-\x1f\x7f\\:]")


def pack(files: Mapping[str, bytes], folder: str, *, form: str = "tar.xz", preset: int = 6) -> bytes:
    """The files below `folder` as one archive; equal input gives equal bytes."""
    out = io.BytesIO()
    if form == "zip":
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                info = zipfile.ZipInfo(f"{folder}/{name}", _ZIP_EPOCH)
                info.external_attr = (stat.S_IFREG | _MODE) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, data)
        return out.getvalue()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode = len(data), _MODE
            tar.addfile(member, io.BytesIO(data))
    return lzma.compress(out.getvalue(), preset=preset)


def unpack(path: Path) -> dict[str, bytes]:
    """The files of an archive without their common folder; CaseError for one that is damaged, or not to be trusted."""
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(path.stat().st_mode):
                raise CaseError(f"{path}: not a regular file")
            if path.stat().st_size > MAX_PACKED:
                raise CaseError(f"{path}: larger than {MAX_PACKED >> 20} MiB, no bundle is")
            head = file.read(len(_XZ))
            file.seek(0)
            if head == _XZ:
                found = dict(_checked(path, _tar(file, path)))
            elif head.startswith(_ZIP):
                found = dict(_checked(path, _zip(file, path)))
            else:
                raise CaseError(f"{path}: neither .tar.xz nor .zip; a bundle is made with denpexd bundle")
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error) as error:
        raise CaseError(f"{path}: damaged, or no archive: {error}") from None
    except (
        ValueError,
        RuntimeError,
        NotImplementedError,
        OverflowError,
    ) as error:  # what the readers raise on nonsense
        raise CaseError(f"{path}: damaged: {error}") from None
    if not found:
        raise CaseError(f"{path}: empty")
    return _without_folder(found)


def _checked(path: Path, members: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    for name, data in members:
        if name in seen:
            raise CaseError(f"{path}: holds {name!r} twice")
        seen.add(name)
        yield name, data


def safe_name(path: Path, name: str) -> str:
    """The name if it stays below the folder it is extracted to, whatever the system; else CaseError."""
    parts = name.split("/")
    if len(name) > MAX_NAME or _STRANGE.search(name) or any(part in ("", ".", "..") for part in parts):
        raise CaseError(f"{path}: refused: {name[:MAX_NAME]!r} is no name that a bundle may hold")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise CaseError(f"{path}: refused: {name[:MAX_NAME]!r} is not UTF-8") from None
    return name


def _tar(file: BinaryIO, path: Path) -> Iterator[tuple[str, bytes]]:
    source: BinaryIO = io.BufferedReader(_Unpacked(file, path))
    number = 0
    with tarfile.open(fileobj=source, mode="r|", errorlevel=2) as archive:
        for member in archive:
            number += 1
            if number > MAX_FILES:
                raise CaseError(f"{path}: refused: more than {MAX_FILES} files")
            if member.isdir():
                safe_name(path, member.name.rstrip("/"))
                continue
            name = safe_name(path, member.name)
            if member.type not in _PLAIN or member.sparse is not None:
                raise CaseError(f"{path}: refused: {name!r} is a link or no ordinary file")
            if member.size > MAX_UNPACKED:
                raise CaseError(f"{path}: refused: grows to more than {MAX_UNPACKED >> 20} MiB")
            content = archive.extractfile(member)
            data = content.read() if content is not None else b""
            if len(data) != member.size:
                raise CaseError(f"{path}: damaged: {name!r} is cut off")
            yield name, data


def _zip(file: BinaryIO, path: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        members, room = archive.infolist(), MAX_UNPACKED
        if len(members) > MAX_FILES:
            raise CaseError(f"{path}: refused: more than {MAX_FILES} files")
        for member in members:
            if member.is_dir():
                safe_name(path, member.filename.rstrip("/"))
                continue
            name = safe_name(path, member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG) or member.flag_bits & 1:
                raise CaseError(f"{path}: refused: {name!r} is a link, encrypted, or no ordinary file")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise CaseError(f"{path}: refused: {name!r} is compressed in a way that bundles are not")
            with archive.open(member) as content:
                data = content.read(room + 1)
            room -= len(data)
            if room < 0:
                raise CaseError(f"{path}: refused: grows to more than {MAX_UNPACKED >> 20} MiB")
            yield name, data


class _Unpacked(io.RawIOBase):
    """The bytes of an .xz file as they come out, at most MAX_UNPACKED of them and with bounded memory."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
        self._room = MAX_UNPACKED

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # BufferedReader gives nothing else
        """As of any raw stream; 0 at the end."""
        data = b""
        while not data and not self._xz.eof:
            packed = self._file.read(_STEP) if self._xz.needs_input else b""
            if self._xz.needs_input and not packed:
                raise CaseError(f"{self._path}: damaged: it ends too early")
            data = self._xz.decompress(packed, max_length=len(buffer))
        self._room -= len(data)
        if self._room < 0:
            raise CaseError(f"{self._path}: refused: grows to more than {MAX_UNPACKED >> 20} MiB")
        buffer[: len(data)] = data
        return len(data)


def _without_folder(files: dict[str, bytes]) -> dict[str, bytes]:
    tops = {name.partition("/")[0] for name in files}
    if len(tops) == 1 and all("/" in name for name in files):
        return {name.partition("/")[2]: data for name, data in files.items()}
    return files
