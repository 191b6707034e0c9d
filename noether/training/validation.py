"""Evaluates the validation split while a run trains."""

import time
from collections.abc import Mapping
from math import isnan

import numpy as np
from torch import nn

from noether.common.numbers import first_of
from noether.core.data.checks import sample_label
from noether.core.data.layout import about_data, sample_name
from noether.core.evaluate import Evaluator, SplitMetrics
from noether.core.shown_cases import ShownCase, write_cases
from noether.launch.process_group.stop import AgreedStop
from noether.runs.report.chosen_cases import median_sample
from noether.training.open_run import OpenRun

CASE_PAUSE_S = 10.0
"""Seconds between two cases that are kept: an evaluation may take less than the writing of one."""
MOST_POINTS = 100_000
"""Points of a set of a kept case, which is for looking at."""


class Validation:
    """What the loop calls to have its weights evaluated. One case is kept, for whoever watches the run."""

    def __init__(self, run: OpenRun, stop: AgreedStop) -> None:
        self.run, self.stop = run, stop
        self._next_case, self._has_warned = 0.0, False

    def __call__(self) -> dict[str, dict[str, float]]:
        """Returns the metrics of every kind of weights; nothing on ranks above 0."""
        problem, state, group = self.run.problem, self.run.state, self.run.group
        evaluator = self.run.evaluator(self.stop.check)
        metrics: dict[str, dict[str, float]] = {}
        for weights, model in state.evaluation_models().items():
            # Running statistics are each rank's own; rank 0's are what a checkpoint holds.
            group.copy_from_first(model.buffers())
            sample_metrics = evaluator.sample_metrics(model, problem.splits.train, problem.validation_indices)
            if not group.is_first:
                continue
            is_due = weights == state.selected_weights and time.monotonic() >= self._next_case
            if problem.task.fields and is_due:
                self._keep_median(
                    evaluator, model, sample_metrics, {"weights": weights, "updates": state.progress.updates}
                )
                self._next_case = time.monotonic() + CASE_PAUSE_S
            metrics[weights] = problem.task.summarise(sample_metrics)
            if weights == state.selected_weights:
                self._warn_of_nan(metrics[weights], sample_metrics)
        return metrics

    def _warn_of_nan(self, metrics: Mapping[str, float], sample_metrics: SplitMetrics) -> None:
        """Says, once in a start, that no weights can be selected, and of which samples the metric is NaN."""
        run, name = self.run, self.run.selected_by.name
        if self._has_warned or not isnan(metrics.get(name, 0.0)):
            return
        self._has_warned, dataset, indices = True, run.problem.splits.train, run.problem.validation_indices
        bad = [sample_label(dataset, indices[at]) for at in np.flatnonzero(np.isnan(sample_metrics.get(name, [])))]
        where = f", because it is NaN of sample {first_of(bad, 3)} of the training split" if bad else ""
        run.console.warn(f"trainer.select_by={name} is NaN{where}: no weights are the best, the last ones are kept")

    def _keep_median(
        self, evaluator: Evaluator, model: nn.Module, sample_metrics: SplitMetrics, about: dict[str, str | int]
    ) -> None:
        """Writes the fields of the median case in place of those of the evaluation before."""
        problem, folder = self.run.problem, self.run.folder
        task, dataset, indices = problem.task, problem.splits.train, problem.validation_indices
        position = median_sample(task.ranking(sample_metrics))
        shown = ShownCase("median", 1, position, *evaluator.fields(model, dataset, indices[position]))
        told = {**about, "split": "validation", "space": about_data(dataset).get("space", {})}
        names = [sample_name(dataset, index) for index in indices]
        self.run.note(
            lambda: write_cases(
                folder.latest_case, task, sample_metrics, errors={}, shown=[shown], names=names, about=told,
                most_points=MOST_POINTS, by=self.run.lease,
            )
        )  # fmt: skip
