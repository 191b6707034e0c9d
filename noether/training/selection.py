"""The metric of the validation split that selects the best checkpoint and ends a run."""

from collections.abc import Mapping

from noether.common.errors import EndedByAnother, RequestError
from noether.common.suggest import nearest
from noether.training.build import Run


def selection_metric(run: Run, summary: Mapping[str, float]) -> float:
    """Returns the value of the metric that the run's trainer.select_by names.

    Raises:
        RequestError: there is no such metric.
    """
    name, asked = run.selected_by.name, run.config.trainer.select_by
    if name not in summary:
        near = nearest(name, summary)
        sign = "" if run.described[near or ""].better else asked.removesuffix(name)  # The user's minus, if any.
        raise RequestError(
            "no-such-metric",
            f"no metric {name} to select checkpoints by",
            seen=f"trainer.select_by={asked}",
            expected=f"one of {', '.join(sorted(summary))}",
            fix=f"trainer.select_by={sign}{near}" if near else "trainer.select_by=loss",
        )
    return summary[name]


def check_selection(run: Run) -> None:
    """Refuses a selection that no evaluation could make, before the first update.

    Every rank calls it, before a state is resumed: the evaluation may draw random numbers.

    Raises:
        RequestError: no validation split to stop a run by, no such metric, or a minus that contradicts it.
    """
    trainer, validation = run.config.trainer, run.problem.validation_indices
    if trainer.stop_after is not None and not validation:
        raise RequestError(
            "stop-without-validation",
            "trainer.stop_after needs a validation split",
            seen=f"trainer.stop_after={trainer.stop_after}, and no sample to validate on",
            expected="a dataset.validation_fraction that holds out at least one sample",
            fix="dataset.validation_fraction=0.1      (or trainer.stop_after=null)",
        )
    if trainer.select_by.startswith("-") and run.selected_by.better == "lower":
        raise RequestError(
            "select-by-direction",
            "a minus says that higher is better, and of this metric lower is",
            seen=f"trainer.select_by={trainer.select_by}",
            expected=run.selected_by.in_words,
            fix=f"trainer.select_by={run.selected_by.name}",
        )
    if trainer.select_by == "loss" or not validation:
        return
    sample_metrics = run.evaluator().sample_metrics(
        run.state.model, run.problem.splits.train, validation[: run.group.world_size]
    )
    refusal: RequestError | None = None
    if run.group.is_first:
        try:
            selection_metric(run, run.problem.task.summarise(sample_metrics))
        except RequestError as error:
            refusal = error
    if (refusal := run.group.from_first(refusal)) is not None:
        raise (
            refusal
            if run.group.is_first
            else EndedByAnother("ended-by-rank-0", f"rank 0 refused the run: {refusal.summary}")
        )
