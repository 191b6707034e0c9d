"""The user's own code at points of a run: `trainer.callbacks` names classes derived from `Callback`."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from noether.common.dotted_path import load_object
from noether.common.errors import RequestError
from noether.core.components import check_arguments, methods_of, misfit
from noether.training.build import Run
from noether.training.time_use import UpdateMetrics


class Callback:
    """What a run calls on every rank, so that its methods may use collective operations. Each may be left out.

    What it draws from the global random generators changes the run. Nothing of it is kept in a checkpoint: what has to
    survive a stop belongs into the run's model or files.
    """

    def begin(self, run: Run) -> None:
        """Called once in each start, before its first update, with the weights that it begins with."""

    def after_update(self, run: Run, metrics: UpdateMetrics) -> None:
        """Called after each update. Reading a value of `metrics` waits for the device."""

    def after_evaluation(self, run: Run, metrics: Mapping[str, float]) -> bool | None:
        """Called after each evaluation of the validation split.

        `metrics` are of the weights that are selected (EMA weights, if there are any); {} but on rank 0. True on rank 0
        ends the run here, with everything saved and its result written.
        """


def callback_classes(paths: Sequence[str]) -> list[type[Callback]]:
    """Returns the classes that trainer.callbacks names. RequestError: a run cannot call one."""
    found, methods = [], methods_of(Callback)
    for path in paths:
        kind: Any = load_object(path, "trainer.callbacks", base=Callback)
        seen, expected = "", "a constructor without arguments"
        if not (inspect.isclass(kind) and issubclass(kind, Callback)):
            seen, expected = f"{kind!r}", f"a class derived from {Callback.__module__}.Callback"
        elif why := misfit(kind):
            seen = f"{path}{why}"
        elif all(getattr(kind, name) is getattr(Callback, name) for name in methods):
            public = [name for name in vars(kind) if not name.startswith("_")]
            seen, expected = f"methods {', '.join(public) or 'none'}", f"at least one of {', '.join(methods)}"
        if seen:
            raise RequestError("callback-unusable", f"no run can call {path}", seen=seen, expected=expected,
                               fix="trainer.callbacks=[]      (or change that class)")  # fmt: skip
        check_arguments(kind, methods)
        found.append(kind)
    return found
