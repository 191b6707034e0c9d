"""Settings of the optimiser and of its learning-rate schedule."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag, model_validator

from noether.common.errors import SettingError
from noether.config.section import Interval, Section, chosen_by_kind, dotted_path_or


class _Optimizer(Section):
    learning_rate: float = Field(1e-3, gt=0, description="Peak learning rate.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay (SGD: L2), as torch defines it.")
    decay_all: bool = Field(False, description="Apply weight decay to biases and norms too, not only to matrices.")


class AdamWConfig(_Optimizer):
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101), in torch's fused version if the device has one."""

    kind: Literal["adamw"] = "adamw"
    betas: tuple[float, float] = Field((0.9, 0.999), description="Decay rates of the first and second moment.")
    eps: float = Field(1e-8, gt=0, description="Added to the square root of the second moment.")


class SGDConfig(_Optimizer):
    """Stochastic gradient descent with optional momentum."""

    kind: Literal["sgd"] = "sgd"
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum.")
    nesterov: bool = Field(False, description="Use Nesterov's form of momentum.")

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> "SGDConfig":
        if self.nesterov and not self.momentum:
            raise SettingError("nesterov-without-momentum", "nesterov", " needs momentum above 0", value="true")
        return self


class LionConfig(_Optimizer):
    """Lion (Chen et al., arXiv 2302.06675): updates by the sign of an interpolated momentum."""

    kind: Literal["lion"] = "lion"
    learning_rate: float = Field(1e-4, gt=0, description="Peak learning rate; about a tenth of AdamW's.")
    betas: tuple[float, float] = Field((0.9, 0.99), description="Interpolation factors of step and momentum.")


class MuonConfig(_Optimizer):
    """Muon (Jordan 2024) for matrices and AdamW for all else, with one learning rate (Liu et al., arXiv 2502.16982).

    Muon makes the momentum of a matrix orthogonal (all singular values about one), and steps in that direction.
    """

    kind: Literal["muon"] = "muon"
    momentum: float = Field(0.95, ge=0, lt=1, description="Momentum of matrices, in Nesterov's form.")
    steps: int = Field(5, ge=1, lt=100, description="Newton-Schulz steps that make a matrix orthogonal.")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's decay rates of the first and second moment.")
    eps: float = Field(1e-8, gt=0, description="AdamW's addition to the square root of the second moment.")


OPTIMIZERS = ("adamw", "sgd", "lion", "muon")


class CustomOptimizerConfig(_Optimizer):
    """Any other optimiser: `kind` is the dotted path of its class (torch.optim.NAdam), and other keys are its options.

    The class receives `learning_rate` as `lr`, and the weight decay in the parameter groups.
    """

    model_config = ConfigDict(extra="allow")
    kind: Annotated[str, dotted_path_or(*OPTIMIZERS)]

    def options(self) -> dict[str, Any]:
        """Return the user's own options, which are keyword arguments for the optimiser's constructor."""
        return dict(self.model_extra or {})


OptimizerConfig = Annotated[
    Annotated[AdamWConfig, Tag("adamw")]
    | Annotated[SGDConfig, Tag("sgd")]
    | Annotated[LionConfig, Tag("lion")]
    | Annotated[MuonConfig, Tag("muon")]
    | Annotated[CustomOptimizerConfig, Tag("custom")],
    chosen_by_kind(*OPTIMIZERS),
]


class _Warmed(Section):
    warmup: Interval | None = Field(None, description="Linear warm-up: '100 updates', '1 epoch' or '5 %'.")


class ConstantConfig(_Warmed):
    """A constant learning rate after an optional linear warm-up."""

    kind: Literal["constant"] = "constant"


class CosineConfig(_Warmed):
    """Linear warm-up, then half a cosine period down to `final_learning_rate`."""

    kind: Literal["cosine"] = "cosine"
    final_learning_rate: float = Field(0.0, ge=0, description="Learning rate at the last update.")


class StepConfig(_Warmed):
    """A learning rate that is multiplied by `factor` after every interval `every`."""

    kind: Literal["step"] = "step"
    every: Interval = Field(Interval(25, "%"), description="Length of a step.")
    factor: float = Field(0.1, gt=0, le=1, description="Factor by which the learning rate is multiplied.")


class OneCycleConfig(Section):
    """One cycle (Smith, arXiv 1708.07120): up to the peak and down, each along a cosine, as in torch's OneCycleLR."""

    kind: Literal["one_cycle"] = "one_cycle"
    rise: Interval = Field(Interval(30, "%"), description="Length of the rise to the peak.")
    initial_division: float = Field(25.0, gt=1, description="Peak divided by the first learning rate.")
    final_division: float = Field(1e4, gt=1, description="First learning rate divided by the last.")


SCHEDULES = ("constant", "cosine", "step", "one_cycle")


class CustomScheduleConfig(_Warmed):
    """A schedule of torch, torch.optim.lr_scheduler.OneCycleLR, or your own function `curve(peak, updates, **options)`.

    `kind` is the dotted path; all other keys are options. A schedule of torch is stepped after each update, and gets
    max_lr, total_steps, T_max and mode from the run unless they are set. ReduceLROnPlateau is stepped after each
    evaluation, with the metric trainer.select_by. Your own function gets the peak learning rate and the number of
    updates of the whole run. It returns a function from an update's index (from 0) to its learning rate, which must
    depend on nothing else, so that a resumed run continues the same curve.
    """

    model_config = ConfigDict(extra="allow")
    kind: Annotated[str, dotted_path_or(*SCHEDULES, others="torch.optim.lr_scheduler")]

    def options(self) -> dict[str, Any]:
        """Return the user's own options, which are keyword arguments for the schedule's class or function."""
        return dict(self.model_extra or {})


ScheduleConfig = Annotated[
    Annotated[ConstantConfig, Tag("constant")]
    | Annotated[CosineConfig, Tag("cosine")]
    | Annotated[StepConfig, Tag("step")]
    | Annotated[OneCycleConfig, Tag("one_cycle")]
    | Annotated[CustomScheduleConfig, Tag("custom")],
    chosen_by_kind(*SCHEDULES),
]
