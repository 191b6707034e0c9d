"""Evaluates the validation split while a run trains."""

from dataclasses import dataclass

from noether.checkpoints.state import TrainingState
from noether.config.schema import RunConfig
from noether.distributed.group import Group
from noether.distributed.stop import AgreedStop
from noether.evaluation.evaluate import evaluate_samples
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
        problem, trainer = self.run.problem, self.config.trainer
        summaries = {}
        for weights, model in state.evaluation_models().items():
            # Running statistics are each rank's own; rank 0's are what a checkpoint holds.
            self.group.copy_from_first(model.buffers())
            figures = evaluate_samples(
                model,
                problem.task,
                problem.splits.train,
                problem.validation_indices,
                problem.draw,
                self.group,
                self.run.precision,
                batch_size=trainer.evaluation_batch_size or self.run.plan.micro,
                chunk_size=trainer.evaluation_chunk_size,
                num_workers=self.config.num_workers,
                at_boundary=self.stop.check,
            )
            if self.group.is_first:
                summaries[weights] = problem.task.summarise(figures)
        return summaries
