"""noether: one training program for every machine."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from noether.cli.python import RunEnded, SubmittedJob, plan, submit, train
    from noether.common.errors import RequestError
    from noether.launch.ranks import Ranks
    from noether.physics.predict.python_api import LoadedRun

__version__ = "0.1.0"
__all__ = ["RequestError", "RunEnded", "SubmittedJob", "join", "load_run", "plan", "submit", "train"]


def __getattr__(name: str) -> Any:
    # Imported on first use, because commands that only plan or refuse a run must not load torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from noether.cli import python

    return getattr(python, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def load_run(run: "str | Path", *more: "str | Path", **options: Any) -> "LoadedRun":
    """Load a run from its folder: `noether.load_run("runs/cars").predict("car.stl", wind_speed=32)`.

    Options and errors are those of `noether.physics.predict.python_api.LoadedRun`.
    """
    from noether.physics.predict.python_api import LoadedRun

    return LoadedRun(run, *more, **options)


def join() -> "AbstractContextManager[Ranks]":
    """Join the ranks that noether run, torchrun, srun or mpirun has started: `with noether.join() as ranks:`."""
    from noether.launch.ranks import joined

    return joined()
