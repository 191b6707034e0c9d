"""Build everything that a run needs for training: problem, training state, batches, schedule and precision."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from noether.checkpoints.format import CheckpointFolder
from noether.checkpoints.initial import begin_with
from noether.checkpoints.named import named_weights
from noether.checkpoints.resume import data_changes
from noether.checkpoints.state import EmaWeights, Progress, TrainingState, load_checkpoint, model_tensors
from noether.common.errors import EndedByAnother, RequestError
from noether.common.numbers import counted, first_of
from noether.common.safe_open import StampedFile
from noether.common.suggest import nearest
from noether.config.schema import RunConfig
from noether.config.trainer import LENGTHS
from noether.core.data.loader import seed_everything, training_order
from noether.core.data.order import GlobalOrder
from noether.core.evaluate import Evaluator
from noether.core.first_sample import check_parts, check_stream, find_comparison, try_model
from noether.core.models.build import count_parameters, recompute_blocks
from noether.core.precision import Precision, choose_precision
from noether.core.problem import Problem, build_problem
from noether.launch.batches import BatchPlan
from noether.launch.process_group.group import Group
from noether.runs.metrics import Metric, Metrics, described_by
from noether.runs.records import mapping
from noether.training.optimizers import build_optimizer
from noether.training.own_update import OwnUpdater, check_own_update, parts_of
from noether.training.rehearsal import largest_micro_batch
from noether.training.run_length import RunLength, plan_length
from noether.training.schedules import Schedule, build_schedule
from noether.training.update import Updater


def conditions_of(device: torch.device) -> dict[str, Any]:
    """Return a rank's thread count, its processor, the instruction set that torch uses there, and its device."""
    processor = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "threads": torch.get_num_threads(),
        "processor": processor,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def differences_of_resume(meta: Mapping[str, Any], now: Mapping[str, Any], model: nn.Module) -> list[str]:
    """Compare a checkpoint's `meta` with `now`; return how the resumed run will differ from an uninterrupted one."""
    said = []
    if changed := [name for name in ("world_size", "micro_batch_size") if meta[name] != now[name]]:
        ranks = changed[0] == "world_size"
        before, here = meta[changed[0]], now[changed[0]]
        what = f"{before} ranks" if ranks else f"micro-batches of {before}"
        said.append(f"{what} before, {here} now: the order of samples continues, and sums are rounded in another order")
        # BatchNorm uses the statistics of its rank's micro-batch; dropout draws new numbers for each micro-batch.
        modules = list(model.modules())
        normed = any(isinstance(module, _BatchNorm) for module in modules)
        dropped = any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules)
        apart = mapping(mapping(now, "config"), "trainer").get("across_ranks") == "per_rank"
        if layers := ["BatchNorm"] * normed + ["dropout"] * dropped + ["a loss of each micro-batch"] * apart:
            said.append(
                f"the run has {' and '.join(layers)}: with another {'number of ranks' if ranks else 'micro-batch'} "
                "its weights differ by more than rounding"
            )
    before, here = _known(meta), _known(now)
    # Do not report a value that either side lacks, such as the driver's version.
    differing = (name for name in here if before.get(name, here[name]) != here[name])
    if others := [f"{name} {before[name]} → {here[name]}" for name in differing]:
        said.append(f"{', '.join(others)}: results may be rounded differently from here on")
    sources = mapping(meta, "sources")
    if others := [name for name, digest in now["sources"].items() if sources.get(name, digest) != digest]:
        said.append(f"the source code of {first_of(others, 5)} has changed: results may differ from here on")
    tensors = model_tensors(model)
    if others := [name for name in model.state_dict() if name not in tensors]:
        said.append(f"{', '.join(others)} of the model's state_dict: not a tensor, so no checkpoint stores it")
    return said


def _known(meta: Mapping[str, Any]) -> dict[str, Any]:
    made = mapping(meta, "provenance")
    known = dict(mapping(meta, "conditions"))
    known |= {name: mapping(made, "packages").get(name) for name in ("torch", "numpy", "scipy")}
    known |= {name: made.get(name) for name in ("noether", "driver", "nccl")}
    return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True)
