"""Looks at one sample before the first update: has it what the task scores, and can the model take it?"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from noether.common.suggest import nearest
from noether.data.loader import stack_samples, to_device
from noether.data.order import SampleKey
from noether.data.points import Sample
from noether.errors import RequestError
from noether.learning.precision import Precision
from noether.models.points import PointModel
from noether.tasks.base import Task
from noether.tasks.classification import ClassificationTask
from noether.tasks.fields import FieldsTask

if TYPE_CHECKING:
    from noether.learning.setup import Problem

OF_A_POINT = ("normals", "sdf", "area")
"""Arrays beside `<set>_points` that have a row for each point."""


def check_sample(sample: Sample, task: Task) -> None:
    """Holds a sample against what the fields task scores.

    Raises:
        RequestError: a field or its points are missing, or they differ in length.
    """
    if not isinstance(task, FieldsTask):
        return
    keys = ", ".join(sample)
    for name, field in task.fields.items():
        if name not in sample:
            raise RequestError(
                f"the samples have no {name}",
                seen=keys,
                expected=f"{name}: a value, or a vector, for each of {field.points}",
                fix=f"~task.fields.{name}      (or give the samples {name})",
            )
        if field.points not in sample:
            near = nearest(field.points, sample) or next((key for key in sample if key.endswith("_points")), "KEY")
            raise RequestError(
                f"the samples have no {field.points}, the points of {name}",
                seen=keys,
                expected=f"{field.points}: (N, 3) in m",
                fix=f"task.fields.{name}.points={near}",
            )
        _check_rows(sample, name, field.points)
    for points in (key for key in sample if key.endswith("_points")):
        for what in OF_A_POINT:
            name = f"{points.removesuffix('points')}{what}"
            if name in sample:
                _check_rows(sample, name, points)
    for name in task.inputs:
        if name not in sample:
            raise RequestError(
                f"the samples have no {name}, which task.inputs names",
                seen=keys,
                expected="a key of the samples",
                fix="task.inputs='[]'",
            )


def _check_rows(sample: Sample, name: str, points: str) -> None:
    values, count = sample[name], len(sample[points])
    if values.ndim == 0 or len(values) != count:
        raise RequestError(
            f"{name} has not one row for each of {points}",
            seen=f"{name} {tuple(values.shape)}, {points} {tuple(sample[points].shape)}",
            expected=f"{name} ({count},) or ({count}, C)",
            fix=f"give the samples as many {name} as {points}",
        )


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
    was_training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
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
    finally:
        model.train(was_training)
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
    scored = {"index"}
    if isinstance(task, ClassificationTask):
        scored.add(task.label)
    if isinstance(task, FieldsTask):
        scored.update(task.fields)
    return next((key for key in batch if key not in scored), "KEY")


def _output_name(task: Task) -> str:
    if isinstance(task, ClassificationTask):
        return "logits"
    return next(iter(task.fields), "NAME") if isinstance(task, FieldsTask) else "NAME"
