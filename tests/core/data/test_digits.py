"""MNIST's files and the packaged digits are read exactly, or the faulty file is named."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from noether.core.data.digits import FILES, open_digits
from tests.refusal import refusal


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_mnist(root: Path, suffix: str = "") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    random, written = np.random.default_rng(0), {}
    root.mkdir(parents=True, exist_ok=True)
    for split, files in FILES.items():
        arrays = (random.integers(0, 256, (12, 28, 28)), random.integers(0, 10, 12))
        for file, array in zip(files, arrays, strict=True):
            (root / f"{file}{suffix}").write_bytes(gzip.compress(idx(array)) if suffix else idx(array))
        written[split] = arrays
    return written


@pytest.mark.parametrize(("folder", "suffix"), [("", ""), ("", ".gz"), ("MNIST/raw", "")])
def test_idx_files_are_read_as_they_are(folder: str, suffix: str, tmp_path: Path) -> None:
    """The files may be as distributed, gzipped, or in torchvision's folder."""
    written = write_mnist(tmp_path / folder, suffix)
    for split, (images, labels) in written.items():
        dataset = open_digits(tmp_path, split)
        assert len(dataset) == 12
        for index in range(12):
            sample = dataset[index]
            assert sample["image"].shape == (1, 28, 28)
            assert (sample["image"].numpy()[0] * 255).round().astype(int).tolist() == images[index].tolist()
            assert int(sample["label"]) == labels[index]


def test_the_package_holds_five_thousand_digits_a_fifth_of_each_for_testing() -> None:
    train, test = open_digits(None, "train"), open_digits(None, "test")
    assert np.bincount(train.labels).tolist() == [400] * 10
    assert np.bincount(test.labels).tolist() == [100] * 10
    seen = {image.tobytes() for image in train.images}
    assert not any(image.tobytes() in seen for image in test.images)
    assert 0.1 < float(train[0]["image"].mean()) < 0.25, "the mean brightness of a digit is wrong"


IMAGES, LABELS = FILES["train"]
BROKEN = {
    "images-missing": (IMAGES, None, f"has no {IMAGES}"),
    "no-idx-file": (IMAGES, b"PNG\x0d....", "first bytes 50 4e 47 0d"),
    "cut-short": (IMAGES, idx(np.zeros((12, 28, 28)))[:-5], "9,403 values"),
    "header-cut-short": (LABELS, b"\x00\x00\x08\x01\x00", "5 bytes"),
    "empty": (LABELS, b"", "first bytes none"),
    "other-size-of-images": (IMAGES, idx(np.zeros((12, 32, 32))), "(12, 32, 32)"),
    "labels-too-few": (LABELS, idx(np.zeros(11)), "(11,)"),
    "label-beyond-nine": (LABELS, idx(np.full(12, 10)), "a label 10"),
    "gzip-damaged": (LABELS, gzip.compress(idx(np.zeros(12)))[:-3], "EOFError"),
}


@pytest.mark.parametrize(("file", "content", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_not_mnists_is_refused_by_name(file: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    write_mnist(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with refusal(words=words) as refused:
        open_digits(tmp_path, "train")
    assert str(tmp_path) in str(refused.value)
    assert "dataset_root" in str(refused.value)
