"""Settings of the training loop, and of the trackers that receive its metrics."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from noether.common.errors import RequestError, SettingError
from noether.common.suggest import nearest
from noether.config.section import Interval, Section

LENGTHS = ("max_epochs", "max_updates", "max_samples")


class TrainerConfig(Section):
    """The training loop: the batch, the length of the run, the precision, and how often to log, evaluate and save."""

    effective_batch_size: int = Field(8, gt=0, description="Samples per update over all ranks.")
    max_batch_size: int | Literal["auto"] | None = Field(
        None, description="Limit of samples on a device at once; larger batches are accumulated. auto: as many as fit."
    )
    across_ranks: Literal["gather", "per_rank"] | None = Field(
        None,
        description="How a loss or BatchNorm that compares samples treats several ranks or micro-batches. gather: one "
        "loss over all ranks' samples; per_rank: one loss per micro-batch; null: such a run is refused.",
    )
    max_epochs: int | None = Field(None, gt=0, description="Length of the run in epochs.")
    max_updates: int | None = Field(None, gt=0, description="Length of the run in updates.")
    max_samples: int | None = Field(None, gt=0, description="Length of the run in samples.")
    precision: Literal["float32", "float64", "bf16", "fp16"] = Field(
        "float32", description="bf16 and fp16 use autocast with float32 weights; float64 is for numerical checks."
    )
    tf32: bool = Field(
        True,
        description="On GPUs, compute matrix products of float32 in TF32, which rounds the factors to 10 bits and is "
        "several times as fast; false: compute them in float32.",
    )
    clip_gradient_norm: float | None = Field(
        1.0, gt=0, description="Gradient norm above which gradients are scaled down; null: no clipping."
    )
    clip_gradient_value: float | None = Field(
        None,
        gt=0,
        description="Clip each gradient entry to ± this value, if clip_gradient_norm is null; null: no clipping.",
    )
    ema_decay: float | None = Field(
        None, gt=0, lt=1, description="Decay of the exponential moving average of the weights (EMA); null: no EMA."
    )
    compile: bool = Field(False, description="Compile the model with torch.compile.")
    recompute: bool = Field(
        False,
        description="Keep only each block's input and recompute the rest in the backward pass: less memory, more time.",
    )
    deterministic: bool = Field(False, description="Raise an error for operations without a deterministic version.")
    log_every: Interval = Field(Interval(10, "updates"), description="How often the loss is reported.")
    evaluate_every: Interval | None = Field(
        Interval(1, "epochs"), description="How often the validation split is evaluated; null: only at the end."
    )
    checkpoint_every: Interval | None = Field(
        Interval(1, "epochs"), description="How often a checkpoint is written; null: only at the end."
    )
    select_by: str = Field(
        "loss",
        min_length=1,
        description="Metric of the validation split that selects the best checkpoint, such as accuracy or "
        "surface_pressure/relative_l2. If its direction is unknown, lower is better; a minus before it: higher.",
    )
    stop_after: int | None = Field(
        None,
        gt=0,
        description="End the run after this many evaluations in a row that do not improve select_by; null: never.",
    )
    callbacks: tuple[str, ...] = Field(
        (),
        description="Dotted paths of your own classes, derived from noether.training.callbacks.Callback, which the run "
        "calls after updates and evaluations.",
    )
    keep_checkpoints: int = Field(2, ge=1, description="How many of the newest checkpoints to keep, besides the best.")
    evaluation_batch_size: int | None = Field(
        None, gt=0, description="Samples that a device evaluates at once; null: as many as it trains on."
    )
    evaluation_chunk_size: int | None = Field(
        None,
        gt=0,
        description="Points of a sample predicted at once in evaluation: limits memory without changing results; null: "
        "all.",
    )
    timeout_min: float | None = Field(
        None,
        gt=0,
        description="Save everything and stop before this many minutes have passed; null: before the job's time limit, "
        "if the scheduler reports it.",
    )
    freeze: tuple[str, ...] = Field(
        (), description="Names of parameters not to train; * matches anything: [pooling.*,encoder.*]."
    )
    nan_policy: Literal["stop", "skip"] = Field(
        "stop", description="What to do if a gradient is not finite: stop the run, or skip the update."
    )
    max_skipped_updates: int = Field(10, gt=0, description="How many updates in a row may be skipped.")

    profile: Interval | None = Field(
        None,
        description="Write a trace for Perfetto of this many updates of each rank, from the third on; null: no trace.",
    )

    @model_validator(mode="after")
    def _one_length(self) -> "TrainerConfig":
        given = [f"trainer.{name}={value}" for name in LENGTHS if (value := getattr(self, name)) is not None]
        if len(given) != 1:
            raise RequestError("run-length",
                               f"the length of the run is set {len(given)} times" if given else "the run has no length",
                               seen=" and ".join(given) or f"none of {', '.join(LENGTHS)}",
                               expected=f"exactly one of {', '.join(LENGTHS)}",
                               fix=given[0] if given else "trainer.max_epochs=60")  # fmt: skip
        for name in ("log_every", "evaluate_every", "checkpoint_every", "profile"):
            interval = getattr(self, name)
            if interval is not None and interval.unit == "%":
                raise SettingError(
                    "percentage-not-allowed", name, " cannot be a percentage of the run", value=interval,
                    expected="a number of updates, epochs or samples",
                    fix=f"'trainer.{name}={Interval(max(1, round(interval.count)), 'epochs')}'",
                )  # fmt: skip
        return self

    @model_validator(mode="after")
    def _clipped_once(self) -> "TrainerConfig":
        norm, value = (f"trainer.clip_gradient_{of}" for of in ("norm", "value"))
        if self.clip_gradient_norm is not None and self.clip_gradient_value is not None:
            raise RequestError("clipped-twice", "gradients can be clipped by norm or by value, not both",
                               seen=f"{norm}={self.clip_gradient_norm} and {value}={self.clip_gradient_value}",
                               expected="only one of the two; clipping by norm is the default, null turns it off",
                               fix=f"{norm}=null {value}={self.clip_gradient_value}")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _positive_batch(self) -> "TrainerConfig":
        if isinstance(self.max_batch_size, int) and self.max_batch_size < 1:
            raise SettingError("batch-size-below-one", "max_batch_size", ": must be at least 1, auto or null",
                               value=self.max_batch_size)  # fmt: skip
        return self


SERVICES = ("wandb", "mlflow")
"""The services that noether supports; their classes are in `noether/runs/tracking/services.py`."""


class TrackerConfig(Section):
    """The outputs that receive a run's metrics, in addition to the console and metrics.jsonl."""

    tensorboard: bool = Field(True, description="Write event files to tensorboard/ in the run folder.")
    services: tuple[str, ...] = Field(
        (), description="Additional trackers: any of wandb, mlflow, and dotted paths of your own classes."
    )
    report: bool = Field(True, description="Write report.html at the end of the run.")

    @field_validator("services")
    @classmethod
    def _services_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in SERVICES and "." not in name:
                near = nearest(name, SERVICES)
                meant = f"; did you mean {near}?" if near else ""
                problem = f"there is no tracker {name}: {', '.join(SERVICES)}, or a dotted path{meant}"
                raise SettingError("unknown-tracker", "", problem)
        return names
