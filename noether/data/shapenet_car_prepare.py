"""Turns the raw ShapeNet-Car archive into the preprocessed folder: in parallel, each car whole or not at all.

`OUT/preprocessed/param{0..8}/<id>/*.pt`, one tensor a file, and `sha256.json` with each file's digest, by which a
car that is there already is known to be whole.
"""

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from noether.data.packed import digest_of
from noether.data.shapenet_car_raw import FOLDER_COUNTS, RawCar, list_cars, make_car, raw_cars
from noether.data.shared_work import Progress, locked, partial_name, silent
from noether.data.surviving_pool import all_made, surviving_map
from noether.errors import RequestError

DIGESTS = "sha256.json"
ALL_CARS = sum(FOLDER_COUNTS)


@dataclass(frozen=True)
class Prepared:
    """What a preparation did; `counts` are the cars now in the folder, by param folder."""

    made: int
    kept: int
    counts: dict[str, int]

    def shortfalls(self) -> list[str]:
        """What differs from the published data set, in words; empty where all 889 cars are there."""
        there = [self.counts.get(f"param{i}", 0) for i in range(len(FOLDER_COUNTS))]
        return [
            f"param{i} has {there[i]} of {count} cars" for i, count in enumerate(FOLDER_COUNTS) if there[i] != count
        ]


def prepare_folder(source: Path, out: Path, *, workers: int = 1, progress: Progress = silent) -> Prepared:
    """Makes the cars that the folder lacks. What is there and verifies is kept, what does not verify is made again.

    Args:
        source: the raw archive or its unpacked folder.
        out: the folder that `dataset_root` will name.
        workers: processes; 1 works in this one.
        progress: told of the cars done; those in all are, for an archive, the published number.

    Raises:
        RequestError: a car does not fit, naming its file, or the folder cannot be written.
    """
    base = out / "preprocessed"
    # Anything but an archive is looked at first, so that a wrong path leaves nothing behind.
    total = ALL_CARS if source.is_file() else len(list_cars(source))
    made, kept = Counter[str](), Counter[str]()

    def wanted(param: str, name: str) -> bool:
        if not is_whole(base / param / name):
            return True
        kept[param] += 1
        progress(made.total() + kept.total(), total)
        return False

    try:
        with locked(base, "param*/.*.partial"):
            cars = surviving_map(
                partial(_make_and_write, base), raw_cars(source, wanted), workers if workers > 1 else 0
            )
            for _, param in all_made(cars):
                made[param] += 1
                progress(made.total() + kept.total(), total)
    except OSError as error:
        raise RequestError(
            "shapenet-not-written",
            f"cannot write the data set to {out}",
            seen=f"{type(error).__name__}: {error}",
            expected="a folder this user can write to, with about 1.5 MB for each car",
            fix=f"noether data prepare shapenet_car {source} FOLDER",
        ) from error
    if not made and not kept:
        list_cars(source)  # says that there is nothing in it
    return Prepared(made.total(), kept.total(), dict(made + kept))


def is_whole(folder: Path) -> bool:
    """Whether a car's folder holds every file as it was written."""
    try:
        digests = json.loads((folder / DIGESTS).read_text())
        return bool(digests) and all(digest_of(folder / name) == digest for name, digest in digests.items())
    except (OSError, ValueError, AttributeError):
        return False


def _make_and_write(base: Path, car: RawCar) -> str:
    import torch

    arrays = make_car(car)
    final = base / car.param / car.name
    unfinished = final.with_name(partial_name(car.name))
    unfinished.mkdir(parents=True)
    try:
        for key, array in arrays.items():
            torch.save(torch.from_numpy(array), unfinished / f"{key}.pt")
        digests = {path.name: digest_of(path) for path in sorted(unfinished.glob("*.pt"))}
        (unfinished / DIGESTS).write_text(json.dumps(digests, indent=1))
        shutil.rmtree(final, ignore_errors=True)
        unfinished.rename(final)
    except RuntimeError as error:  # torch's writer, on a full disk
        raise OSError(str(error).splitlines()[0]) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return car.param