class Run:
    """A run that is fully built on one rank, ready to start.

    initial_weights_notes: texts on the weights taken from another run. stream: the text that `check_stream` returned.
    """

    config: RunConfig
    group: Group
    problem: Problem
    state: TrainingState
    batch: BatchPlan
    order: GlobalOrder
    length: RunLength
    schedule: Schedule
    precision: Precision
    initial_weights_notes: tuple[str, ...]
    stream: str

    def evaluator(self, at_boundary: Callable[[], None] = lambda: None) -> Evaluator:
        """Return the evaluator of this run's weights; it calls `at_boundary` before each batch."""
        parts, micro = (self.config, self.problem, self.group, self.precision), self.batch.micro
        return Evaluator(*parts, usual_batch_size=micro, at_boundary=at_boundary)

    def updater(self) -> Updater:
        """Return the updater of this run."""
        kind = OwnUpdater if self.problem.task.updates_itself else Updater
        return kind(self.state, self.group, self.config.trainer, self.precision, self.batch.accumulation_steps)

    def is_over(self) -> bool:
        """Return whether all updates are made and evaluated, or trainer.stop_after or a callback has ended the run."""
        progress, patience = self.state.progress, self.config.trainer.stop_after
        gave_up = patience is not None and progress.evaluations_without_improvement >= patience
        made = progress.updates == self.length.total_updates
        return not progress.evaluation_pending and (made or gave_up or progress.ended)

    @property
    def described(self) -> Metrics:
        """The descriptions of the metrics that the run logs."""
        return described_by(self.problem.task.describe_metrics(), self.config.trainer.select_by)

    @property
    def selected_by(self) -> Metric:
        """The metric by which checkpoints are selected."""
        return self.described.selected_by(self.config.trainer.select_by)

    def describe(self) -> dict[str, Any]:
        """Return the entries that plan.json contains in addition to the parent process's plan."""
        problem, length = self.problem, self.length
        splits = {"training": problem.train_indices, "validation": problem.validation_indices}
        samples = {name: len(indices) for name, indices in splits.items()} | {"test": len(problem.splits.test)}
        return {
            "batch": asdict(self.batch),
            "length": {name: getattr(length, name) for name in ("updates_per_epoch", "total_updates", "epochs")},
            "data": {**samples, "stream": self.stream},
            "model": {"kind": type(self.state.model).__name__, "parameters": count_parameters(self.state.model)},
            "described": self.described.records(),
            "report_parts": list(problem.task.report_parts),
        }

    def summary(self, about: Mapping[str, Any]) -> str:
        """Describe data, model and length in three lines of text; `about`: the return value of `describe`."""
        data, model, length = about["data"], about["model"], about["length"]
        total, each, stream = length["total_updates"], length["updates_per_epoch"], [f"stream {self.stream}"]
        epochs = f"{length['epochs']:.4g}" if length["epochs"] < 1000 else f"{length['epochs']:,.0f}"
        return (
            f"data   {data['training']} training, {data['validation']} validation, {data['test']} test samples\n"
            f"model  {model['kind']}, {model['parameters']:,} parameters, {self.precision.name}\n"
            f"length {counted(total, 'update')} = {epochs} epoch{'s' * (epochs != '1')} of {counted(each, 'update')}"
            + "".join(f"\n{note}" for note in (*stream * bool(self.stream), *self.initial_weights_notes))
        )


def build_run(
    config: RunConfig,
    data: Path | None,
    group: Group,
    batch: BatchPlan,
    *,
    resuming: bool = False,
    verified: StampedFile | None = None,
) -> Run:
    """Build everything that a run needs for training, in the state before the first update. Every rank calls this.

    batch: the planned batch; trainer.max_batch_size=auto is resolved here. resuming: the run will load a checkpoint, so
    its initial weights need not exist. verified: the file of the initial weights, if the parent process verified it.
    """
    trainer = config.trainer
    precision = choose_precision(trainer, group.device)
    if trainer.deterministic:
        torch.use_deterministic_algorithms(True)
    problem = build_problem(config, data, group.device, precision)
    stream = check_stream(problem, group)
    order = training_order(problem.splits.train, problem.train_indices, trainer.effective_batch_size, config.seed)
    length = plan_length(order, trainer)
    if group.is_first:
        problem.fit()
    problem.task.load_state(group.from_first(problem.task.state()))
    group.copy_from_first(problem.model.buffers())  # buffers that the model has fitted
    asked = None if resuming else config.initial_weights
    known = verified if verified and verified.is_unchanged() else None
    weights = None if asked is None else group.once_per_host(lambda: known or named_weights(asked))
    notes = begin_with(problem.model, weights, trainer.freeze)
    if trainer.recompute:
        recompute_blocks(problem.model)
    check_own_update(type(problem.task), trainer, batch.accumulation_steps)
    parts = parts_of(problem.task, problem.model)
    compared = find_comparison(problem, group, precision)
    try_model(problem, group.device, precision)
    ema = EmaWeights(problem.model, trainer.ema_decay) if trainer.ema_decay else None
    optimizer = build_optimizer(config.optimizer, problem.model, parts)
    state = TrainingState(problem.model, ema, optimizer, precision.scaler(), problem.task, Progress())
    if trainer.max_batch_size == "auto":
        batch = batch.with_room_for(largest_micro_batch(problem, precision, group, batch.per_rank))
    check_parts(problem, trainer.across_ranks, batch, compared)
    selected_by = described_by(problem.task.describe_metrics(), trainer.select_by).selected_by(trainer.select_by)
    schedule = build_schedule(config.schedule, config.optimizer.learning_rate, length, selected_by.better)
    schedule.set_momentum(optimizer, 0)
    # From here on, each rank draws its own random numbers, for dropout; above, all ranks drew the same weights.
    seed_everything(config.seed, group.rank, 0)
    return Run(config, group, problem, state, batch, order, length, schedule, precision, tuple(notes), stream)


