"""Time reading points of a prepared case from the store, from an .npy file per array and, if installed, from Zarr.

    python benchmarks/store.py [POINTS] [DRAWN] [--out FILE.json]      (20,000,000 points of a case, 8,192 drawn)

A case with pressure and velocity is written as a .vtu file and prepared as by `noether data prepare`; the time and peak
memory of this are reported. Then 8,192 random points are read, with all arrays. `warm` is the median of 200 reads.
`cold` is the median of 10 reads; before each, the kernel is told to drop the pages of the files (posix_fadvise). Slow
reads stop after 20 s. `of a core` is the CPU time of a warm read, which hardly depends on other load. The store reads
one contiguous piece of each array. The .npy files and Zarr keep the points in the mesh's order and are read at random
indices; Zarr is also read in one contiguous piece, as if its points were shuffled.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import at_least_one, told

from noether.core.data.order import SampleKey
from noether.core.data.points import PointSampler
from noether.physics.cases.case_map import parse_map
from noether.physics.cases.dataset import CasesDataset
from noether.physics.cases.layout import find_cases
from noether.physics.cases.make_case import CaseJob

MOST_SECONDS = 20.0  # for all cold reads and for all warm reads; a few reads are always made
MAP = """
sets:
  volume:
    file: "{case}.vtu"
    kind: points
    fields: {pressure: {array: p}, velocity: {array: U}}
"""


def write_source(path: Path, points: int) -> None:
    """Write a case of random points; this runs in a process whose memory is not measured."""
    import pyvista

    rng = np.random.default_rng(0)
    positions = rng.random((points, 3), np.float32)
    cells = np.arange(points, dtype=np.int32)
    connectivity = np.stack([np.ones_like(cells), cells], axis=-1).ravel()
    grid = pyvista.UnstructuredGrid(connectivity, np.ones(points, np.uint8), positions)
    grid.point_data["p"], grid.point_data["U"] = rng.random(points, np.float32), positions
    grid.save(path)


def prepare(root: Path, out: Path) -> tuple[float, float]:
    """Prepare the case; return the seconds, and the peak memory of this process in GB."""
    about = parse_map(MAP, "map")
    ((case, files),) = find_cases(root, about).items()
    began = time.perf_counter()
    CaseJob(case, files, about, root, out).make()
    return time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def forget(folder: Path) -> None:
    """Tell the kernel to drop the cached pages of all files in the folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def measure(name: str, folder: Path, read: Callable[[int], object]) -> dict[str, float]:
    """Print and return the median milliseconds of a cold read, of a warm read, and of a warm read's CPU time."""
    cold, warm, busy = [], [], []
    end = time.monotonic() + MOST_SECONDS
    for draw in range(10):
        if draw < 3 or time.monotonic() < end:
            forget(folder)
            began = time.perf_counter()
            read(1000 + draw)
            cold.append(time.perf_counter() - began)
    end = time.monotonic() + MOST_SECONDS
    for draw in range(250):
        if draw < 5 or time.monotonic() < end:
            began, used = time.perf_counter(), time.process_time()
            read(draw % 50)
            warm.append(time.perf_counter() - began)
            busy.append(time.process_time() - used)
    first = len(warm) // 5  # Leave out the first reads, which fill the cache.
    found = {"cold_ms": 1e3 * float(np.median(cold)), "warm_ms": 1e3 * float(np.median(warm[first:])),
             "warm_cpu_ms": 1e3 * float(np.median(busy[first:]))}  # fmt: skip
    print(
        f"{name:<16} cold {found['cold_ms']:9.2f} ms   warm {found['warm_ms']:8.3f} ms   "
        f"of a core {found['warm_cpu_ms']:8.3f} ms",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="?", type=at_least_one, default=20_000_000)
    parser.add_argument("drawn", nargs="?", type=at_least_one, default=8192)
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    points, drawn = options.points, options.drawn
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_FOLDER")) as name:
        folder = Path(name)
        (folder / "source").mkdir()
        with context.Pool(1) as pool:
            pool.apply(write_source, (folder / "source" / "case.vtu", points))
        with context.Pool(1) as pool:
            seconds, memory = pool.apply(prepare, (folder / "source", folder / "out"))
        print(f"prepare    {points:,} points in {seconds:.1f} s, at most {memory:.2f} GB", flush=True)
        found: dict[str, Any] = {
            "points": points,
            "drawn": drawn,
            "load_average": os.getloadavg()[0],
            "prepare_seconds": seconds,
            "prepare_gb": memory,
        }
        numbers: dict[str, dict[str, Any]] = {"parameters": {}, "outputs": {}, "forces": {}}
        data = CasesDataset(
            folder / "out", ["case"], {"cases": {"case": numbers}, "sets": {"volume": {"kind": "points"}}}
        )
        draw = PointSampler(0, {"volume": drawn}, None, shuffled=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found["store"] = measure("store", folder / "out", lambda epoch: draw.for_training(data[0], SampleKey(epoch, 0)))
        arrays = {key: value.numpy() for key, value in data[0].items()}
        (folder / "npy").mkdir()
        for key, array in arrays.items():
            np.save(folder / "npy" / f"{key}.npy", array)
        found["npy"] = measure(
            "npy", folder / "npy", lambda seed: read_npy(folder / "npy", sorted(arrays), points, drawn, seed)
        )
        if importlib.util.find_spec("zarr"):
            import zarr

            found["zarr_version"] = zarr.__version__
            group = zarr.open_group(folder / "zarr", mode="w")
            for key, array in arrays.items():
                group.create_array(key, data=array, chunks=(65_536, *array.shape[1:]))
            found["zarr"] = measure(
                "zarr", folder / "zarr", lambda seed: read_zarr(group, sorted(arrays), points, drawn, seed)
            )
            found["zarr_shuffled"] = measure(
                "zarr, one piece", folder / "zarr", lambda seed: read_piece(group, sorted(arrays), points, drawn, seed)
            )
        print(f"memory     {before / 1e6:.2f} GB before the first read of the store")
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n")


def read_npy(folder: Path, keys: list[str], points: int, drawn: int, seed: int) -> list[torch.Tensor]:
    rows = np.random.default_rng(seed).integers(points, size=drawn)
    return [torch.from_numpy(np.load(folder / f"{key}.npy", mmap_mode="r")[rows]) for key in keys]


def read_zarr(group: Any, keys: list[str], points: int, drawn: int, seed: int) -> list[torch.Tensor]:
    rows = np.sort(np.random.default_rng(seed).integers(points, size=drawn))
    return [torch.from_numpy(group[key].oindex[rows]) for key in keys]


def read_piece(group: Any, keys: list[str], points: int, drawn: int, seed: int) -> list[torch.Tensor]:
    start = int(np.random.default_rng(seed).integers(points - drawn))
    return [torch.from_numpy(group[key][start : start + drawn]) for key in keys]


if __name__ == "__main__":
    told(main)
