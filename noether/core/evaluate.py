"""Evaluate weights on every sample of a split; each sample is counted exactly once, whatever the world size."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from noether.common.atomic_write import UNFENCED, Writer, written_whole
from noether.common.errors import RequestError
from noether.config.schema import RunConfig
from noether.core.data.loader import Batch, Dataset, evaluation_batches, to_device
from noether.core.data.order import share_evaluation
from noether.core.data.points import mask_of
from noether.core.first_sample import find_comparison
from noether.core.precision import Precision, evaluation_mode, smaller_when_full
from noether.core.problem import Problem
from noether.core.tasks.angles import in_units
from noether.core.tasks.base import Evaluated, Predictions, SampleMetrics, Task, by_channel
from noether.launch.process_group.group import Group
from noether.launch.process_group.torch_internals import Patience
from noether.runs.report.tables import Label

SplitMetrics = dict[str, np.ndarray]
"""{metric: values (S,)}, one value for each sample of a split, in the order of the samples."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates samples with the settings of a run, and divides the samples among the ranks.

    usual_batch_size: how many samples a rank evaluates in one batch if the settings give no number.
    at_boundary: a function called equally often on every rank, between batches; its exception ends the evaluation.
    """

    config: RunConfig
    problem: Problem
    group: Group
    precision: Precision
    _: KW_ONLY
    usual_batch_size: int
    at_boundary: Callable[[], None] = lambda: None

    @property
    def batch_size(self) -> int:
        """The number of samples in a batch of a rank; independent of the world size if the loss compares samples."""
        trainer = self.config.trainer
        usual = trainer.effective_batch_size if self.problem.task.compares_samples else self.usual_batch_size
        return trainer.evaluation_batch_size or usual

    @torch.no_grad()
    def sample_metrics(
        self,
        model: nn.Module,
        dataset: Dataset,
        indices: Sequence[int],
        *,
        metrics: Callable[[Predictions, Batch], SampleMetrics] | None = None,
    ) -> SplitMetrics:
        """Evaluate the given samples of a data set over all ranks.

        Each rank evaluates every world_size-th sample, or batch if the loss compares samples; no sample is dropped.
        The metrics are gathered by sample and returned in order, so that no sum depends on the number of ranks.

        model, dataset, indices: the weights, and the samples of the data set.
        metrics: the function that computes a batch's metrics from predictions in the model's units; None: the task's.
        Return the metrics of each sample on rank 0, and an empty dict on the other ranks.
        """
        group, draw, workers = self.group, self.problem.draw, self.config.num_workers
        find_comparison(self.problem, group, self.precision)  # An evaluation of an existing run has not called it yet.
        together = bool(self.problem.task.compares_samples)
        shares = share_evaluation(len(indices), group.world_size, self.batch_size, together=together)
        own = [[indices[position] for position in batch] for batch in shares[group.rank]]
        rows: list[dict[str, np.ndarray]] = []
        pin = group.device.type == "cuda"
        patience = Patience(self.config.distributed.init_timeout_s, group.parent.while_waiting)
        chunks = "trainer.evaluation_chunk_size=16384      (predicts 16384 points at a time)"
        with (
            evaluation_mode(model),
            smaller_when_full("an evaluation batch", "trainer.evaluation_batch_size", self.batch_size, chunks),
        ):
            for batch in evaluation_batches(dataset, own, draw, num_workers=workers, pin_memory=pin, patience=patience):
                self.at_boundary()
                batch = to_device(batch, group.device, self.precision.weights)
                found = (metrics or self.problem.task.metrics)(self._predict(model, batch), batch)
                rows.append({name: value.detach().double().cpu().numpy() for name, value in found.items()})
            for _ in range(len(shares[0]) - len(rows)):  # A rank may have one batch fewer than the others.
                self.at_boundary()
        return _in_order(group.gather(rows), shares, len(indices))

    @torch.no_grad()
    def fields(self, model: nn.Module, dataset: Dataset, index: int) -> tuple[Predictions, Batch]:
        """Return one sample's predicted fields (1, N, C) in physical units, and the sample as a batch of one."""
        (batch,) = evaluation_batches(dataset, [[index]], self.problem.draw)
        batch = to_device(batch, self.group.device, self.precision.weights)
        with evaluation_mode(model):
            return self.problem.task.to_physical(self._predict(model, batch)), batch

    def _predict(self, model: nn.Module, batch: Batch) -> Predictions:
        chunk_size = self.config.trainer.evaluation_chunk_size
        where = self.precision, self.group.device
        return Evaluated(predict_batch(model, self.problem.task, batch, *where, chunk_size))


def predict_batch(
    model: nn.Module, task: Task, batch: Batch, precision: Precision, device: torch.device, chunk_size: int | None
) -> Predictions:
    """Predict a batch that is given in physical units, in the run's precision; return the scaled predictions."""
    with precision.autocast():
        predictions = predict(model, task.prepare(batch), chunk_size)
    return to_device(predictions, device, precision.weights)


def predict(model: nn.Module, prepared: Batch, chunk_size: int | None) -> Predictions:
    """Return a model's predictions, computed for `chunk_size` points at a time, or for all at once if that is None.

    RequestError: the model cannot predict in chunks.
    """
    in_chunks: Any = getattr(model, "forward_in_chunks", None)
    if chunk_size is not None and in_chunks is None:
        raise RequestError("no-prediction-in-chunks", f"{type(model).__name__} cannot predict in chunks of points",
                           seen=f"trainer.evaluation_chunk_size={chunk_size}",
                           expected="a model with forward_in_chunks(batch, chunk_size)",
                           fix="trainer.evaluation_chunk_size=null")  # fmt: skip
    predictions: Predictions = model(prepared) if chunk_size is None else in_chunks(prepared, chunk_size)
    return predictions


