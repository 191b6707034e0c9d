"""Changes made to a run's data between two starts, by kind of data, each with the error code of the refusal."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noether.physics.cars import ellipsoid
from noether.physics.cases.dataset import read_metadata, write_metadata
from noether.physics.cases.store import case_folder
from noether.physics.settings import EllipsoidDatasetConfig

OTHER_DATA = "resume-other-data"


@dataclass(frozen=True)
class Change:
    """A change to a data folder: the error code with which it is refused, and the function that makes it."""

    code: str
    make: Callable[[Path], object]


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def _rows(split: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    def make(folder: Path) -> None:
        np.save(folder / f"{split}.npy", change(np.load(folder / f"{split}.npy")))

    return Change(OTHER_DATA, make)


def write_lines(folder: Path) -> None:
    folder.mkdir()
    for seed, split in enumerate(("train", "test")):
        np.save(folder / f"{split}.npy", np.random.default_rng(seed).normal(size=(32, 4)).astype(np.float32))


def write_cars(folder: Path, count: int = 20, seed: int = 3) -> None:
    shapes = EllipsoidDatasetConfig(
        train_shapes=count, test_shapes=5, surface_points=48, volume_points=40, geometry_points=32, seed=seed
    )
    ellipsoid.prepare(folder, shapes)


def _other_cars(**how: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        shutil.rmtree(folder)
        write_cars(folder, **how)

    return make


def _metadata(change: Callable[[dict], object]) -> Change:
    """Return a Change that edits the content of dataset.json and updates the digest in it."""

    def make(folder: Path) -> None:
        about = read_metadata(folder)
        del about["sha256"]
        change(about)
        write_metadata(folder, about)

    return Change(OTHER_DATA, make)


def _first_cases(folder: Path) -> tuple[str, str]:
    return tuple(read_metadata(folder)["splits"]["train"][:2])


def _remove_case(folder: Path) -> None:
    shutil.rmtree(case_folder(folder, _first_cases(folder)[0]))


def _train_on(split: str) -> Change:
    return _metadata(lambda about: about["splits"]["train"].append(about["splits"][split].pop()))


def _exchange_folders(folder: Path) -> None:
    one, other = (case_folder(folder, case) for case in _first_cases(folder))
    one.rename(folder / "aside")
    other.rename(one)
    (folder / "aside").rename(other)


def _exchange_cases(folder: Path) -> None:
    """Exchange two cases, with their metadata, as if they had been prepared from each other's simulations."""
    one, other = _first_cases(folder)
    _exchange_folders(folder)

    def exchange(about: dict) -> None:
        cases = about["cases"]
        cases[one], cases[other] = cases[other], cases[one]

    _metadata(exchange).make(folder)


DATA: dict[str, dict[str, Change]] = {
    "own": {
        "longer": _rows("train", lambda rows: np.concatenate([rows, rows[:3]])),
        "shorter": _rows("train", lambda rows: rows[:-1]),
        "another test split": _rows("test", lambda rows: rows[:-1]),
        "another first sample": _rows("train", lambda rows: np.concatenate([rows[:1] * 1.001, rows[1:]])),
        "in another order": _rows("train", lambda rows: rows[::-1].copy()),
        "of another type": _rows("train", lambda rows: rows.astype(np.float64)),
    },
    "cars": {
        "others": Change(OTHER_DATA, _other_cars(seed=4)),
        "one fewer": Change(OTHER_DATA, _other_cars(count=19)),
        "a flipped bit": Change("packed-data-damaged", lambda folder: _flip(folder / "train.safetensors")),
        "a split gone": Change("no-ellipsoid-data", lambda folder: (folder / "test.safetensors").unlink()),
        "a digest gone": Change("packed-data-unverified", lambda folder: (folder / "test.safetensors.sha256").unlink()),
        "exchanged splits": Change(
            "packed-data-damaged", lambda folder: shutil.copy(folder / "test.safetensors", folder / "train.safetensors")
        ),
    },
    "cases": {
        "in another order": _metadata(lambda about: about["splits"]["train"].reverse()),
        "one fewer": _metadata(lambda about: about["splits"]["train"].pop()),
        "a validation case to train on": _train_on("validation"),
        "the only test case to train on": Change("prepared-split-empty", _train_on("test").make),
        "another density": _metadata(lambda about: about["constants"].update(density=1.0)),
        "two exchanged": Change(OTHER_DATA, _exchange_cases),
        "two folders exchanged": Change("case-damaged", _exchange_folders),
        "a flipped bit": Change("case-damaged", lambda folder: _flip(next(folder.glob("cases/*/*.safetensors")))),
        "a case gone": Change("case-incomplete", _remove_case),
        "dataset.json edited": Change(
            "case-metadata-damaged",
            lambda folder: (folder / "dataset.json").write_text(
                (folder / "dataset.json").read_text().replace('"Pa"', '"kPa"', 1)
            ),
        ),
        "dataset.json cut": Change(
            "case-metadata-unreadable",
            lambda folder: (folder / "dataset.json").write_bytes((folder / "dataset.json").read_bytes()[:-50]),
        ),
    },
}
