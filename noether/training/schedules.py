"""The learning rate of each update: by a schedule of noether, the user's own function, or a schedule of torch."""

import inspect
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from noether.common.dotted_path import load_object
from noether.common.errors import RequestError
from noether.common.numbers import finite
from noether.config.optimizer import CosineConfig, CustomScheduleConfig, OneCycleConfig, ScheduleConfig, StepConfig
from noether.core.components import Component
from noether.launch.process_group.torch_internals import LightSGD
from noether.training.run_length import RunLength

Curve = Callable[[int], float]
"""A function from an update (the first is 0) to its learning rate."""
MOMENTUM = 0.9
"""The trial optimiser's momentum for a schedule of torch. If the schedule changes this value, it cycles momentum."""


@dataclass
class Schedule:
    """The learning rate of each update, a pure function of the update's index (from 0); so a resume needs no state.

    momenta: the momentum of each update, if a schedule of torch cycles the momentum.
    plateau: torch's ReduceLROnPlateau, which lowers the rate after evaluations.
    """

    curve: Curve
    momenta: Sequence[float] = ()
    plateau: ReduceLROnPlateau | None = None

    def __call__(self, update: int) -> float:
        """Return the learning rate of an update."""
        return self.curve(update)

    def set_momentum(self, optimizer: Optimizer, update: int) -> None:
        """Set an update's momentum (AdamW: betas[0]) if the schedule cycles it. RequestError: no momentum to set."""
        for group in optimizer.param_groups if self.momenta else ():
            if "betas" in group:
                group["betas"] = (self.momenta[update], *group["betas"][1:])
            elif "momentum" in group:
                group["momentum"] = self.momenta[update]
            else:
                seen, expected = type(optimizer).__name__, "an optimiser with momentum or betas"
                raise _unusable("a cycle of momentum", seen, expected, "schedule.cycle_momentum=false")

    def evaluated(self, *metrics: float) -> None:
        """Pass the selection metrics of evaluations, in order, to ReduceLROnPlateau if it is used."""
        if self.plateau is not None:
            for metric in metrics:
                self.plateau.step(metric)


def build_schedule(config: ScheduleConfig, peak: float, length: RunLength, better: str = "lower") -> Schedule:
    """Return the learning rate of each update of the whole run, which does not depend on the world size.

    `better`: whether a "lower" or "higher" selection metric is better. RequestError: the user's own function does not
    return a schedule, or torch's class does not accept the options.
    """
    total, schedule = length.total_updates, Schedule(lambda update: peak)
    last = max(total - 1, 1)
    if isinstance(config, OneCycleConfig):
        return Schedule(_one_cycle(config, peak, length.count_updates(config.rise), last))
    warmup = length.count_updates(config.warmup) if config.warmup is not None else 0
    if isinstance(config, CosineConfig):
        schedule.curve = _cosine(peak, config.final_learning_rate, warmup, max(last, warmup + 1))
    elif isinstance(config, CustomScheduleConfig):
        schedule = _of_path(config, peak, total, better)
    elif isinstance(config, StepConfig):
        every, factor = max(length.count_updates(config.every), 1), config.factor
        schedule.curve = lambda update: peak * factor ** (update // every)
    after = schedule.curve
    # The first update has the rate peak / (warmup + 1), above zero, and update `warmup` is the first at the peak.
    schedule.curve = lambda update: peak * (update + 1) / (warmup + 1) if update < warmup else after(update)
    return schedule


def _of_path(config: CustomScheduleConfig, peak: float, updates: int, better: str) -> Schedule:
    """Compute every learning rate before the first update, by the user's own function or torch's schedule."""
    rates, momenta = array("d"), array("d")
    scheduler = find_schedule(config, peak, updates, better)
    if isinstance(scheduler, Component):
        curve = scheduler.build()
    else:
        group = scheduler.optimizer.param_groups[0]
        if isinstance(scheduler, ReduceLROnPlateau):
            return Schedule(lambda update: float(group["lr"]), plateau=scheduler)

        def curve(update: int) -> float:
            try:
                if update:
                    scheduler.step()
            except ValueError as error:
                raise _unusable(config.kind, f"update {update} of {updates}: {error}", "a rate for each one") from None
            momenta.append(group["momentum"])
            return float(group["lr"])

    expected = "a function from an update (the first is 0) to its learning rate, a number of at least 0"
    if not callable(curve):
        raise _unusable(config.kind, f"{curve!r}, which cannot be called", expected)
    for update in range(updates):
        rate = curve(update)
        if finite(rate) is None or rate < 0:
            raise _unusable(config.kind, f"{rate!r} for update {update}", expected)
        rates.append(rate)
    return Schedule(rates.__getitem__, momenta if set(momenta) - {MOMENTUM} else ())


def find_schedule(
    config: CustomScheduleConfig, peak: float, updates: int, better: str = "lower"
) -> LRScheduler | Component:
    """Return the schedule that `schedule.kind` names: torch's, with a trial optimiser, or the user's as a component.

    Missing options that the run knows are filled in: the peak, the number of updates, and the direction of the
    selection metric. RequestError: the class or function does not accept the options.
    """
    kind: Any = load_object(config.kind, "schedule.kind")
    options = config.options()
    if not (inspect.isclass(kind) and issubclass(kind, LRScheduler)):
        own = Component("schedule", config.kind, options, given={"peak": peak, "updates": updates})
        own.find()
        return own
    takes = inspect.signature(kind).parameters
    if objects := [name for name in ("lr_lambda", "schedulers") if name in takes]:
        fix = "schedule.kind=my_package.curve      (a function of yours: noether help schedule)"
        raise _unusable(config.kind, f"its {objects[0]}, an object", "options that are numbers or texts", fix)
    known: dict[str, Any] = {"max_lr": peak, "T_max": updates}
    known |= {} if "epochs" in options else {"total_steps": updates}
    known |= {"mode": "max" if better == "higher" else "min"} if issubclass(kind, ReduceLROnPlateau) else {}
    optimizer = LightSGD([torch.zeros(1, requires_grad=True)], lr=peak, momentum=MOMENTUM)
    offered = {name: value for name, value in known.items() if name not in options}
    given = {"optimizer": optimizer}
    component = Component("schedule", config.kind, options, base=LRScheduler, given=given, offered=offered)
    try:
        scheduler: LRScheduler = component.build()
    except (ValueError, TypeError, KeyError) as error:
        raise _unusable(config.kind, str(error), "options that the schedule accepts") from None
    optimizer.step()  # Torch warns if a schedule steps before its optimiser.
    return scheduler


def _unusable(kind: str, seen: str, expected: str, fix: str = "") -> RequestError:
    return RequestError("schedule-unusable", f"no run can use {kind} as its schedule", seen=seen, expected=expected,
                        fix=fix or "schedule=cosine      (or change its options, or your function)")  # fmt: skip


def _cosine(start: float, end: float, first: int, last: int) -> Curve:
    """Return half a cosine from `start` at update `first` to `end` at update `last`."""
    return lambda update: end + (start - end) * 0.5 * (1 + cos(pi * min(max(update - first, 0) / (last - first), 1.0)))


def _one_cycle(config: OneCycleConfig, peak: float, rise: int, last: int) -> Curve:
    initial = peak / config.initial_division
    rise = min(max(rise, 1), max(last - 1, 1))
    up = _cosine(initial, peak, 0, rise)
    down = _cosine(peak, initial / config.final_division, rise, max(last, rise + 1))
    return lambda update: up(update) if update <= rise else down(update)
