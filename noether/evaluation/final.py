"""The figures of a run: a split evaluated with the selected weights, beside the baselines, for people and programs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from noether.common.whole_file import ANYBODY, Publisher
from noether.config.schema import RunConfig
from noether.data.about import about_data, sample_name
from noether.data.loader import Batch, Dataset
from noether.distributed.group import Group
from noether.evaluation.baselines import score_baselines
from noether.evaluation.cases import PointErrors, choose_cases, predict_fields, write_cases
from noether.evaluation.evaluate import evaluate_samples
from noether.learning.precision import Precision
from noether.learning.setup import Problem
from noether.models.build import count_parameters
from noether.runs.folder import RunFolder, refusals_told
from noether.runs.records import number, read_metrics
from noether.tasks.base import Predictions, SampleFigures


@dataclass(frozen=True)
class EvaluatedWeights:
    """The weights that are evaluated, and where they come from; `updates` is what the whole run had made."""

    model: nn.Module
    weights: str
    checkpoint: str
    updates: int


def evaluate_run(
    config: RunConfig,
    problem: Problem,
    chosen: EvaluatedWeights,
    split: str,
    folder: RunFolder,
    group: Group,
    precision: Precision,
    *,
    batch_size: int,
    world_size: int,
    vtk: bool = False,
    by: Publisher = ANYBODY,
    at_boundary: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Evaluates a split and writes what the report draws into the run folder. Every rank calls it.

    With `vtk`, the fields of the shown cases are also written as files that ParaView opens.
    `by` writes what the report draws, where it may.
    `at_boundary` is called equally often on every rank, between batches; what it raises ends the evaluation.

    Returns:
        On rank 0 the content of result.json; on the others an empty dict.
    """
    task, splits = problem.task, problem.splits
    dataset: Dataset = splits.test if split == "test" else splits.train
    indices = {
        "test": list(range(len(splits.test))),
        "validation": problem.validation_indices,
        "train": problem.train_indices,
    }[split]
    errors = PointErrors(task)

    def measure(predictions: Predictions, batch: Batch) -> SampleFigures:
        return {**task.metrics(predictions, batch), **task.details(predictions, batch)}

    figures = evaluate_samples(
        chosen.model,
        task,
        dataset,
        indices,
        problem.draw,
        group,
        precision,
        batch_size=batch_size,
        chunk_size=config.trainer.evaluation_chunk_size,
        num_workers=config.num_workers,
        measure=measure,
        after_batch=errors.add,
        at_boundary=at_boundary,
    )
    gathered = group.gather(errors.values)
    if not group.is_first:
        return {}
    result: dict[str, Any] = {
        "split": split,
        "samples": len(indices),
        "weights": chosen.weights,
        "checkpoint": chosen.checkpoint,
        "figures": task.summarise(figures),
        "parameters": count_parameters(chosen.model),
        "updates": chosen.updates,
        **mean_pace(folder),
        "world_size": world_size,
        "report_parts": list(task.report_parts),
        **task.results(figures),
    }
    if task.baselines and task.fields:
        # The nearest shape is looked for among what was trained on, for whatever split is scored.
        test = splits.test if split == "test" else _Subset(dataset, indices)
        result |= score_baselines(task, splits.train, problem.train_indices, test, among_itself=split == "train")
    if task.fields:
        primary = figures[f"{next(iter(task.fields))}/relative_l2"]
        shown = [
            (
                label,
                position,
                *predict_fields(
                    chosen.model,
                    task,
                    dataset,
                    indices[position],
                    problem.draw,
                    group.device,
                    precision,
                    config.trainer.evaluation_chunk_size,
                ),
            )
            for label, position in choose_cases(primary)
        ]
        point_errors = {name: [part for rank in gathered for part in rank[name]] for name in task.fields}
        about = {key: result[key] for key in ("split", "weights", "checkpoint", "updates")}
        about |= {"scalars": list(result.get("scalars", {})), "space": about_data(dataset).get("space", {})}
        names = [sample_name(dataset, index) for index in indices]
        with refusals_told(folder.path):
            write_cases(folder.evaluation / f"{split}.npz", task, figures, point_errors, shown, names, about, by=by)
        if vtk:
            from noether.evaluation.case_files import write_case_files

            faces = [faces_of(dataset, indices[position]) for _, position, *_ in shown]
            result["files"] = write_case_files(folder.evaluation / f"{split}-vtk", task, shown, names, faces)
    return result


def faces_of(dataset: Dataset, index: int) -> np.ndarray | None:
    """Returns the faces of a sample's surface, (F, 3) or (F, 4), where the data set knows them."""
    faces = getattr(dataset, "faces", None)
    return faces(index) if callable(faces) else None


def mean_pace(folder: RunFolder) -> dict[str, float | None]:
    """Returns the whole run's samples per second and device use, evaluations left out, from its history."""
    rows = [row for row in read_metrics(folder.metrics) if row["kind"] == "training"]
    # Lines cover equally many updates, so the mean time per sample is the mean of the inverse rates.
    rates = [rate for row in rows if (rate := number(row, "samples_per_second")) is not None and rate > 0]
    rate = float(1.0 / np.mean([1.0 / rate for rate in rates])) if rates else None
    uses = [use for row in rows if (use := number(row, "device_use")) is not None]
    return {"samples_per_second": rate, "device_use": float(np.mean(uses)) if uses else None}


class _Subset:
    def __init__(self, dataset: Dataset, indices: list[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]
