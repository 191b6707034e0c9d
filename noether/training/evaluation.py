"""Evaluate a split with a run's selected weights, and compare the metrics with those of baselines."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
from torch import nn
from torch.utils.data import Subset

from noether.checkpoints.format import CheckpointFolder, selected_checkpoint
from noether.checkpoints.state import load_task_state, load_weights, model_tensors
from noether.common.atomic_write import UNFENCED, DiskRefusal, Writer, refusals_told
from noether.common.console import Console
from noether.common.dotted_path import code_granted
from noether.common.errors import ExitCode, NoetherError, RequestError
from noether.common.numbers import first_of, strict_json
from noether.core.data.checks import sample_label
from noether.core.data.layout import about_data, sample_name
from noether.core.data.loader import Batch, Dataset
from noether.core.evaluate import Evaluator, ShownCase, SplitMetrics, point_errors, write_cases
from noether.core.models.build import count_parameters
from noether.core.precision import choose_precision
from noether.core.problem import build_problem, check_held_out
from noether.core.tasks.base import Predictions, SampleMetrics
from noether.launch.process_group.group import LONGEST_FINISH_S, joined_group
from noether.launch.process_group.stop import AgreedStop, StopAgreed
from noether.launch.processes.context import WorkerContext
from noether.registry import hook
from noether.runs.continue_line import continue_line
from noether.runs.folder import RunFolder
from noether.runs.metrics import described_by
from noether.runs.records import RESULT_VERSION, mean_rate, number, read_metrics, read_record, write_record
from noether.runs.report.tables import choose_cases, median_sample, result_tables
from noether.training.evaluate_command import EvaluateRequest
from noether.training.flops import measure_arithmetic
from noether.training.open_run import OpenRun


@dataclass(frozen=True)
class RunEvaluation:
    """Evaluates a run's splits, and writes the data for the report's figures into the run's folder.

    about: the description of the weights for result.json, from `about_weights`.
    vtk: also write the fields of the shown cases as files that ParaView opens.
    writer: writes the figures' data; it raises an error if a later attempt owns the folder.
    """

    evaluator: Evaluator
    folder: RunFolder
    about: Mapping[str, Any]
    vtk: bool = False
    writer: Writer = UNFENCED

    def result(self, model: nn.Module, split: str) -> dict[str, Any]:
        """Return result.json's content for a split and a model; {} on ranks other than 0. Every rank calls this."""
        group, problem = self.evaluator.group, self.evaluator.problem
        task, (dataset, indices) = problem.task, self._samples(split)
        errors: list[dict[str, np.ndarray]] = []

        def with_details(predictions: Predictions, batch: Batch) -> SampleMetrics:
            found = task.metrics(predictions, batch)  # first, because the metrics check the model's output
            physical = task.to_physical(predictions)
            errors.append(point_errors(task, physical, batch))
            return found | task.final_metrics(physical, batch)

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
            # Whichever split is evaluated, the nearest shape is one of the training shapes.
            scored: Any = Subset(dataset, indices)  # type: ignore[arg-type]
            train = problem.splits.train, problem.known_indices
            result["baselines"] = hook("baselines")(
                task, *train, scored, updates=result["updates"], among_itself=split == "train"
            )
        if task.fields:
            of_all = {name: [batch[name] for rank in gathered for batch in rank] for name in task.fields}
            result |= self._write_cases(model, result, sample_metrics, of_all)
        return result

    def _samples(self, split: str) -> tuple[Dataset, Sequence[int]]:
        """Return the data set of a split, and the indices of its samples."""
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
        """Write the fields of a few chosen cases; return the entry of result.json for the ParaView files."""
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
            write_cases(path, task, sample_metrics, errors=errors, shown=shown, names=names, about=about,
                        writer=self.writer)  # fmt: skip
        if not self.vtk:
            return {}
        faces_of = getattr(dataset, "faces", None)
        faces = [faces_of(indices[case.position]) if callable(faces_of) else None for case in shown]
        return {"files": hook("case files")(self.folder.evaluation / f"{split}-vtk", task, shown, names, faces)}


