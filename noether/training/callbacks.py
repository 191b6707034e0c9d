"""The user's own code at points of a run: `trainer.callbacks` names classes derived from `Callback`."""

import inspect
from collections.abc import Mapping, Sequence

from noether.common.dotted_path import load_object
from noether.common.errors import RequestError
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
        return None


METHODS = ("begin", "after_update", "after_evaluation")


def load_callbacks(paths: Sequence[str]) -> list[Callback]:
    """Returns an object of each class that trainer.callbacks names. RequestError: a run cannot call one."""
    return [_load(path) for path in paths]


def _load(path: str) -> Callback:
    kind = load_object(path, "trainer.callbacks", base=Callback)
    if not (inspect.isclass(kind) and issubclass(kind, Callback)):
        raise _unusable(path, f"{kind!r}", f"a class derived from {Callback.__module__}.Callback")
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise _unusable(path, f"{path}{inspect.signature(kind)}: {error}", "a constructor without arguments") from None
    own = [name for name in METHODS if getattr(kind, name) is not getattr(Callback, name)]
    if not own:
        public = [name for name in vars(kind) if not name.startswith("_")]
        raise _unusable(path, f"methods {', '.join(public) or 'none'}", f"at least one of {', '.join(METHODS)}")
    for name in own:
        arguments = list(inspect.signature(getattr(Callback, name)).parameters)
        try:
            inspect.signature(getattr(kind, name)).bind(*arguments)
        except TypeError:
            seen = f"def {name}{inspect.signature(getattr(kind, name))}"
            raise _unusable(path, seen, f"def {name}({', '.join(arguments)})") from None
    return kind()


def _unusable(path: str, seen: str, expected: str) -> RequestError:
    return RequestError("callback-unusable", f"no run can call {path}", seen=seen, expected=expected,
                        fix="trainer.callbacks=[]      (or change that class)")  # fmt: skip
