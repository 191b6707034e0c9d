"""Archives of every kind are unpacked with the files' times; unpacking can resume, and damaged archives are refused."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
from processes import halve

from noether.physics.cases.commands import is_archive, unpacked
from tests.refusal import refusal


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder training_data with two folders, each with an old file."""
    for param in ("param0", "param1"):
        path = tmp_path / "training_data" / param / "car" / "press.npy"
        path.parent.mkdir(parents=True)
        path.write_bytes(param.encode() * 100)
        os.utime(path, (1_600_000_000, 1_600_000_000))
    return tmp_path / "training_data"


def as_zip(source: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(source.rglob("*")):
            archive.write(file, Path("data") / file.relative_to(source.parent))
    return path


def as_tar(source: Path, path: Path) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        archive.add(source, "data/training_data")
    return path


def as_nested(source: Path, path: Path) -> Path:
    """Pack the folder in the way in which ShapeNet-Car is published: a zip with a tar.gz for each folder in it."""
    with zipfile.ZipFile(path, "w") as archive:
        for param in sorted(source.iterdir()):
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w:gz") as inner:
                inner.add(param, param.name)
            archive.writestr(f"data/training_data/{param.name}.tar.gz", packed.getvalue())
    return path


KINDS = [(as_zip, "a.zip"), (as_tar, "a.tar"), (as_tar, "a.tar.gz"), (as_nested, "a.zip")]


@pytest.mark.parametrize(("pack", "name"), KINDS)
def test_every_kind_is_unpacked_with_its_times(pack, name, source: Path, tmp_path: Path) -> None:
    archive = pack(source, tmp_path / name)
    assert is_archive(archive)
    with unpacked(archive, tmp_path / "out") as folder:
        for path in source.rglob("*.npy"):
            there = folder / "data" / path.relative_to(source.parent)
            assert there.read_bytes() == path.read_bytes()
            assert there.stat().st_mtime == 1_600_000_000
        assert not [path for path in folder.rglob("*") if is_archive(path)]
    assert not folder.exists()


def test_an_interruption_unpacks_once(source: Path, tmp_path: Path) -> None:
    archive = as_tar(source, tmp_path / "a.tar")
    with pytest.raises(KeyboardInterrupt), unpacked(archive, tmp_path / "out"):
        raise KeyboardInterrupt
    archive.write_bytes(b"")
    with unpacked(archive, tmp_path / "out") as folder:
        assert len(list(folder.rglob("*.npy"))) == 2


def encrypted(path: Path) -> None:
    """Mark every file in a zip as encrypted, in its own header and in the central directory."""
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(mark)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(mark, at + 4)
    path.write_bytes(content)


def tar(path: Path, entries: dict[str, str | None]) -> None:
    """Write a tar with an entry for each name: a link to the name's value or, for None, a one-byte file."""
    with tarfile.open(path, "w") as archive:
        for name, link in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = int(link is None)
            if link is not None:
                entry.type, entry.linkname = tarfile.SYMTYPE, link
            archive.addfile(entry, io.BytesIO(b"x"))


def leads_out(path: Path) -> None:
    tar(path, {"../../outside": None})


def without_a_name(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(""), b"x")


HARMS = [(halve, "a.zip"), (halve, "a.tar.gz"), (encrypted, "a.zip"), (without_a_name, "a.zip"), (leads_out, "a.tar")]


@pytest.mark.parametrize(("harm", "name"), HARMS)
def test_what_cannot_be_unpacked_is_refused_and_leaves_nothing(harm, name, source: Path, tmp_path: Path) -> None:
    archive = (as_zip if name == "a.zip" else as_tar)(source, tmp_path / name)
    harm(archive)
    with refusal("archive-unreadable"), unpacked(archive, tmp_path / "out"):
        pass
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]
    assert not (tmp_path / "outside").exists()


def links_out(path: Path) -> None:
    tar(path, {"inside": ".."})


def fills_a_link_inside(path: Path) -> None:
    tar(path, {"data": ".", "data/up": "../.."})


@pytest.mark.parametrize("harm", [leads_out, links_out, fills_a_link_inside])
def test_a_python_without_filters_lets_nothing_out_either(harm, source, tmp_path: Path, monkeypatch) -> None:
    """The tarfile of Debian 12's Python 3.11.2 has no filters, which came with 3.11.4."""
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    test_every_kind_is_unpacked_with_its_times(as_tar, "a.tar.gz", source, tmp_path)
    harm(tmp_path / "b.tar")
    with refusal("archive-unreadable"), unpacked(tmp_path / "b.tar", tmp_path / "out"):
        pytest.fail("it was unpacked")
    assert not (tmp_path / "outside").exists()
