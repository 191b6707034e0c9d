"""The figures of a run: a split evaluated with the selected weights, beside the baselines, for people and programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn
from torch.utils.data import Subset

from noether.common.whole_file import ANYBODY, Publisher
from noether.data.about import about_data, sample_name
from noether.data.loader import Batch, Dataset
from noether.evaluation.baselines import score_baselines
from noether.evaluation.cases import PointErrors, ShownCase, choose_cases, write_cases
from noether.evaluation.evaluate import Evaluator, Figures
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


@dataclass(frozen=True)
class RunEvaluation:
    """Evaluates a run's splits, and writes what the report draws into its folder.

    world_size: the ranks that trained.
    vtk: also write the fields of the shown cases as files that ParaView opens.
    by: writes what the report draws, where it may.
    """

    problem: Problem
    evaluator: Evaluator
    folder: RunFolder
    world_size: int
    vtk: bool = False
    by: Publisher = ANYBODY

    def result(self, chosen: EvaluatedWeights, split: str) -> dict[str, Any]:
        """Evaluates a split with these weights. Every rank calls it.

        Returns:
            On rank 0 the content of result.json; on the others an empty dict.
        """
        task, group = self.problem.task, self.evaluator.group
        dataset, indices = self._samples(split)
        errors = PointErrors(task)

        def measure(predictions: Predictions, batch: Batch) -> SampleFigures:
            return {**task.metrics(predictions, batch), **task.details(predictions, batch)}

        figures = self.evaluator.figures(chosen.model, dataset, indices, measure=measure, after_batch=errors.add)
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
            **mean_pace(self.folder),
            "world_size": self.world_size,
            "report_parts": list(task.report_parts),
            **task.results(figures),
        }
        if task.baselines and task.fields:
            result |= self._baselines(split)
        if task.fields:
            point_errors = {name: [part for rank in gathered for part in rank[name]] for name in task.fields}
            result |= self._write_cases(chosen.model, result, figures, point_errors)
        return result

    def _samples(self, split: str) -> tuple[Dataset, list[int]]:
        """Returns the data set that a split is of, and its samples."""
        problem = self.problem
        if split == "test":
            return problem.splits.test, list(range(len(problem.splits.test)))
        return problem.splits.train, problem.validation_indices if split == "validation" else problem.train_indices

    def _baselines(self, split: str) -> dict[str, Any]:
        # The nearest shape is looked for among what was trained on, for whatever split is scored.
        problem = self.problem
        scored: Any = problem.splits.test if split == "test" else Subset(*self._samples(split))  # type: ignore[arg-type]
        among_itself = split == "train"
        return score_baselines(
            problem.task, problem.splits.train, problem.train_indices, scored, among_itself=among_itself
        )

    def _write_cases(
        self, model: nn.Module, result: Mapping[str, Any], figures: Figures, errors: Mapping[str, Sequence[np.ndarray]]
    ) -> dict[str, Any]:
        """Writes the fields of a few telling cases; returns what result.json says of the files for ParaView."""
        task, split = self.problem.task, result["split"]
        dataset, indices = self._samples(split)
        chosen = choose_cases(figures[f"{next(iter(task.fields))}/relative_l2"])
        shown = [
            ShownCase(label, position, *self.evaluator.fields(model, dataset, indices[position]))
            for label, position in chosen
        ]
        about = {key: result[key] for key in ("split", "weights", "checkpoint", "updates")}
        about |= {"scalars": list(result.get("scalars", {})), "space": about_data(dataset).get("space", {})}
        names = [sample_name(dataset, index) for index in indices]
        path = self.folder.evaluation / f"{split}.npz"
        with refusals_told(self.folder.path):
            write_cases(path, task, figures, errors=errors, shown=shown, names=names, about=about, by=self.by)
        if not self.vtk:
            return {}
        from noether.evaluation.case_files import write_case_files

        faces = [faces_of(dataset, indices[case.position]) for case in shown]
        return {"files": write_case_files(self.folder.evaluation / f"{split}-vtk", task, shown, names, faces)}


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