def restore(run: Run, checkpoint: CheckpointFolder, host: str, warn: Callable[[str], None]) -> None:
    """Load the checkpoint from which a run resumes into the run's state. Every rank calls this.

    RequestError: the checkpoint is damaged, missing on this `host`, from other data, or past the requested length.
    """

    def verified_here() -> CheckpointFolder:
        if not checkpoint.path.is_dir():
            fix = "output_path=FOLDER      (on a file system that all hosts share, or a copy of the run on each)"
            raise RequestError("resume-checkpoint-not-here", "the checkpoint from which rank 0 resumes is not on this "
                               "host", seen=f"no {checkpoint.path} on {host}",
                               expected="the run's folder at the same path on every host", fix=fix)  # fmt: skip
        checkpoint.check()  # Rank 0's host has verified its files already; another host's copy may be damaged.
        return checkpoint

    checkpoint = run.group.once_per_host(verified_here)
    folder = str(checkpoint.path.parent.parent)
    for change in data_changes(checkpoint.meta(), run.problem.data, run.config.accept_changes, folder):
        warn(change)
    load_checkpoint(run.state, run.group, checkpoint, run.config.seed)
    run.schedule.evaluated(*run.state.progress.followed)
    trainer, total_updates, updates = run.config.trainer, run.length.total_updates, run.state.progress.updates
    if updates <= total_updates:
        return
    name = next(name for name in LENGTHS if getattr(trainer, name) is not None)
    asked = f"trainer.{name}={getattr(trainer, name)}"
    raise RequestError("past-requested-length", "the run is already past the requested length",
                       seen=f"{asked}, which is {counted(total_updates, 'update')}, with {updates} done",
                       expected="a length counted from the run's first update",  # not from the checkpoint
                       fix=f"trainer.max_updates={updates + total_updates}      "
                       f"(for {total_updates} more)")  # fmt: skip


def selection_metric(run: Run, summary: Mapping[str, float]) -> float:
    """Return the value of the metric that trainer.select_by names. RequestError: there is no such metric."""
    name, asked = run.selected_by.name, run.config.trainer.select_by
    if name not in summary:
        near = nearest(name, summary)
        sign = "" if run.described[near or ""].better else asked.removesuffix(name)  # The minus typed, if any.
        raise RequestError("no-such-metric", f"no metric {name} to select checkpoints by",
                           seen=f"trainer.select_by={asked}", expected=f"one of {', '.join(sorted(summary))}",
                           fix=f"trainer.select_by={sign}{near}" if near else "trainer.select_by=loss")  # fmt: skip
    return summary[name]


def check_selection(run: Run) -> None:
    """Raise RequestError if evaluations cannot select weights: no validation split, no such metric, or a wrong minus.

    Every rank calls this before a state is restored, because the trial evaluation may draw random numbers.
    """
    trainer, validation = run.config.trainer, run.problem.validation_indices
    if trainer.stop_after is not None and not validation:
        raise RequestError("stop-without-validation", "trainer.stop_after needs a validation split",
                           seen=f"trainer.stop_after={trainer.stop_after}, and no sample to validate on",
                           expected="a dataset.validation_fraction that holds out at least one sample",
                           fix="dataset.validation_fraction=0.1      (or trainer.stop_after=null)")  # fmt: skip
    if run.schedule.plateau is not None and (not validation or trainer.evaluate_every is None):
        raise RequestError("plateau-without-evaluations", "this schedule follows evaluations, and there are none",
                           seen=f"evaluate_every={trainer.evaluate_every}, {len(validation)} samples held out",
                           expected="evaluations of a validation split during the run",
                           fix="'trainer.evaluate_every=1 epoch' dataset.validation_fraction=0.1")  # fmt: skip
    if trainer.select_by.startswith("-") and run.selected_by.better == "lower":
        raise RequestError("select-by-direction", "a minus means that higher is better, but here lower is better",
                           seen=f"trainer.select_by={trainer.select_by}", expected=run.selected_by.in_words,
                           fix=f"trainer.select_by={run.selected_by.name}")  # fmt: skip
    if trainer.select_by == "loss" or not validation:
        return
    few = validation[: run.group.world_size]
    sample_metrics = run.evaluator().sample_metrics(run.state.model, run.problem.splits.train, few)
    refusal: RequestError | None = None
    if run.group.is_first:
        try:
            selection_metric(run, run.problem.task.summarise(sample_metrics))
        except RequestError as error:
            refusal = error
    if (refusal := run.group.from_first(refusal)) is not None:
        if not run.group.is_first:
            refusal = EndedByAnother("ended-by-rank-0", f"rank 0 refused the run: {refusal.summary}")
        raise refusal
