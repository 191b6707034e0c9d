"""Divide the samples of one update over the ranks, and each rank's share into micro-batches that fit on a device."""

from dataclasses import dataclass, replace
from math import ceil

from noether.common.errors import RequestError


@dataclass(frozen=True)
class BatchPlan:
    """The division of one update's samples: effective = per_rank × world_size.

    `micro`: the size of the largest micro-batch. `accumulation_steps`: the number of micro-batches per update and rank.
    """

    effective: int
    per_rank: int
    micro: int
    accumulation_steps: int

    def with_room_for(self, samples: int) -> "BatchPlan":
        """Return the plan for ranks that can process at most `samples` samples in one micro-batch.

        The micro-batches have equal sizes, which waste the least: with `samples=8`, 10 samples run as 5 + 5, not 8 + 2.
        """
        steps = ceil(self.per_rank / samples)
        return replace(self, micro=ceil(self.per_rank / steps), accumulation_steps=steps)

    def micro_batch_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the micro-batches in order: all are `micro`, except that the last may be smaller."""
        full, rest = divmod(self.per_rank, self.micro)
        return (self.micro,) * full + ((rest,) if rest else ())

    def describe(self, world_size: int) -> str:
        """Return the plan in one line: "8 samples per update = 2 ranks × 4; per rank 1 micro-batch of 4"."""
        samples = f"{self.effective:,} sample{'' if self.effective == 1 else 's'} per update"
        ranks = f"{world_size:,} rank{'' if world_size == 1 else 's'} × {self.per_rank}"
        micro = f"{self.accumulation_steps:,} micro-batch{'' if self.accumulation_steps == 1 else 'es'}"
        largest = "" if self.per_rank == self.micro * self.accumulation_steps else "at most "
        return f"{samples} = {ranks}; per rank {micro} of {largest}{self.micro}"


def plan_batches(effective_batch_size: int, max_batch_size: int | None, world_size: int) -> BatchPlan:
    """Divide the effective batch over the ranks, and each rank's share into micro-batches of at most `max_batch_size`.

    RequestError: the batch cannot be shared equally. The error gives the nearest batch sizes that are allowed.
    """
    per_rank, rest = divmod(effective_batch_size, world_size)
    if rest:
        valid = [size for size in (per_rank * world_size, (per_rank + 1) * world_size) if size]
        raise RequestError(
            "batch-not-divisible",
            f"an effective batch of {effective_batch_size} cannot be shared equally by {world_size} ranks",
            seen=f"trainer.effective_batch_size={effective_batch_size}, {world_size} ranks",
            expected=f"a multiple of {world_size}; the nearest are {' and '.join(map(str, valid))}",
            fix="      or ".join(f"trainer.effective_batch_size={size}" for size in valid),
        )
    return BatchPlan(effective_batch_size, per_rank, per_rank, 1).with_room_for(max_batch_size or per_rank)
