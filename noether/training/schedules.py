"""The learning rate of each update."""

from collections.abc import Callable
from math import cos, pi

from noether.config.optimizer import ConstantConfig, CosineConfig, OneCycleConfig, StepConfig
from noether.planning.batches import RunLength

Schedule = Callable[[int], float]
"""update (0-based) → learning rate."""


def build_schedule(
    config: ConstantConfig | CosineConfig | StepConfig | OneCycleConfig, peak: float, length: RunLength
) -> Schedule:
    """Returns the learning rate as a pure function of the update, so that a resumed run needs no state.

    Every schedule is in updates of the whole run, whatever the world size.
    """

    last = max(length.total_updates - 1, 1)
    if isinstance(config, OneCycleConfig):
        return _one_cycle(config, peak, length.count_updates(config.rise), last)
    warmup = length.count_updates(config.warmup) if config.warmup is not None else 0
    if isinstance(config, CosineConfig):
        final = config.final_learning_rate
        after = _cosine(peak, final, warmup, max(last, warmup + 1))
    elif isinstance(config, StepConfig):
        every, factor = max(length.count_updates(config.every), 1), config.factor

        def after(update: int) -> float:
            return peak * factor ** (update // every)
    else:

        def after(update: int) -> float:
            return peak

    # The first update already moves (1/warmup of the peak), and update `warmup` is the first at the peak.
    return lambda update: peak * (update + 1) / (warmup + 1) if update < warmup else after(update)


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
