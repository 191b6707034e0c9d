"""Try the model and the task on one sample before the first update, and explain the mistakes found."""

from collections.abc import Iterable, Mapping
from math import isclose, isnan, nan
from typing import Any

import torch
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from noether.common.errors import RequestError
from noether.common.numbers import first_of
from noether.core.data.build import OwnStream
from noether.core.data.checks import samples_digest
from noether.core.data.loader import Batch, batch_of, seed_everything, to_device
from noether.core.data.order import SampleKey
from noether.core.data.points import Sample
from noether.core.models.build import TensorModel
from noether.core.precision import Precision, evaluation_mode, restored_afterwards
from noether.core.problem import Problem
from noether.core.tasks.base import Predictions, Task
from noether.launch.batches import BatchPlan
from noether.launch.process_group.group import Group


def try_model(problem: Problem, device: torch.device, precision: Precision) -> None:
    """Try the model and the task on one training sample, and explain the mistakes found.

    RequestError: the model reads a key that samples lack, takes or returns a tensor instead of a dictionary, or has no
    parameters to train; the loss has no gradient; the loss or a metric has the wrong shape, for one sample or for two.
    Other failures of the model or the loss are left to training, which shows their traceback; a failing metric ends the
    run here, not at its first evaluation.
    """
    model, task = problem.model, problem.task
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RequestError(
            "nothing-to-train", "the model has no parameters to train",
            seen=f"{sum(1 for _ in model.parameters())} parameters, all frozen" if list(model.parameters()) else "none",
            expected="a model with at least one parameter that requires a gradient",
            fix="model.kind=my_package.MyModel      (another model)",
        )  # fmt: skip
    batch = _batch_of(problem, [_drawn(problem, 0)], device, precision)
    try:
        with evaluation_mode(model), restored_afterwards(model, device):
            prepared = task.prepare(batch)
            with precision.autocast():
                predictions = model(prepared)
    except Exception as error:
        if refusal := _understood(error, problem, batch):
            raise refusal from None
        return
    if not isinstance(predictions, Mapping):
        raise RequestError("model-returns-no-dictionary", "the model does not return a dictionary",
                           seen=type(predictions).__name__, expected="a dictionary of predictions by name",
                           fix=_output_line(task, batch))  # fmt: skip
    with evaluation_mode(model):
        of_one = to_device(dict(predictions), device, precision.weights)
        if not task.updates_itself:
            _try_loss(task, of_one, prepared)
        with torch.no_grad():
            # A metric that works for one sample only, or for several only, would fail in an evaluation.
            for times in (2,) if task.compares_samples else (1, 2):
                repeated = (
                    {key: one.repeat_interleave(times, 0) if one.ndim else one for key, one in of.items()}
                    for of in (of_one, batch)
                )
                _try_metrics(task, *repeated)


def _drawn(problem: Problem, position: int) -> tuple[int, Sample]:
    """Return the index of a training sample and the points that the first epoch draws from it."""
    index = problem.train_indices[position]
    return index, problem.draw.for_training(problem.splits.train[index], SampleKey(position, 0))


def _batch_of(
    problem: Problem, drawn: Iterable[tuple[int, Sample]], device: torch.device, precision: Precision
) -> Batch:
    indices, samples = zip(*drawn, strict=True)
    return to_device(batch_of(problem.splits.train, indices, samples, pad=problem.draw.pad), device, precision.weights)


def find_comparison(problem: Problem, group: Group, precision: Precision) -> str:
    """Return the evidence that the loss compares samples; "" if the loss is a mean over samples.

    If the task does not declare this, find it out by a trial, and set `task.compares_samples`. Every rank calls this.
    """
    task, seen = problem.task, "compares_samples = True"
    if task.compares_samples is None:
        seen = group.from_first(_comparison(problem, group.device, precision))
        task.compares_samples = bool(seen)
    return seen if task.compares_samples else ""


