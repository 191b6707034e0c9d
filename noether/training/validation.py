"""Evaluates the validation split while a run trains."""

from dataclasses import dataclass

from noether.checkpoints.state import TrainingState
from noether.config.schema import RunConfig
from noether.distributed.group import Group
from noether.distributed.stop import AgreedStop
from noether.evaluation.evaluate import build_evaluator
from noether.training.build import Run


@dataclass(frozen=True)
class Validation:
    """What the loop calls to have its weights evaluated."""

    config: RunConfig
    run: Run
    group: Group
    stop: AgreedStop

    def __call__(self, state: TrainingState) -> dict[str, dict[str, float]]:
        """Returns the figures of every kind of weights, the selected first; nothing on ranks above 0.

        Raises:
            StopAgreed: on every rank, where the ranks agreed to stop before it was through.
        """
        problem, run = self.run.problem, self.run
        evaluator = build_evaluator(
            self.config, problem, self.group, run.precision, batch_size=run.plan.micro, at_boundary=self.stop.check
        )
        summaries = {}
        for weights, model in state.evaluation_models().items():
            # Running statistics are each rank's own; rank 0's are what a checkpoint holds.
            self.group.copy_from_first(model.buffers())
            figures = evaluator.figures(model, problem.splits.train, problem.validation_indices)
            if self.group.is_first:
                summaries[weights] = problem.task.summarise(figures)
        return summaries
