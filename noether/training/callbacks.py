"""Callbacks: the user's own code, called at certain points of a run. `trainer.callbacks` names their classes."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from noether.common.dotted_path import load_object
from noether.common.errors import RequestError
from noether.core.components import check_arguments, methods_of, misfit
from noether.training.build import Run
from noether.training.time_use import UpdateMetrics


class Callback:
    """The user's code, called on every rank so that it may use collective operations. Every method is optional.

    If it draws numbers from the global random generators, the run changes. Checkpoints do not save its attributes, so
    keep any state that must survive an interruption in the run's model or in files.
    """

    def begin(self, run: Run) -> None:
        """Run once in each attempt at the run, after the weights are built or restored, before the first update."""

    def after_update(self, run: Run, metrics: UpdateMetrics) -> None:
        """Run after each update. Reading a value of `metrics` waits for the device."""

    def after_evaluation(self, run: Run, metrics: Mapping[str, float]) -> bool | None:
        """Run after each evaluation of the validation split; return True on rank 0 to end the run here.

        The run then saves everything and writes its result. `metrics`: on rank 0, the metrics of the selected weights
        (EMA weights if there are any); {} on the other ranks.
        """


def callback_classes(paths: Sequence[str]) -> list[type[Callback]]:
    """Return the classes that trainer.callbacks names. RequestError: a class is unusable."""
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
