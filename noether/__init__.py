"""noether: one training program for every machine."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from noether.launch.ranks import Ranks
    from noether.physics.predict.loaded import LoadedRun

__version__ = "0.1.0"


def load_run(run: "str | Path", *more: "str | Path", **options: Any) -> "LoadedRun":
    """Loads a run from its folder: `noether.load_run("runs/cars").predict("car.stl", wind_speed=32)`.

    Options and errors are those of `noether.physics.predict.loaded.LoadedRun`.
    """
    # Imported here: the commands that plan and refuse must not load torch.
    from noether.physics.predict.loaded import LoadedRun

    return LoadedRun(run, *more, **options)


def join() -> "AbstractContextManager[Ranks]":
    """Join the ranks that noether run, torchrun, srun or mpirun has started: `with noether.join() as ranks:`."""
    from noether.launch.ranks import joined

    return joined()
