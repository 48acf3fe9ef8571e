"""Archives of strangers: what we write comes back, everything else is refused in one sentence."""

import io
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd import archive
from denpexd.archive import pack, unpack
from denpexd.errors import CaseError

FILES = {"case.yaml": b"id: x\n", "stacks/rank0.txt": b"", "a/b/c.bin": bytes(range(256)) * 300}
names = st.lists(st.text("abcXYZ09-_. ", min_size=1, max_size=8).filter(lambda t: t not in (".", "..")), min_size=1)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "bundle"
    path.write_bytes(data)
    return path


def tar(folder: Path, *members: tuple[str, bytes, dict[str, object]]) -> Path:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as made:
        for name, data, more in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for key, value in more.items():
                setattr(member, key, value)
            made.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return written(folder, out.getvalue())


def zipped(folder: Path, change: Callable[[zipfile.ZipInfo], None], name: str = "x/a") -> Path:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        info = zipfile.ZipInfo(name)
        change(info)
        made.writestr(info, b"data")
    return written(folder, out.getvalue())


@pytest.mark.parametrize("form", ["tar.xz", "zip"])
def test_what_was_packed_comes_back(tmp_path: Path, form: str) -> None:
    data = pack(FILES, "top", form=form)
    assert unpack(written(tmp_path, data)) == FILES
    assert pack(FILES, "top", form=form) == data


@given(
    st.dictionaries(names.map("/".join), st.binary(max_size=50), min_size=1, max_size=5),
    st.sampled_from(["zip", "tar.xz"]),
)
def test_any_names_and_bytes_come_back(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], form: str
) -> None:
    assert unpack(written(tmp_path_factory.mktemp("any"), pack(files, "t", form=form))) == files


@pytest.mark.parametrize(
    "name", ["../a", "x/../../a", "/etc/passwd", "x//a", "x/./a", "x\\a", "C:a", "x/a\n", "x/" + "a" * 400]
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CaseError, match="refused"):
        unpack(tar(tmp_path, ("x/good", b"", {}), (name, b"data", {})))
    if "\n" not in name:
        with pytest.raises(CaseError, match="refused"):
            unpack(zipped(tmp_path, lambda info: setattr(info, "filename", name)))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.CONTTYPE]
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(CaseError, match="no ordinary file"):
        unpack(tar(tmp_path, ("x/link", b"", {"type": kind, "linkname": "/etc/passwd"})))


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="no ordinary file"):
        unpack(zipped(tmp_path, lambda info: setattr(info, "external_attr", (stat.S_IFLNK | 0o777) << 16)))


def test_a_member_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="twice"):
        unpack(tar(tmp_path, ("x/a", b"1", {}), ("x/a", b"2", {})))


@pytest.mark.parametrize("form", ["tar.xz", "zip"])
def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED", 1 << 20)
    with pytest.raises(CaseError, match="grows to more than 1 MiB"):
        unpack(written(tmp_path, pack({f"a{n}": bytes(300_000) for n in range(8)}, "x", form=form)))
    with pytest.raises(CaseError, match="grows to more than 1 MiB"):
        unpack(written(tmp_path, pack({"a": bytes(2 << 20)}, "x", form=form)))
    monkeypatch.setattr(archive, "MAX_FILES", 5)
    with pytest.raises(CaseError, match="more than 5 files"):
        unpack(written(tmp_path, pack({f"a{n}": b"" for n in range(8)}, "x", form=form)))
    monkeypatch.setattr(archive, "MAX_PACKED", 10)
    with pytest.raises(CaseError, match="larger than"):
        unpack(written(tmp_path, pack(FILES, "x", form=form)))


def test_a_header_that_is_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED", 1 << 20)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz", format=tarfile.PAX_FORMAT) as made:
        member = tarfile.TarInfo("x/a")
        member.pax_headers = {"comment": "x" * (4 << 20)}
        made.addfile(member)
    with pytest.raises(CaseError, match="grows to more than"):
        unpack(written(tmp_path, out.getvalue()))


def test_a_decompressor_that_wants_much_memory_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}]
    with pytest.raises(CaseError, match="damaged"):
        unpack(written(tmp_path, lzma.compress(b"x" * 1000, lzma.FORMAT_XZ, filters=filters)))


@pytest.mark.parametrize("data", [b"", b"hello", b"\x1f\x8b\x08", b"\xfd7zXZ\0", b"PK\x03\x04"])
def test_what_is_no_archive_is_said_to_be_none(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CaseError):
        unpack(written(tmp_path, data))
    with pytest.raises(CaseError, match=r"damaged|regular"):
        unpack(tmp_path)


@pytest.mark.parametrize("form", ["tar.xz", "zip"])
@given(data=st.data())
def test_a_damaged_archive_is_refused_or_read_whole(
    tmp_path_factory: pytest.TempPathFactory, form: str, data: st.DataObject
) -> None:
    whole = pack(FILES, "x", form=form)
    at = data.draw(st.integers(0, len(whole) - 1))
    broken = data.draw(st.sampled_from([whole[:at], whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]]))
    try:
        unpack(written(tmp_path_factory.mktemp("broken"), broken))
    except CaseError:
        pass
