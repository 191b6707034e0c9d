"""Gives the model one sample before the first update, and says in words where it cannot take it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from noether.data.loader import stack_samples, to_device
from noether.data.order import SampleKey
from noether.errors import RequestError
from noether.learning.evaluation_mode import evaluation_mode
from noether.learning.precision import Precision
from noether.models.points import PointModel
from noether.tasks.base import Task

if TYPE_CHECKING:
    from noether.learning.setup import Problem


def try_model(problem: "Problem", device: torch.device, precision: Precision) -> None:
    """Gives the model one training sample, without gradients, and says in words where it cannot take it.

    Only mistakes that are recognised are answered; training meets any other one itself, with its traceback.

    Raises:
        RequestError: the model reads what samples lack, takes or returns a tensor in place of a dictionary, or has
            nothing to train.
    """
    model = problem.model
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RequestError(
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
            prepared = problem.task.prepare(batch)
            with precision.autocast():
                predictions = model(prepared)
    except KeyError as error:
        raise _missing_key(str(error.args[0]) if error.args else "", batch) from None
    except (TypeError, AttributeError) as error:
        if "dict" not in str(error):
            return
        raise _takes_a_tensor(error, batch, problem.task) from None
    except ValueError as error:
        if not isinstance(model, PointModel):
            return
        raise RequestError(
            f"{type(model).__name__} cannot take these samples",
            seen=", ".join(name for name in batch if name != "index"),
            expected=str(error),
            fix="give the samples what is missing, or model=upt, which reads positions alone",
        ) from None
    except Exception:
        return
    if not isinstance(predictions, Mapping):
        raise RequestError(
            "the model does not return a dictionary",
            seen=type(predictions).__name__,
            expected="predictions by name",
            fix=f"model.output={_output_name(problem.task)}",
        )


def _missing_key(key: str, batch: Mapping[str, Tensor]) -> RequestError:
    return RequestError(
        f"the model reads {key}, which the samples do not have",
        seen=", ".join(name for name in batch if name != "index"),
        expected=f"{key} in each sample",
        fix=f"give the samples {key}, or take another model",
    )


def _takes_a_tensor(error: Exception, batch: Mapping[str, Tensor], task: Task) -> RequestError:
    return RequestError(
        "the model takes a tensor, and was given the batch, a dictionary of tensors",
        seen=str(error).splitlines()[0][:200],
        expected="a forward that takes a dictionary, or the names of the tensors that it takes and returns",
        fix=f"model.input={_input_name(batch, task)} model.output={_output_name(task)}",
    )


def _input_name(batch: Mapping[str, Tensor], task: Task) -> str:
    return next((key for key in batch if key not in ("index", *task.truths)), "KEY")


def _output_name(task: Task) -> str:
    return next(iter(task.predicted), "NAME")