def _comparison(problem: Problem, device: torch.device, precision: Precision) -> str:
    """Compare the loss of four samples with the mean loss of single samples and of halves, in evaluation mode.

    Batches of different sizes draw different random numbers. If the loss draws any, pairs are compared instead: for a
    mean, L(a, b) + L(c, d) = L(a, d) + L(c, b). Half precision is not used: its rounding hides small differences.
    """
    task, model, samples = problem.task, problem.model, len(problem.train_indices)
    ours = all(type(one).__module__.startswith("noether.") for one in (task, model))
    if samples < 2 or (ours and not isinstance(model, TensorModel)):
        return ""
    half = min(2, samples // 2)
    apart = 1 if isinstance(problem.splits.train, OwnStream) else max(1, samples // 4)
    few = [_drawn(problem, at) for at in range(0, samples, apart)[: 2 * half]]

    def loss(*chosen: tuple[int, Sample], seed: int = 0) -> float:
        seed_everything(seed)
        try:
            prepared = task.prepare(_batch_of(problem, chosen, device, precision))
            return float(task.loss(model(prepared), prepared))
        except Exception:  # Training shows the traceback for a batch; a single sample may not form a valid batch.
            return nan

    def same(one: float, other: float) -> bool:
        return isclose(one, other, rel_tol=1e-9 if precision.name == "float64" else 1e-3, abs_tol=1e-12)

    with evaluation_mode(model), restored_afterwards(model, device), torch.no_grad():
        whole, alone = loss(*few), sum(map(loss, few)) / len(few)
        halves = (loss(*few[:half]) + loss(*few[half:])) / 2
        if isnan(whole) or (same(whole, alone) and same(whole, halves)):
            return ""
        if not same(whole, loss(*few, seed=1)):
            if half == 1 or same(halves, (loss(few[0], few[3]) + loss(few[2], few[1])) / 2):
                return ""
            return "the loss of two samples is not the sum of one term for each"
    return f"loss {whole:.4g} of {len(few)} samples, mean loss {halves:.4g} of halves, {alone:.4g} of single samples"


def check_stream(problem: Problem, group: Group) -> str:
    """Return the guarantees that a stream lacks, in words; "" for an indexed data set. Every rank calls this.

    RequestError: ranks read different samples from the stream, or the validation split overlaps the training split.
    """
    train, digest, validation = problem.splits.train, problem.data["digest"], problem.validation_indices
    if not isinstance(train, OwnStream):
        return ""
    others = (samples_digest(split, range(len(split))) for split in (train, problem.splits.test))
    if validation and samples_digest(train, validation) in others:
        raise RequestError(
            "stream-validation-not-apart", f"the validation split of {train.kind} repeats another split",
            seen="the same first samples", expected="separate samples for split='validation'",
            fix=f"if split == 'validation': ...      (in {train.kind}; or dataset.validation_fraction=0)",
        )  # fmt: skip
    first = group.from_first(digest)
    if group.world_size > 1 and (digest is None or digest != first):
        raise RequestError(
            "stream-not-the-same", f"{train.kind} does not yield the same samples every time it is read",
            seen="two readings differ" if digest is None else f"rank {group.rank} reads other samples than rank 0",
            expected="all samples in the same order on every rank; noether gives each rank its share",
            fix="rng = random.Random(0)      (create it in __iter__; do not divide the samples among ranks)",
        )  # fmt: skip
    otherwise = "; two readings differ, so a resumed run gets other samples" if digest is None else ""
    return f"each rank reads the whole stream, in one process; a resumed run reads again up to its position{otherwise}"


def check_parts(problem: Problem, asked: str | None, batch: BatchPlan, compared: str) -> None:
    """Refuse to split a batch whose samples are compared, unless trainer.across_ranks (`asked`) allows it.

    compared: the evidence that the loss compares samples, or "". Layers of BatchNorm are found here, by their class.
    """
    accumulated = batch.accumulation_steps > 1
    norms = [
        name
        for name, module in problem.model.named_modules()
        if isinstance(module, _BatchNorm) and module.training and (accumulated or not isinstance(module, SyncBatchNorm))
    ]
    by_loss = compared and (accumulated or asked != "gather") and not problem.task.updates_itself
    if asked == "per_rank" or batch.micro == batch.effective or not (norms or by_loss):
        return
    seen = compared if by_loss else f"BatchNorm {first_of(norms, 3)}"
    fix = "trainer.across_ranks=per_rank      (each micro-batch by itself; or use GroupNorm, or SyncBatchNorm on GPUs)"
    if by_loss:
        together = "max_batch_size=null" if accumulated else "across_ranks=gather      (one loss over all samples)"
        fix = f"trainer.{together}\ntrainer.across_ranks=per_rank      (each micro-batch by itself)\n"
        fix += "compares_samples = False in the task      (if the loss is a mean over samples)"
    raise RequestError(
        "samples-compared-in-parts", "the loss compares the samples of a batch, but the batch is computed in parts",
        seen=f"{seen}; samples computed at once: {batch.micro} of {batch.effective}",
        expected="a mean over samples (if ragged, over each sample's mean), a whole batch at once, or a setting below",
        fix=fix,
    )  # fmt: skip


def _try_loss(task: Task, predictions: Predictions, prepared: Batch) -> None:
    kind = type(task).__name__
    loss: Any = None
    try:
        loss = task.loss(predictions, prepared)
    except Exception:  # The first update shows the traceback, in training mode.
        return
    if not isinstance(loss, torch.Tensor) or loss.ndim or not loss.is_floating_point():
        raise RequestError("loss-not-a-scalar", f"the loss of {kind} is not a single number", seen=_kind_of(loss),
                           expected="a tensor () of a floating-point type: the mean over the batch's samples",
                           fix=f"return losses.mean() in {kind}.loss")  # fmt: skip
    if not loss.requires_grad:
        raise RequestError(
            "loss-without-gradient", f"the loss of {kind} does not depend on the weights",
            seen="a tensor without a gradient: it uses no prediction, or .detach(), .item() or torch.no_grad()",
            expected="a loss that is computed from the predictions by operations of torch",
            fix=f"leave .detach() and .item() out of {kind}.loss, and use the predictions",
        )  # fmt: skip


def _try_metrics(task: Task, predictions: Predictions, batch: Batch) -> None:
    kind = type(task).__name__
    metrics: Any = task.metrics(predictions, batch)
    if not isinstance(metrics, Mapping) or "loss" not in metrics:
        raise RequestError(
            "metrics-without-loss", f"the metrics of {kind} do not contain `loss`",
            seen=", ".join(map(str, metrics)) if isinstance(metrics, Mapping) else _kind_of(metrics),
            expected="a dictionary of each sample's metrics that contains `loss`, by which checkpoints are compared",
            fix=f"return {{**super().metrics(predictions, batch), …}} in {kind}.metrics",
        )  # fmt: skip
    samples = len(next(iter(batch.values())))
    for name, values in metrics.items():
        if not isinstance(values, torch.Tensor) or tuple(values.shape) != (samples,):
            raise RequestError("metric-not-of-each-sample",
                               f"the metric {name} of {kind} is not one number for each sample", seen=_kind_of(values),
                               expected=f"a tensor ({samples},), for a batch of {samples}",
                               fix=f"return values.flatten(1).mean(dim=1), or the like, in {kind}.metrics")  # fmt: skip


def _kind_of(value: object) -> str:
    return f"a tensor {tuple(value.shape)} of {value.dtype}" if isinstance(value, torch.Tensor) else repr(value)[:80]


def _understood(error: Exception, problem: Problem, batch: Batch) -> RequestError | None:
    """Return a RequestError that explains an error of the forward pass; None if the cause is unknown."""
    names = ", ".join(name for name in batch if name != "index")
    if isinstance(error, KeyError):
        key = str(error.args[0]) if error.args else ""
        return RequestError("model-reads-absent-key", f"the model reads {key}, which the samples do not have",
                            seen=names, expected=f"{key} in each sample",
                            fix=f"add {key} to the samples, or use another model")  # fmt: skip
    if isinstance(error, (TypeError, AttributeError)) and "dict" in str(error):
        takes = next((key for key in batch if key not in ("index", *problem.task.truths)), "KEY")
        return RequestError(
            "model-takes-a-tensor", "the model expects a tensor, but receives the batch, a dictionary of tensors",
            seen=str(error).splitlines()[0][:200],
            expected="a forward that takes a dictionary, or the names of the tensors that it takes and returns",
            fix=f"model.input={takes} {_output_line(problem.task, batch)}",
        )  # fmt: skip
    if isinstance(error, ValueError) and hasattr(problem.model, "needs"):
        return RequestError(
            "model-cannot-take-samples", f"{type(problem.model).__name__} cannot take these samples", seen=names,
            expected=str(error), fix="add the missing keys to the samples, or model=upt, which reads only positions",
        )  # fmt: skip
    return None


def _output_line(task: Task, batch: Batch) -> str:
    """Return a setting that names a model's output: the task's first prediction, else the samples' last tensor."""
    return f"model.output={next(iter(task.predicted), [key for key in batch if key != 'index'][-1])}"