def about_weights(checkpoint: CheckpointFolder, weights: str) -> dict[str, Any]:
    """Return the record of the weights for result.json: their name, checkpoint, updates and world size."""
    made = {"updates": checkpoint.updates, "world_size": checkpoint.meta()["world_size"]}
    return {"weights": weights, "checkpoint": checkpoint.path.name, **made}


def mean_pace(folder: RunFolder) -> dict[str, float | None]:
    """Return the mean samples per second and device use of the whole run, without evaluations, from its history."""
    rows = [row for row in read_metrics(folder.metrics) if row["kind"] == "training"]
    uses = [use for row in rows if (use := number(row, "device_use")) is not None]
    return {"samples_per_second": mean_rate(rows), "device_use": float(np.mean(uses)) if uses else None}


def evaluate_worker(context: WorkerContext, request: EvaluateRequest) -> int:
    """Evaluate an existing run on one device; write the result of the test split to result.json."""
    config, folder, weights = request.chosen.config, request.chosen.folder, request.chosen.weights
    checkpoint = request.chosen.checkpoint
    with joined_group(context) as group, code_granted(request.chosen.code):
        precision = choose_precision(config.trainer, group.device)
        problem = build_problem(config, request.data, group.device, precision)
        if request.vtk and not problem.task.fields:
            raise RequestError("paraview-needs-fields", "only fields at points are written for ParaView",
                               seen=f"--vtk, task.kind={config.task.kind}",
                               expected="a run that predicts fields at points", fix="leave out --vtk")  # fmt: skip
        load_task_state(problem.task, checkpoint)
        load_weights(problem.model, checkpoint, weights)
        batch_size = checkpoint.meta()["micro_batch_size"]
        evaluator = Evaluator(config, problem, group, precision, usual_batch_size=batch_size)
        about = about_weights(checkpoint, weights)
        result = RunEvaluation(evaluator, folder, about, vtk=request.vtk).result(problem.model, request.split)
    if request.split == "test":
        before = read_record(folder.result)  # Its time use and arithmetic, measured in training, are kept.
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


CASE_PAUSE_S = 10.0
"""The minimum number of seconds between two kept cases, because writing a case may take longer than an evaluation."""
MOST_POINTS = 100_000
"""The maximum number of points in each set of a kept case, which is only displayed."""


class Validation:
    """Evaluates the validation split during training, and saves one case for displays of the run in progress."""

    def __init__(self, run: OpenRun, stop: AgreedStop) -> None:
        self.run, self.stop = run, stop
        self._next_case, self._has_warned = 0.0, False

    def __call__(self) -> dict[str, dict[str, float]]:
        """Return {kind of weights: metrics}; {} on ranks other than 0."""
        problem, state, group = self.run.problem, self.run.state, self.run.group
        evaluator = self.run.evaluator(self.stop.check)
        metrics: dict[str, dict[str, float]] = {}
        for weights, model in state.evaluation_models().items():
            # Each rank has its own running statistics; a checkpoint stores those of rank 0.
            group.copy_from_first(model.buffers())
            sample_metrics = evaluator.sample_metrics(model, problem.splits.train, problem.validation_indices)
            if not group.is_first:
                continue
            metrics[weights] = problem.task.summarise(sample_metrics)
            if weights == state.selected_weights:
                self._keep_median(evaluator, model, sample_metrics)
                self._warn_of_nan(metrics[weights], sample_metrics)
        return metrics

    def _warn_of_nan(self, metrics: Mapping[str, float], sample_metrics: SplitMetrics) -> None:
        """Warn once per attempt that a NaN metric prevents the selection of weights; name the samples with NaN."""
        run, name = self.run, self.run.selected_by.name
        if self._has_warned or not isnan(metrics.get(name, 0.0)):
            return
        self._has_warned, dataset, indices = True, run.problem.splits.train, run.problem.validation_indices
        bad = [sample_label(dataset, indices[int(at)]) for at in np.flatnonzero(np.isnan(sample_metrics.get(name, [])))]
        where = f", because it is NaN of sample {first_of(bad, 3)} of the training split" if bad else ""
        run.console.warn(f"trainer.select_by={name} is NaN{where}: no weights are the best, so the last are kept")

    def _keep_median(self, evaluator: Evaluator, model: nn.Module, sample_metrics: SplitMetrics) -> None:
        """Replace the kept case by the median case of this evaluation, at most once in CASE_PAUSE_S."""
        problem, folder, state = self.run.problem, self.run.folder, self.run.state
        task, dataset, indices = problem.task, problem.splits.train, problem.validation_indices
        if not task.fields or time.monotonic() < self._next_case:
            return
        position = median_sample(task.ranking(sample_metrics))
        shown = ShownCase("median", 1, position, *evaluator.fields(model, dataset, indices[position]))
        made = {"weights": state.selected_weights, "updates": state.progress.updates}
        told = {**made, "split": "validation", "space": about_data(dataset).get("space", {})}
        names = [sample_name(dataset, index) for index in indices]
        self.run.write_if_first(
            lambda: write_cases(
                folder.latest_case, task, sample_metrics, errors={}, shown=[shown], names=names, about=told,
                most_points=MOST_POINTS, writer=self.run.lease,
            )
        )  # fmt: skip
        self._next_case = time.monotonic() + CASE_PAUSE_S


