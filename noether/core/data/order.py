"""Which samples make up each update, whatever the world size, and which points show a shape that is not drawn anew."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np


class SampleKey(NamedTuple):
    """One use of a sample: its position in the training split and the epoch, from which its random numbers follow.

    Where a data set draws its samples itself, several times in an epoch maybe, the number of the use is in its place.
    """

    sample: int
    epoch: int


@dataclass(frozen=True)
class GlobalOrder:
    """The order of all samples of a run, defined before it is dealt to ranks.

    The global batch of an update depends on (seed, epoch, position) alone, so 1, 2 or 8 ranks, with or
    without accumulation, use the same samples in every update, and a resumed run goes on with the next one.
    """

    samples: int
    effective_batch_size: int
    seed: int
    drawn: Callable[[int], Sequence[int] | np.ndarray] | None = None
    """epoch → its samples, if the data set draws them itself; None: all of them, in a random order."""

    @property
    def updates_per_epoch(self) -> int:
        """Whole batches in an epoch; the samples left over differ from epoch to epoch."""
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

    The ranks' shares lie side by side in the global batch; `micro_batch_sizes` sum to one rank's share.
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
    """Cut a validation split from the training split: the indices of the samples of both, each ascending.

    The cut does not follow the run's seed: runs that differ by seed alone are selected on the same samples.
    """
    held_out = min(round(samples * fraction), samples - 1)
    shuffled = np.random.default_rng([0, samples]).permutation(samples)
    return sorted(shuffled[held_out:].tolist()), sorted(shuffled[:held_out].tolist())


def share_evaluation(samples: int, world_size: int, size: int, *, together: bool = False) -> list[list[range]]:
    """Return the batches of each rank, of at most `size` samples: together they count each sample exactly once.

    together: the same samples share a batch on any number of ranks, and none has few where others have many.
    """
    if together:
        count = ceil(samples / size)
        batches = [range(i * samples // count, (i + 1) * samples // count) for i in range(count)]
        return [batches[rank::world_size] for rank in range(world_size)]
    own = [range(rank, samples, world_size) for rank in range(world_size)]
    return [[every[start : start + size] for start in range(0, len(every), size)] for every in own]


def fixed_rows(available: int, wanted: int) -> np.ndarray:
    """Return `wanted` of the rows 0 to `available`, or all, in an order that looks random and is always the same.

    Strides would follow whatever order a mesh has.
    """
    return np.random.default_rng(available).permutation(available)[:wanted]
