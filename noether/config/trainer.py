"""Settings of the training loop: batches, length, precision, intervals."""

from typing import Literal

from pydantic import Field, model_validator

from noether.config.interval import Interval
from noether.config.section import Section
from noether.errors import RequestError

LENGTHS = ("max_epochs", "max_updates", "max_samples")


class TrainerConfig(Section):
    """How the training loop runs: batches, length, precision, and what happens how often."""

    effective_batch_size: int = Field(8, gt=0, description="Samples per update, over all ranks together.")
    max_batch_size: int | Literal["auto"] | None = Field(
        None,
        description="Most samples a device holds at once; more are accumulated. auto: the most that fits.",
    )
    max_epochs: int | None = Field(None, gt=0, description="Length of the run in epochs.")
    max_updates: int | None = Field(None, gt=0, description="Length of the run in updates.")
    max_samples: int | None = Field(None, gt=0, description="Length of the run in samples.")
    precision: Literal["float32", "float64", "bf16", "fp16"] = Field(
        "float32", description="bf16 and fp16 are autocast over float32 weights; float64 is for proofs."
    )
    clip_gradient_norm: float | None = Field(1.0, gt=0, description="Largest gradient norm; null: no clipping.")
    ema_decay: float | None = Field(None, gt=0, lt=1, description="Decay of the averaged weights; null: none.")
    compile: bool = Field(False, description="Compile the model with torch.compile.")
    recompute: bool = Field(
        False,
        description="Keep only a block's input and make its activations again backwards: less memory, more time.",
    )
    deterministic: bool = Field(False, description="Refuse operations that have no deterministic version.")
    log_every: Interval = Field(Interval(10, "updates"), description="How often the loss is reported.")
    evaluate_every: Interval | None = Field(
        Interval(1, "epochs"),
        description="How often the validation split is evaluated; null: at the end only.",
    )
    checkpoint_every: Interval | None = Field(
        Interval(1, "epochs"), description="How often a checkpoint is written; null: at the end only."
    )
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints kept; the best is kept besides.")
    evaluation_batch_size: int | None = Field(
        None, gt=0, description="Samples a device evaluates at once; null: as many as it trains on."
    )
    evaluation_chunk_size: int | None = Field(
        None,
        gt=0,
        description="Points of a sample predicted at once in evaluation: bounds memory, changes nothing; null: all.",
    )
    timeout_min: float | None = Field(
        None,
        gt=0,
        description="Stop with everything saved before so many minutes have passed; null: before the job's own limit, "
        "where the scheduler tells it.",
    )
    freeze: tuple[str, ...] = Field(
        (), description="Names of parameters that are not trained, with * for anything: [pooling.*,encoder.*]."
    )
    nan_policy: Literal["stop", "skip"] = Field(
        "stop", description="At a gradient that is not finite: stop the run, or skip the update."
    )
    max_skipped_updates: int = Field(10, gt=0, description="Updates skipped in a row before the run stops.")

    profile: Interval | None = Field(
        None,
        description="Write a trace of so many updates of each rank, from the third on, for Perfetto; null: none.",
    )

    @model_validator(mode="after")
    def _one_length(self) -> "TrainerConfig":
        given = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(given) != 1:
            seen = " and ".join(f"trainer.{name}={getattr(self, name)}" for name in given)
            raise RequestError(
                f"the length of the run is set {len(given)} times" if given else "the run has no length",
                seen=seen or f"none of {', '.join(LENGTHS)}",
                expected=f"exactly one of {', '.join(LENGTHS)}",
                fix=seen.split(" and ")[0] if given else "trainer.max_epochs=60",
            )
        for name in ("log_every", "evaluate_every", "checkpoint_every", "profile"):
            interval = getattr(self, name)
            if interval is not None and interval.unit == "%":
                raise RequestError(
                    f"trainer.{name} cannot be a share of the run",
                    seen=f"trainer.{name}={interval}",
                    expected="a number of updates, epochs or samples",
                    fix=f"'trainer.{name}={Interval(max(1, round(interval.count)), 'epochs')}'",
                )
        return self

    @model_validator(mode="after")
    def _positive_batch(self) -> "TrainerConfig":
        if isinstance(self.max_batch_size, int) and self.max_batch_size < 1:
            raise ValueError(f"max_batch_size={self.max_batch_size}: must be at least 1, auto or null")
        return self
