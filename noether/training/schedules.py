"""The learning rate of each update."""

from collections.abc import Callable
from math import cos, isfinite, pi

from noether.common.errors import RequestError
from noether.config.optimizer import CosineConfig, CustomScheduleConfig, OneCycleConfig, ScheduleConfig, StepConfig
from noether.core.components import Component
from noether.training.run_length import RunLength

Schedule = Callable[[int], float]
"""update (0-based) → learning rate."""


def build_schedule(config: ScheduleConfig, peak: float, length: RunLength) -> Schedule:
    """Returns the learning rate as a pure function of the update, so that a resumed run needs no state.

    Every schedule is in updates of the whole run, whatever the world size.

    Raises:
        RequestError: the user's own function returns no schedule.
    """
    last = max(length.total_updates - 1, 1)
    if isinstance(config, OneCycleConfig):
        return _one_cycle(config, peak, length.count_updates(config.rise), last)
    warmup = length.count_updates(config.warmup) if config.warmup is not None else 0
    if isinstance(config, CosineConfig):
        final = config.final_learning_rate
        after = _cosine(peak, final, warmup, max(last, warmup + 1))
    elif isinstance(config, CustomScheduleConfig):
        after = _own(config, peak, length.total_updates)
    elif isinstance(config, StepConfig):
        every, factor = max(length.count_updates(config.every), 1), config.factor

        def after(update: int) -> float:
            return peak * factor ** (update // every)
    else:

        def after(update: int) -> float:
            return peak

    # The first update already moves (1/warmup of the peak), and update `warmup` is the first at the peak.
    return lambda update: peak * (update + 1) / (warmup + 1) if update < warmup else after(update)


def _own(config: CustomScheduleConfig, peak: float, updates: int) -> Schedule:
    """Builds the user's own schedule, and asks it for every learning rate of the run before the first update."""
    given = {"peak": peak, "updates": updates}
    curve = Component("schedule", config.kind, config.options(), given=given).build()
    seen = f"{curve!r}, which cannot be called" if not callable(curve) else ""
    for update in range(0 if seen else updates):
        rate = curve(update)
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not isfinite(rate) or rate < 0:
            seen = f"{rate!r} for update {update}"
            break
    if seen:
        raise RequestError(
            "schedule-unusable",
            f"{config.kind} returns no schedule",
            seen=seen,
            expected="a function from an update (the first is 0) to its learning rate, a number of at least 0",
            fix="schedule=cosine      (or change that function)",
        )
    return lambda update: float(curve(update))


def _cosine(start: float, end: float, first: int, last: int) -> Schedule:
    """Half a cosine from `start` at update `first` to `end` at update `last`."""

    def rate(update: int) -> float:
        done = min(max(update - first, 0) / (last - first), 1.0)
        return end + (start - end) * 0.5 * (1 + cos(pi * done))

    return rate


def _one_cycle(config: OneCycleConfig, peak: float, rise: int, last: int) -> Schedule:
    initial = peak / config.initial_division
    rise = min(max(rise, 1), max(last - 1, 1))
    up = _cosine(initial, peak, 0, rise)
    down = _cosine(peak, initial / config.final_division, rise, max(last, rise + 1))
    return lambda update: up(update) if update <= rise else down(update)
