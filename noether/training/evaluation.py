"""The metrics of a run: a split evaluated with the selected weights, beside the baselines, for people and programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn
from torch.utils.data import Subset

from noether.checkpoints.format import CheckpointFolder
from noether.checkpoints.state import load_task_state, load_weights
from noether.common.console import Console
from noether.common.dotted_path import code_granted
from noether.common.errors import ExitCode, RequestError
from noether.common.numbers import strict_json
from noether.common.refused_disk import refusals_told
from noether.common.whole_file import UNFENCED, Publisher
from noether.core.data.layout import about_data, sample_name
from noether.core.data.loader import Batch, Dataset
from noether.core.evaluate import Evaluator, SplitMetrics
from noether.core.models.build import count_parameters
from noether.core.precision import choose_precision
from noether.core.problem import build_problem, check_held_out
from noether.core.shown_cases import ShownCase, point_errors, write_cases
from noether.core.tasks.base import Predictions, SampleMetrics
from noether.launch.process_group.group import joined_group
from noether.launch.processes.context import WorkerContext
from noether.registry import hook
from noether.runs.folder import RunFolder
from noether.runs.metrics import described_by
from noether.runs.records import RESULT_VERSION, mean_rate, number, read_metrics, read_record, write_record
from noether.runs.report.chosen_cases import choose_cases
from noether.runs.report.tables import result_tables
from noether.training.evaluate_command import EvaluateRequest


@dataclass(frozen=True)
class RunEvaluation:
    """Evaluates a run's splits, and writes what the report draws into its folder.

    about: what result.json says of the weights, by `about_weights`.
    vtk: also write the fields of the shown cases as files that ParaView opens.
    by: writes what the report draws, where it may.
    """

    evaluator: Evaluator
    folder: RunFolder
    about: Mapping[str, Any]
    vtk: bool = False
    by: Publisher = UNFENCED

    def result(self, model: nn.Module, split: str) -> dict[str, Any]:
        """Evaluates a split with a model's weights. Every rank calls it.

        Returns:
            On rank 0 the content of result.json; on the others an empty dict.
        """
        group, problem = self.evaluator.group, self.evaluator.problem
        task, (dataset, indices) = problem.task, self._samples(split)
        errors: list[dict[str, np.ndarray]] = []

        def with_details(predictions: Predictions, batch: Batch) -> SampleMetrics:
            found = task.metrics(predictions, batch)  # first, as they check what the model returned
            physical = task.to_physical(predictions)
            errors.append(point_errors(task, physical, batch))
            return found | task.details(physical, batch)

        sample_metrics = self.evaluator.sample_metrics(model, dataset, indices, metrics=with_details)
        gathered = group.gather(errors)
        if not group.is_first:
            return {}
        metrics = task.summarise(sample_metrics)
        result: dict[str, Any] = {
            "version": RESULT_VERSION,
            "split": split,
            "samples": len(indices),
            **self.about,
            "metrics": metrics,
            "described": described_by(task.describe_metrics(), self.evaluator.config.trainer.select_by).records(),
            "parameters": count_parameters(model),
            **mean_pace(self.folder),
            "report_parts": list(task.report_parts),
            **task.results(sample_metrics, metrics),
        }
        if task.baselines and task.fields:
            # The nearest shape is looked for among what was trained on, for whatever split is scored.
            scored: Any = Subset(dataset, indices)  # type: ignore[arg-type]
            train = problem.splits.train, problem.train_indices
            # With SciPy, at the end and on rank 0 alone.
            result["baselines"] = hook("baselines")(
                task, *train, scored, updates=result["updates"], among_itself=split == "train"
            )
        if task.fields:
            of_all = {name: [batch[name] for rank in gathered for batch in rank] for name in task.fields}
            result |= self._write_cases(model, result, sample_metrics, of_all)
        return result

    def _samples(self, split: str) -> tuple[Dataset, list[int]]:
        """Returns the data set that a split is of, and its samples."""
        problem = self.evaluator.problem
        if split == "test":
            return problem.splits.test, list(range(len(problem.splits.test)))
        if split == "train":
            return problem.splits.train, problem.train_indices
        check_held_out(problem.validation_indices, "--split test")
        return problem.splits.train, problem.validation_indices

    def _write_cases(
        self,
        model: nn.Module,
        result: Mapping[str, Any],
        sample_metrics: SplitMetrics,
        errors: Mapping[str, Sequence[np.ndarray]],
    ) -> dict[str, Any]:
        """Writes the fields of a few telling cases; returns what result.json says of the files for ParaView."""
        task, split = self.evaluator.problem.task, result["split"]
        dataset, indices = self._samples(split)
        shown = [
            ShownCase(label, place, position, *self.evaluator.fields(model, dataset, indices[position]))
            for label, place, position in choose_cases(task.ranking(sample_metrics))
        ]
        about = {key: result[key] for key in ("split", "weights", "checkpoint", "updates")}
        about["space"] = about_data(dataset).get("space", {})
        names = [sample_name(dataset, index) for index in indices]
        path = self.folder.evaluation / f"{split}.npz"
        with refusals_told(self.folder.path, elsewhere=self.folder.as_copy("evaluate")):
            write_cases(path, task, sample_metrics, errors=errors, shown=shown, names=names, about=about, by=self.by)
        if not self.vtk:
            return {}
        faces_of = getattr(dataset, "faces", None)
        faces = [faces_of(indices[case.position]) if callable(faces_of) else None for case in shown]
        return {"files": hook("case files")(self.folder.evaluation / f"{split}-vtk", task, shown, names, faces)}


def about_weights(checkpoint: CheckpointFolder, weights: str) -> dict[str, Any]:
    """Returns what result.json says of the weights: the updates that made them, and the ranks that wrote them."""
    made = {"updates": checkpoint.updates, "world_size": checkpoint.meta()["world_size"]}
    return {"weights": weights, "checkpoint": checkpoint.path.name, **made}


def mean_pace(folder: RunFolder) -> dict[str, float | None]:
    """Returns the whole run's samples per second and device use, evaluations left out, from its history."""
    rows = [row for row in read_metrics(folder.metrics) if row["kind"] == "training"]
    uses = [use for row in rows if (use := number(row, "device_use")) is not None]
    return {
        "samples_per_second": mean_rate(rows),
        "device_use": float(np.mean(uses)) if uses else None,
    }


