"""Gives the model one sample before the first update, and says in words where it cannot take it."""

from collections.abc import Mapping

import torch

from noether.data.loader import Batch, stack_samples, to_device
from noether.data.order import SampleKey
from noether.errors import RequestError
from noether.learning.precision import Precision, evaluation_mode
from noether.learning.setup import Problem
from noether.models.points import PointModel
from noether.tasks.base import Task


def try_model(problem: Problem, device: torch.device, precision: Precision) -> None:
    """Gives the model one training sample, without gradients, and says in words where it cannot take it.

    Only mistakes that are recognised are answered: the model reads what samples lack, takes or returns a tensor in
    place of a dictionary, or has nothing to train. Training meets any other one itself, with its traceback.
    """
    model, task = problem.model, problem.task
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RequestError(
            "nothing-to-train",
            "the model has no parameters to train",
            seen=f"{sum(1 for _ in model.parameters())} parameters, all frozen" if list(model.parameters()) else "none",
            expected="a model with at least one parameter that requires a gradient",
            fix="model.kind=my_package.MyModel      (another model)",
        )
    sample = problem.splits.train[problem.train_indices[0]]
    drawn = {**problem.draw.for_training(sample, SampleKey(0, 0)), "index": torch.tensor(0)}
    batch = to_device(stack_samples([drawn]), device, precision.weights)
    kept_rng = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    try:
        with evaluation_mode(model), kept_rng, torch.no_grad():
            prepared = task.prepare(batch)
            with precision.autocast():
                predictions = model(prepared)
    except Exception as error:
        refusal = _understood(error, problem, batch)
        if refusal is not None:
            raise refusal from None
        return
    if not isinstance(predictions, Mapping):
        raise RequestError(
            "model-returns-no-dictionary",
            "the model does not return a dictionary",
            seen=type(predictions).__name__,
            expected="predictions by name",
            fix=_output_line(task),
        )


def _understood(error: Exception, problem: Problem, batch: Batch) -> RequestError | None:
    """Returns the answer to an error of the forward pass whose cause is known, or None."""
    names = ", ".join(name for name in batch if name != "index")
    if isinstance(error, KeyError):
        key = str(error.args[0]) if error.args else ""
        return RequestError(
            "model-reads-absent-key",
            f"the model reads {key}, which the samples do not have",
            seen=names,
            expected=f"{key} in each sample",
            fix=f"give the samples {key}, or take another model",
        )
    if isinstance(error, (TypeError, AttributeError)) and "dict" in str(error):
        takes = next((key for key in batch if key not in ("index", *problem.task.truths)), "KEY")
        return RequestError(
            "model-takes-a-tensor",
            "the model takes a tensor, and was given the batch, a dictionary of tensors",
            seen=str(error).splitlines()[0][:200],
            expected="a forward that takes a dictionary, or the names of the tensors that it takes and returns",
            fix=f"model.input={takes} {_output_line(problem.task)}",
        )
    if isinstance(error, ValueError) and isinstance(problem.model, PointModel):
        return RequestError(
            "model-cannot-take-samples",
            f"{type(problem.model).__name__} cannot take these samples",
            seen=names,
            expected=str(error),
            fix="give the samples what is missing, or model=upt, which reads positions alone",
        )
    return None


def _output_line(task: Task) -> str:
    return f"model.output={next(iter(task.predicted), 'NAME')}"
