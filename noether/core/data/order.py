"""The samples of each update for any world size, and the points that represent a shape in evaluation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np


class SampleKey(NamedTuple):
    """One use of a sample: its index in the training split and the epoch, which determine its random numbers.

    If a data set draws its own samples, some perhaps repeatedly, the position of the use in the run replaces the epoch.
    """

    sample: int
    epoch: int


@dataclass(frozen=True)
class GlobalOrder:
    """The order of all samples of a run, before they are divided among ranks.

    The global batch of an update depends only on (seed, epoch, position), so 1, 2 or 8 ranks, with or
    without accumulation, use the same samples in every update, and a resumed run continues with the next ones.
    """

    samples: int
    effective_batch_size: int
    seed: int
    drawn: Callable[[int], Sequence[int] | np.ndarray] | None = None
    """The function that returns an epoch's samples, if the data set draws its own; None: all samples, shuffled."""

    @property
    def updates_per_epoch(self) -> int:
        """The number of whole batches in an epoch; the samples left over differ from epoch to epoch."""
        return self.samples // self.effective_batch_size

    def global_batch(self, update: int) -> list[SampleKey]:
        """Return the samples of an update (0-based), over all ranks."""
        epoch, position = divmod(update, self.updates_per_epoch)
        start = position * self.effective_batch_size
        own, first = self.drawn, update * self.effective_batch_size
        every = _permutation(self.samples, self.seed, epoch) if own is None else own(epoch)
        indices = every[start : start + self.effective_batch_size]
        return [SampleKey(int(index), epoch if own is None else first + i) for i, index in enumerate(indices)]


@lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(samples)


@dataclass(frozen=True)
class RankOrder:
    """The micro-batches of one rank, in order, from update `start` to update `stop`.

    The ranks' shares are consecutive parts of the global batch; `micro_batch_sizes` sum to one rank's share.
    """

    order: GlobalOrder
    micro_batch_sizes: tuple[int, ...]
    rank: int
    start: int
    stop: int

    def __len__(self) -> int:
        return (self.stop - self.start) * len(self.micro_batch_sizes)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        share = sum(self.micro_batch_sizes)
        for update in range(self.start, self.stop):
            own = self.order.global_batch(update)[self.rank * share : (self.rank + 1) * share]
            first = 0
            for size in self.micro_batch_sizes:
                yield own[first : first + size]
                first += size


def split_validation(samples: int, fraction: float) -> tuple[list[int], list[int]]:
    """Divide the training split into samples to train on and a validation split; return the ascending indices of each.

    The result does not depend on the run's seed: runs that differ only in their seed are validated on the same samples.
    """
    held_out = min(round(samples * fraction), samples - 1)
    shuffled = np.random.default_rng([0, samples]).permutation(samples)
    return sorted(shuffled[held_out:].tolist()), sorted(shuffled[:held_out].tolist())


def share_evaluation(samples: int, world_size: int, size: int, *, together: bool = False) -> list[list[range]]:
    """Return each rank's batches, of at most `size` samples; all ranks' batches contain each sample exactly once.

    With `together=True`, the batches are about equally large, and do not depend on the number of ranks.
    """
    if together:
        count = ceil(samples / size)
        batches = [range(i * samples // count, (i + 1) * samples // count) for i in range(count)]
        return [batches[rank::world_size] for rank in range(world_size)]
    own = [range(rank, samples, world_size) for rank in range(world_size)]
    return [[every[start : start + size] for start in range(0, len(every), size)] for every in own]


def fixed_rows(available: int, wanted: int) -> np.ndarray:
    """Return `wanted` row indices below `available`, or all if they are fewer, in a fixed pseudo-random order.

    Rows at regular intervals would depend on the order of the mesh.
    """
    return np.random.default_rng(available).permutation(available)[:wanted]