def evaluate_worker(context: WorkerContext, request: EvaluateRequest) -> int:
    """Evaluates a run that was made before on one device, and keeps what it finds of the test split in result.json."""
    config, folder, weights = request.chosen.config, request.chosen.folder, request.chosen.weights
    checkpoint = request.chosen.checkpoint
    with joined_group(context) as group, code_granted(request.chosen.code):
        precision = choose_precision(config.trainer, group.device)
        problem = build_problem(config, request.data, group.device, precision)
        if request.vtk and not problem.task.fields:
            raise RequestError(
                "paraview-needs-fields",
                "only fields at points are written for ParaView",
                seen=f"--vtk, task.kind={config.task.kind}",
                expected="a run that predicts fields at points",
                fix="leave out --vtk",
            )
        load_task_state(problem.task, checkpoint)
        load_weights(problem.model, checkpoint, weights)
        batch_size = checkpoint.meta()["micro_batch_size"]
        evaluator = Evaluator(config, problem, group, precision, usual_batch_size=batch_size)
        about = about_weights(checkpoint, weights)
        result = RunEvaluation(evaluator, folder, about, vtk=request.vtk).result(problem.model, request.split)
    if request.split == "test":
        before = read_record(folder.result)  # What the training took is known from the training alone.
        result = {**{key: before[key] for key in ("time_use", "arithmetic") if key in before}, **result}
        with refusals_told(folder.path, elsewhere=folder.as_copy("evaluate")):
            write_record(folder.result, result)
    if request.as_json:
        print(strict_json(result, indent=2))
    else:
        console = Console(None, speaks=True)
        for table in result_tables(result):
            console.say(table)
        if files := result.get("files"):
            console.say("\nthe best, the median and the worst cases, for ParaView:", *files, sep="\n")
    return ExitCode.DONE
