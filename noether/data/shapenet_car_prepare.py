"""Turns the raw ShapeNet-Car archive into the preprocessed folder: in parallel, each car whole or not at all.

`OUT/preprocessed/param{0..8}/<id>/*.pt`, one tensor a file, and `sha256.json` with each file's digest, by which a
car that is there already is known to be whole.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from noether.data.digest import digest_of
from noether.data.shapenet_car_raw import FOLDER_COUNTS, RawCar, list_cars, make_car, raw_cars
from noether.data.shared_work import locked, partial_name, process_map, remove_stale
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
        expected = {f"param{i}": count for i, count in enumerate(FOLDER_COUNTS)}
        return [
            f"{param} has {self.counts.get(param, 0)} of {count} cars"
            for param, count in expected.items()
            if self.counts.get(param, 0) != count
        ]


def prepare_folder(
    source: Path,
    out: Path,
    *,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Prepared:
    """Makes the cars that the folder lacks. What is there and verifies is kept, what does not verify is made again.

    Args:
        source: the raw archive or its unpacked folder.
        out: the folder that `dataset_root` will name.
        workers: processes; 1 works in this one.
        progress: called with (cars done, cars in all, which for an archive is the published number).

    Raises:
        RequestError: a car does not fit, naming its file, or the folder cannot be written.
    """
    base, kept = out / "preprocessed", 0
    # Anything but an archive is looked at first, so that a wrong path leaves nothing behind.
    total = ALL_CARS if source.is_file() else len(list_cars(source))
    counts: Counter[str] = Counter()

    def wanted(param: str, name: str) -> bool:
        nonlocal kept
        if (param, name) not in verified:
            verified[param, name] = is_whole(base / param / name)
            if verified[param, name]:
                kept += 1
                counts[param] += 1
                progress(sum(counts.values()), total)
        return not verified[param, name]

    verified: dict[tuple[str, str], bool] = {}
    made = 0
    try:
        base.mkdir(parents=True, exist_ok=True)
        with locked(base), process_map(workers) as run:
            remove_stale(base, "param*/.*.partial")
            jobs = ((car, base) for car in raw_cars(source, wanted))
            for param in run(_make_and_write, jobs):
                made += 1
                counts[param] += 1
                progress(sum(counts.values()), total)
    except OSError as error:
        raise RequestError(
            f"cannot write the data set to {out}",
            seen=f"{type(error).__name__}: {error}",
            expected="a folder this user can write to, with about 1.5 MB for each car",
            fix=f"noether data prepare shapenet_car {source} FOLDER",
        ) from error
    if not counts:
        list_cars(source)  # says that there is nothing in it
    return Prepared(made, kept, dict(sorted(counts.items())))


def is_whole(folder: Path) -> bool:
    """Whether a car's folder holds every file as it was written."""
    try:
        digests = json.loads((folder / DIGESTS).read_text())
        return bool(digests) and all(digest_of(folder / name) == digest for name, digest in digests.items())
    except (OSError, ValueError, AttributeError):
        return False


def _make_and_write(job: tuple[RawCar, Path]) -> str:
    import torch

    car, base = job
    arrays = make_car(car)
    final = base / car.param / car.name
    partial = final.with_name(partial_name(car.name))
    partial.mkdir(parents=True)
    try:
        for key, array in arrays.items():
            torch.save(torch.from_numpy(array), partial / f"{key}.pt")
        digests = {path.name: digest_of(path) for path in sorted(partial.glob("*.pt"))}
        (partial / DIGESTS).write_text(json.dumps(digests, indent=1))
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    except RuntimeError as error:  # torch's writer, on a full disk
        shutil.rmtree(partial, ignore_errors=True)
        raise OSError(str(error).splitlines()[0]) from None
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return car.param
