"""A packed file returns the arrays that were written, other programs can read it, and a damaged file is named."""

import json
import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from packed_files import write_packed
from processes import flip

from noether.core.data import packed
from noether.core.data.packed import ALIGNMENT, DTYPES, Spec, check_digest, digest_path, open_packed, packed_writer
from noether.physics.cars import ellipsoid
from noether.physics.settings import EllipsoidDatasetConfig
from tests.refusal import refusal


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "points": rng.normal(size=(5, 16, 3)).astype(np.float32),
        "lift": rng.normal(size=(5, 1)).astype(np.float32),
        "exact": rng.normal(size=(5, 7)),
        "label": rng.integers(0, 9, 5),
        "mask": rng.integers(0, 2, (5, 3)).astype(bool),
    }


@pytest.fixture
def path(tmp_path, arrays):
    write_packed(tmp_path / "train.safetensors", arrays, {"seed": "3", "name": "größe"})
    return tmp_path / "train.safetensors"


def test_what_was_written_comes_back(path, arrays):
    packed = open_packed(path)
    assert packed.samples == 5
    assert packed.metadata == {"seed": "3", "name": "größe"}
    assert packed.arrays.keys() == arrays.keys()
    for key, array in arrays.items():
        assert not packed.arrays[key].flags.owndata, "arrays must be views of the memory map"
        assert packed.arrays[key].dtype == array.dtype
        np.testing.assert_array_equal(packed.arrays[key], array)
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == packed.metadata, "the library safetensors must read the same metadata"


def test_a_file_of_the_safetensors_library_is_read(tmp_path, arrays):
    safetensors.numpy.save_file(arrays, tmp_path / "theirs.safetensors")
    for key, array in open_packed(tmp_path / "theirs.safetensors").arrays.items():
        np.testing.assert_array_equal(array, arrays[key], strict=True)


AWKWARD = {
    **{name: np.arange(6).reshape(3, 2).astype(dtype) for name, dtype in DTYPES.items()},
    "big-endian": np.arange(6, dtype=">f4").reshape(3, 2),
    "not-contiguous": np.arange(6.0).reshape(2, 3).T,
    "no-samples": np.empty((0, 4), np.float32),
}


@pytest.mark.parametrize("array", AWKWARD.values(), ids=AWKWARD)
def test_every_type_and_form_survives(tmp_path, array):
    write_packed(tmp_path / "a", {"a": array})
    array = array.astype(array.dtype.newbyteorder("="))
    np.testing.assert_array_equal(open_packed(tmp_path / "a").arrays["a"], array, strict=True)
    np.testing.assert_array_equal(safetensors.numpy.load_file(tmp_path / "a")["a"], array, strict=True)


def test_arrays_that_can_be_aligned_are(tmp_path):
    sizes = {"odd": 1, "line": 16, "more": 48}
    write_packed(tmp_path / "a", {key: np.zeros((4, n), np.float32) for key, n in sizes.items()})
    with open(tmp_path / "a", "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
    assert (8 + length) % ALIGNMENT == 0
    begins = {key: entry["data_offsets"][0] for key, entry in header.items()}
    assert {key: begin % ALIGNMENT for key, begin in begins.items()} == {"odd": 0, "line": 0, "more": 0}
    assert begins["odd"] == max(begins.values())  # last, so that it shifts no other array off its alignment


@pytest.mark.parametrize(
    ("start", "arrays"),
    [
        pytest.param(0, {"b": np.zeros((1, 2), np.float32)}, id="other-key"),
        pytest.param(0, {"a": np.zeros((1, 2))}, id="other-type"),
        pytest.param(0, {"a": np.zeros((1, 3), np.float32)}, id="other-shape"),
        pytest.param(9, {"a": np.zeros((2, 2), np.float32)}, id="past-the-end"),
    ],
)
def test_what_was_not_announced_is_refused_and_leaves_no_file(tmp_path, start, arrays):
    announced = {"a": Spec(np.dtype("<f4"), (10, 2))}
    refused = pytest.raises(ValueError, match=r"announced|does not fit")
    with refused, packed_writer(tmp_path / "a", announced, {}) as write:
        write(start, arrays)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arrays",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"a": np.zeros((2, 1)), "b": np.zeros((3, 1))}, id="different-sample-counts"),
        pytest.param({"a": np.array(1.0)}, id="no-sample-axis"),
        pytest.param({"a": np.array(["text"])}, id="text"),
    ],
)
def test_what_cannot_be_packed_is_refused(tmp_path, arrays):
    with pytest.raises(ValueError, match=r"share|cannot be packed"):
        write_packed(tmp_path / "a", arrays)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_rewrite_keeps_the_old_file(path, arrays):
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), packed_writer(path, {"a": Spec(np.dtype("<f4"), (10, 2))}, {}):
        raise KeyboardInterrupt
    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == [path, digest_path(path)]


