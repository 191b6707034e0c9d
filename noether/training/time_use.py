"""Measures how a run spends its time: a clock that always runs for exactly one part of the loop."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule


class Part(IntEnum):
    """The parts that the time of a run is divided into.

    DATA: waiting for samples. REDUCTION: waiting for the other ranks once the last gradient is there; what overlaps
    with the backward pass is part of that. OTHER: the loop itself.
    """

    DATA = 0
    COPY = 1
    FORWARD = 2
    BACKWARD = 3
    REDUCTION = 4
    OPTIMIZER = 5
    LOGGING = 6
    EVALUATION = 7
    CHECKPOINT = 8
    OTHER = 9


NAMES = tuple(part.name.lower() for part in Part)
COMPUTING = (Part.FORWARD, Part.BACKWARD, Part.REDUCTION, Part.OPTIMIZER)
"""What a GPU does while its host runs ahead."""
OWN_WORK = (Part.DATA, Part.COPY, Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER)
"""What one rank takes longer for than another: the rest is waiting, or the same on all."""
TRAINING = (*OWN_WORK, Part.REDUCTION, Part.OTHER)
"""What a pace counts: all but logging, evaluations and checkpoints."""
MOST_MARKS = 4000
"""Events kept between two readings; the updates after them are taken to be as those before."""


class Clock:
    """Seconds by part since it was last read. `switch` costs a fraction of a microsecond on the CPU.

    On a GPU the host only queues the work, so that its own seconds say nothing about the parts of an update: events
    are recorded on the device's stream, which nothing waits for, and the host's time for all those parts together is
    divided as the events say.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[tuple[Part, torch.cuda.Event]] = []
        self._seconds = [0.0] * len(Part)
        self._part, self._since = Part.OTHER, time.perf_counter()

    def switch(self, part: Part) -> None:
        """Lets the time from now on count for `part`."""
        self._count()
        if self._on_gpu and (part in COMPUTING or self._part in COMPUTING) and len(self._marks) < MOST_MARKS:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((part, event))
        self._part = part

    def _count(self) -> None:
        now = time.perf_counter()
        self._seconds[self._part] += now - self._since
        self._since = now

    def take(self) -> list[float]:
        """Returns the seconds by part since the last call. On a GPU it waits for the work before this part."""
        if self._marks:
            # Only of events that the device has passed may the time be asked, so none is recorded here.
            self._marks[-1][1].synchronize()
        self._count()
        seconds, self._seconds = self._seconds, [0.0] * len(Part)
        if self._marks:
            on_device = [0.0] * len(Part)
            for (part, begin), (_, end) in zip(self._marks, self._marks[1:], strict=False):
                if part in COMPUTING:
                    on_device[part] += begin.elapsed_time(end)
            self._marks = []
            seconds = divided(seconds, on_device)
        return seconds


def divided(host: Sequence[float], device: Sequence[float]) -> list[float]:
    """Returns the host's seconds with those of the computing parts divided as the device's events say."""
    total, measured = sum(host[part] for part in COMPUTING), sum(device[part] for part in COMPUTING)
    seconds = list(host)
    for part in COMPUTING if measured > 0 else ():
        seconds[part] = total * device[part] / measured
    return seconds


@dataclass
class TimeTable:
    """Seconds of each rank by part, and on rank 0 alone the hosts on which they run."""

    ranks: list[list[float]]
    hosts: Sequence[str] = ()

    def add(self, other: "TimeTable") -> None:
        """Adds the seconds of a later stretch."""
        for own, more in zip(self.ranks, other.ranks, strict=True):
            own[:] = (one + another for one, another in zip(own, more, strict=True))

    def parts(self) -> dict[str, float]:
        """Returns the mean seconds of a rank by part."""
        seconds = (sum(own) / len(self.ranks) for own in zip(*self.ranks, strict=True))
        return dict(zip(NAMES, (round(mean, 6) for mean in seconds), strict=True))

    def slowest(self) -> dict[str, Any] | None:
        """Returns which rank had most to do, where, and its lead over the others' mean as a share of the time.

        None where there is one rank.
        """
        if len(self.ranks) < 2:
            return None
        work = [sum(rank[part] for part in OWN_WORK) for rank in self.ranks]
        rank = max(range(len(work)), key=work.__getitem__)
        others = (sum(work) - work[rank]) / (len(work) - 1)
        behind = (work[rank] - others) / max(sum(self.ranks[rank]), 1e-9)
        return {"rank": rank, "host": self.hosts[rank] if self.hosts else None, "behind": round(behind, 4)}

    def as_dict(self) -> dict[str, Any]:
        """Returns seconds by part, the slowest rank, and every rank's seconds, for JSON."""
        ranks = [dict(zip(NAMES, (round(value, 4) for value in rank), strict=True)) for rank in self.ranks]
        return {"parts": self.parts(), "slowest": self.slowest(), "ranks": ranks}


class UpdateProfile:
    """Traces `updates` updates of a start from its third on into `folder`, one file for each rank.

    The first updates also load, allocate and compile. `trace-rank-0.json.gz` opens at https://ui.perfetto.dev; on a
    GPU, `memory-rank-0.pickle` opens at https://pytorch.org/memory_viz. What a disk refuses is told to `warn`, and does
    not end the run.
    """

    def __init__(
        self, folder: Path, updates: int, rank: int, device: torch.device, warn: Callable[[str], None]
    ) -> None:
        self._folder, self._rank, self._warn, self._on_gpu = folder, rank, warn, device.type == "cuda"
        self._updates = 0
        self._profile = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])],
            schedule=schedule(skip_first=1, wait=0, warmup=1, active=updates, repeat=1),
            on_trace_ready=self._write,
            record_shapes=True,
        )
        self._profile.start()

    def after_update(self) -> None:
        """Begins the trace after the second update, and writes it after the last that is traced."""
        self._updates += 1
        if self._on_gpu and self._updates == 2:
            torch.cuda.memory._record_memory_history(max_entries=100_000)
        self._profile.step()

    def close(self) -> None:
        """Writes what was traced where the run ends before that; nothing where no update was."""
        self._profile.stop()
        self._end_memory_history()

    def _write(self, traced: Any) -> None:
        if self._updates < 3:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            traced.export_chrome_trace(str(self._folder / f"trace-rank-{self._rank}.json.gz"))
            if self._on_gpu:
                torch.cuda.memory._dump_snapshot(str(self._folder / f"memory-rank-{self._rank}.pickle"))
            self._end_memory_history()
        except (OSError, RuntimeError) as error:
            self._warn(f"the trace of rank {self._rank} could not be written to {self._folder}: {error}")

    def _end_memory_history(self) -> None:
        if self._on_gpu:
            torch.cuda.memory._record_memory_history(enabled=None)