def write_final_result(run: OpenRun, stop: AgreedStop, time_use: dict[str, Any]) -> int:
    """Evaluate the test split with the selected weights, and write the result and the report.

    time_use: this attempt's record. Return 0, or the reason if all ranks stop early; then the next attempt evaluates.
    """
    started, group = time.perf_counter(), run.group
    try:
        result = _evaluate_selected(run, stop)
        if group.is_first:
            time_use = _of_training(run, time_use)
            result |= {"time_use": time_use, "arithmetic": measure_arithmetic(run, time_use)}
            for renderable in ("", *result_tables(result)):
                run.console.say(renderable)
            with refusals_told(run.folder.path):
                write_record(run.folder.result, result, run.lease)
            if run.config.tracker.report:
                report_run(run.folder, run.console, run.lease)
            run.console.only_log(f"evaluated in {time.perf_counter() - started:.1f} s")
    except StopAgreed as stopped:
        return stopped.reason
    except DiskRefusal as refusal:
        raise NoetherError(
            f"the result of the run cannot be written to {run.folder.path}; training is complete and saved\n"
            f"  seen      {refusal.seen}\n"
            f"  expected  {refusal.expected}\n"
            f"  fix       free disk space, then {continue_line(run.folder.path)}: only the evaluation is repeated"
        ) from None
    # A launcher may kill the remaining ranks a while after the first has left, as srun --wait does.
    group.wait_for_first(LONGEST_FINISH_S)
    return 0


def _of_training(run: OpenRun, time_use: dict[str, Any]) -> dict[str, Any]:
    """Return the time use of the last attempt that made updates, as this attempt may only repeat the evaluation."""
    rows = [] if time_use["updates"] else read_metrics(run.folder.metrics)
    last = next((row for row in reversed(rows) if row["kind"] == "time_use"), time_use)
    return {name: last[name] for name in time_use if name in last}


def _evaluate_selected(run: OpenRun, stop: AgreedStop) -> dict[str, Any]:
    group, folder = run.group, run.folder
    weights = run.state.selected_weights
    model = run.state.evaluation_models()[weights]
    about: dict[str, Any] = {}
    if group.is_first:
        selected = selected_checkpoint(folder.checkpoints, run.console.warn)
        about = about_weights(selected, weights)
        load_weights(model, selected, weights)
    # Send the weights from rank 0: other hosts may not see the files of rank 0's host, or not yet.
    about = group.from_first(about)
    group.copy_from_first(model_tensors(model).values())
    return RunEvaluation(run.evaluator(stop.check), folder, about, writer=run.lease).result(model, "test")


def report_run(folder: RunFolder, console: Console, writer: Writer = UNFENCED) -> None:
    """Write the report and print its path; if the disk refuses, only warn, since weights and metrics are saved."""
    from noether.runs.report.page import write_report

    try:
        console.say(f"\nreport {write_report(folder, writer)}")
    except OSError as error:
        again = f"noether report {shlex.quote(str(folder.path))}"
        console.warn(f"the report could not be written ({type(error).__name__}: {error}); to make it later:\n  {again}")