def _in_order(
    ranks: list[list[dict[str, np.ndarray]]], shares: Sequence[Sequence[Sequence[int]]], samples: int
) -> SplitMetrics:
    """Restore the samples' order; `shares` gives the positions of the samples in each rank's batches."""
    if not ranks or not samples:
        return {}
    every = [row.keys() for rows in ranks for row in rows]
    names = every[0]
    if odd := sorted(set().union(*every).difference(set(names).intersection(*every))):
        raise RequestError(
            "metrics-differ", "the batches of an evaluation differ in their metrics",
            seen=f"{', '.join(odd)} in some of them only",
            expected="the same metrics for every sample, with NaN for a missing value, which `summarise` leaves out",
            fix="give every batch the same keys in the metrics of task.kind",
        )  # fmt: skip
    ordered: SplitMetrics = {name: np.empty(samples) for name in names}
    for rows, batches in zip(ranks, shares, strict=True):
        for row, batch in zip(rows, batches, strict=True):
            for name in names:
                ordered[name][batch] = row[name]
    return ordered


ERRORS_PER_SAMPLE = 2048
HISTOGRAM_BINS = 80


def point_errors(task: Task, physical: Predictions, batch: Batch) -> dict[str, np.ndarray]:
    """Return {field: signed errors at a batch's points}, prediction − truth in the field's unit, for the histograms.

    If samples have very many points, only evenly spaced points are used.
    """
    found: dict[str, np.ndarray] = {}
    for name, field in task.fields.items():
        predicted, truth = in_units(field, physical[name], by_channel(batch[name], batched=True))
        errors = predicted - truth
        step = max(1, errors[0].numel() // ERRORS_PER_SAMPLE)
        shown = errors.flatten(1)[:, ::step]
        mask = mask_of(batch, field.points)
        if mask is not None:
            shown = shown[mask.unsqueeze(-1).expand_as(errors).flatten(1)[:, ::step]]
        found[name] = shown.float().cpu().numpy().ravel()
    return found


class ShownCase(NamedTuple):
    """A sample to show: its label, its position in the split, its fields in physical units, and its batch of one.

    place: the sample's rank among the samples with this label, from 1; the second worst sample has rank 2.
    """

    label: Label
    place: int
    position: int
    physical: Predictions
    batch: Batch


def write_cases(
    path: Path,
    task: Task,
    sample_metrics: SplitMetrics,
    *,
    errors: Mapping[str, Sequence[np.ndarray]],
    shown: Sequence[ShownCase],
    names: Sequence[str],
    about: Mapping[str, Any],
    most_points: int | None = None,
    writer: Writer = UNFENCED,
) -> None:
    """Write the data that the report draws, as one compressed npz file of plain arrays.

    Args:
        sample_metrics, names: metrics and name of every sample.
        errors: {field: signed errors of points, in the field's unit}.
        shown: the cases whose fields are written.
        about: further facts of the evaluation for the report.
        most_points: the maximum number of points written per set of a case, spread about evenly (None: all points).
    """
    arrays: dict[str, np.ndarray] = {f"metrics/{name}": values for name, values in sample_metrics.items()}
    for name, parts in errors.items():
        values = np.concatenate(parts)
        # The range is symmetric and contains all but one point in 200; the outermost bins count the points outside it.
        limit = float(np.quantile(np.abs(values), 0.995)) or 1.0
        edges = np.linspace(-limit, limit, HISTOGRAM_BINS + 1)
        arrays[f"histogram/{name}/edges"] = edges
        arrays[f"histogram/{name}/counts"] = np.histogram(np.clip(values, -limit, limit), edges)[0]
    cases = []
    for number, (label, place, index, physical, batch) in enumerate(shown):
        measured = {name: sample_metrics.get(f"{name}/relative_l2") for name in task.fields}
        relative = {name: float(values[index]) for name, values in measured.items() if values is not None}
        why = {"label": label, "place": place}
        cases.append({"sample": names[index], **why, "index": index, "relative_l2": relative})
        for name, field in task.fields.items():
            prefix = f"case/{number}/{name}"
            points = batch[field.points][0]
            prediction, truth = in_units(field, physical[name][0], by_channel(batch[name][0]))
            every = 1 if most_points is None else ceil(len(points) / most_points)
            arrays[f"{prefix}/points"] = to_array(points[::every])
            arrays[f"{prefix}/truth"] = to_array(truth[::every])
            arrays[f"{prefix}/prediction"] = to_array(prediction[::every])
            normals = field.points.replace("_points", "_normals")
            if normals in batch:
                arrays[f"{prefix}/normals"] = to_array(batch[normals][0][::every])
    fields = {name: {"unit": field.unit, "points": field.points} for name, field in task.fields.items()}
    meta = {**about, "names": list(names), "fields": fields, "cases": cases}
    # Pass an open file: NumPy appends .npz to a name without it.
    with written_whole(path, writer) as file:
        np.savez_compressed(file, meta=np.array(json.dumps(meta)), **arrays)  # type: ignore[arg-type]


def to_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor's values as a float32 array."""
    return tensor.detach().float().cpu().numpy()