def header_file(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def entry(begin: int, end: int, shape: object = (2,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(struct.pack("<Q", 2**60) + b"{}", id="absurd-header-length"),
        pytest.param(header_file(json.dumps({"a": entry(4, 12)}).encode(), bytes(12)), id="gap"),
        pytest.param(header_file(json.dumps({"a": entry(0, 8)}).encode(), bytes(7)), id="one-byte-missing"),
        pytest.param(header_file(b"{}"), id="no-arrays"),
        pytest.param(header_file(json.dumps({"a": entry(0, 4, dtype="BF16")}).encode(), b"1234"), id="bf16"),
        pytest.param(header_file(json.dumps({"a": entry(0, 4, [])}).encode(), bytes(4)), id="scalar"),
    ],
)
def test_a_foreign_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "test.safetensors"
    path.write_bytes(content)
    with refusal("packed-data-incomplete"):
        open_packed(path)


@pytest.mark.parametrize("name", ["missing.safetensors", "."], ids=["missing", "folder"])
def test_a_path_that_is_no_file_is_refused_by_name(tmp_path, name):
    with refusal("packed-data-not-opened"):
        open_packed(tmp_path / name)


def test_writing_to_an_open_array_leaves_the_file_alone(path, arrays):
    packed = open_packed(path)
    packed.arrays["points"][:] = 0
    assert not packed.arrays["points"].any()
    np.testing.assert_array_equal(open_packed(path).arrays["points"], arrays["points"])


CARS = EllipsoidDatasetConfig(train_shapes=2, test_shapes=2, surface_points=8, volume_points=8, seed=3)


def test_one_flipped_bit_is_refused_with_a_fix_that_works(tmp_path) -> None:
    ellipsoid.prepare(tmp_path, CARS)
    ellipsoid.prepare(tmp_path, CARS)
    flip(path := tmp_path / "train.safetensors")
    with refusal(summary=f"{path} is damaged", fix=f"rm {path} {digest_path(path)} "):
        ellipsoid.prepare(tmp_path, CARS)
    path.unlink()
    digest_path(path).unlink()
    ellipsoid.prepare(tmp_path, CARS)
    flip(path)
    with refusal("packed-data-damaged"):
        ellipsoid.check_folder(tmp_path)


@pytest.mark.parametrize("kind", ["ellipsoid", "cache"])
def test_a_file_without_a_digest_is_refused_with_a_fix_that_works(kind: str, tmp_path) -> None:
    def check() -> None:
        ellipsoid.check_folder(tmp_path) if kind == "ellipsoid" else ellipsoid.prepare(tmp_path, CARS)

    ellipsoid.prepare(tmp_path, CARS)
    digest_path(tmp_path / "train.safetensors").unlink()
    os.mkfifo(digest_path(tmp_path / "train.safetensors"))  # Opening this pipe would block.
    with refusal("packed-data-unverified"):
        check()
    digest_path(tmp_path / "train.safetensors").unlink()
    with refusal("packed-data-unverified") as caught:
        check()
    subprocess.run(caught.value.fix.partition("      ")[0], shell=True, check=True)
    check()
    flip(tmp_path / "train.safetensors")
    with refusal("packed-data-damaged"):
        check()


def test_a_file_has_its_digest_before_it_has_its_name(tmp_path, monkeypatch) -> None:
    """If a process is killed in between, the file is written again; no file is left that cannot be verified."""

    path, replace = tmp_path / "x.safetensors", os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(target) == path:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(packed.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_packed(path, {"a": np.zeros((2, 2), np.float32)})
    assert digest_path(path).exists()
    assert not path.exists()


def test_a_file_that_is_written_again_has_a_new_digest(tmp_path) -> None:
    for value in (1.0, 2.0):
        write_packed(path := tmp_path / "x.safetensors", {"a": np.full((2, 2), value, np.float32)})
        check_digest(path)
