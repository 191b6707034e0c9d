"""What an update costs and finds: seconds by what they were made of, metrics by epoch and by logged window."""

import resource
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule

from noether.common.safe_open import make_folder
from noether.launch.process_group.group import Group


class Part(IntEnum):
    """The parts that the time of a run is divided into.

    DATA: waiting for samples. REDUCTION: waiting for the other ranks once the last gradient is there; what overlaps
    with the backward pass is part of that. OTHER: the loop itself.
    """

    DATA, COPY, FORWARD, BACKWARD, REDUCTION, OPTIMIZER, LOGGING, EVALUATION, CHECKPOINT, OTHER = range(10)


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
        on_device = [0.0] * len(Part)
        for (part, begin), (_, end) in pairwise(self._marks):
            if part in COMPUTING:
                on_device[part] += begin.elapsed_time(end)
        self._marks = []
        return divided(seconds, on_device)


def divided(host: Sequence[float], device: Sequence[float]) -> list[float]:
    """Returns the host's seconds with those of the computing parts divided as the device's events say."""
    total, measured = sum(host[part] for part in COMPUTING), sum(device[part] for part in COMPUTING)
    seconds = list(host)
    for part in COMPUTING if measured > 0 else ():
        seconds[part] = total * device[part] / measured
    return seconds


@dataclass
class TimeTable:
    """Seconds (ranks, parts), and on rank 0 alone the hosts on which the ranks run."""

    ranks: np.ndarray
    hosts: Sequence[str] = ()

    def parts(self) -> dict[str, float]:
        """Returns the mean seconds of a rank by part."""
        return dict(zip(NAMES, self.ranks.mean(axis=0).round(6).tolist(), strict=True))

    def slowest(self) -> dict[str, Any] | None:
        """Returns which rank had most to do, where, and its lead over the others' mean as a share of the time.

        None where there is one rank.
        """
        if len(self.ranks) < 2:
            return None
        work = self.ranks[:, OWN_WORK].sum(axis=1)
        rank = int(work.argmax())
        others = (work.sum() - work[rank]) / (len(work) - 1)
        behind = float(work[rank] - others) / max(float(self.ranks[rank].sum()), 1e-9)
        return {"rank": rank, "host": self.hosts[rank] if self.hosts else None, "behind": round(behind, 4)}

    def as_dict(self) -> dict[str, Any]:
        """Returns seconds by part, the slowest rank, and every rank's seconds, for JSON."""
        ranks = [dict(zip(NAMES, rank, strict=True)) for rank in self.ranks.round(4).tolist()]
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
        self._profile = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])],
            schedule=schedule(skip_first=1, wait=0, warmup=1, active=updates, repeat=1),
            on_trace_ready=self._write,
            record_shapes=True,
        )
        self._profile.start()

    def after_update(self) -> None:
        """Begins the trace after the second update, and writes it after the last that is traced."""
        if self._on_gpu and self._profile.step_num == 1:
            torch.cuda.memory._record_memory_history(max_entries=100_000)
        self._profile.step()

    def close(self) -> None:
        """Writes what was traced where the run ends before that; nothing where no update was."""
        self._profile.stop()
        self._end_memory_history()

    def _write(self, traced: Any) -> None:
        if traced.step_num < 3:
            return
        try:
            make_folder(self._folder)
            traced.export_chrome_trace(str(self._folder / f"trace-rank-{self._rank}.json.gz"))
            if self._on_gpu:
                torch.cuda.memory._dump_snapshot(str(self._folder / f"memory-rank-{self._rank}.pickle"))
            self._end_memory_history()
        except (OSError, RuntimeError) as error:
            self._warn(f"the trace of rank {self._rank} could not be written to {self._folder}: {error}")

    def _end_memory_history(self) -> None:
        if self._on_gpu:
            torch.cuda.memory._record_memory_history(enabled=None)


@dataclass(frozen=True)
class UpdateMetrics:
    """What one update measured, still on the device: reading them is a synchronisation.

    loss: this rank's mean loss over its samples. gradient_norm: of the whole gradient, before clipping.
    skipped: why the weights were not updated; None where they were.
    counts: what the task counts of this rank's samples, as sums. numbers: what a task's own update returned.
    """

    loss: Tensor
    gradient_norm: Tensor
    skipped: str | None = None
    counts: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, Tensor] = field(default_factory=dict)


class LogWindow:
    """Sums up the updates since the last log line without reading the device in between.

    `own`: of updates that a task makes by itself, whose numbers are means over the updates that returned them.
    """

    def __init__(self, group: Group, effective_batch_size: int, clock: Clock, *, own: bool = False) -> None:
        self._own = own
        self._group, self._effective, self._clock = group, effective_batch_size, clock
        self.total = TimeTable(np.zeros((group.world_size, len(Part))), group.gather(socket.gethostname()))
        self._clear()

    def _clear(self) -> None:
        self._loss: Tensor | float = 0.0
        self._numbers: dict[str, tuple[Tensor | float, int]] = {}
        self._updates = 0
        self._started, self._started_busy = time.perf_counter(), time.process_time()

    def add(self, metrics: UpdateMetrics) -> None:
        """Counts one update."""
        self._loss = self._loss + metrics.loss
        self._norm = metrics.gradient_norm
        for name, value in metrics.numbers.items():
            total, count = self._numbers.get(name, (0.0, 0))
            self._numbers[name] = total + value, count + 1
        self._updates += 1

    def read(self) -> dict[str, Any]:
        """Returns the means since the last call, over all ranks, and starts anew. Every rank calls it."""
        self._clock.switch(Part.REDUCTION)  # The device finishes what was queued; the slower ranks arrive.
        own = float(self._loss) / self._updates
        seconds = self._clock.take()
        table = self._group.table([own, *seconds])
        self._clock.switch(Part.LOGGING)
        times = TimeTable(np.array([row[1:] for row in table]), self.total.hosts)
        self.total.ranks += times.ranks
        row = self._means() if self._own else {}
        row |= {
            "loss": sum(row[0] for row in table) / len(table),
            "gradient_norm": float(self._norm),
            "samples_per_second": self._updates * self._effective / sum(seconds[part] for part in TRAINING),
            "memory_mib": peak_memory_mib(self._group.device),
            "device_use": self._device_use(),
            "cpu_cores": self._cores(),
            "host_memory_mib": resident_mib(),
            "time_use": times.parts(),
            "slowest": times.slowest(),
        }
        self._clear()
        return row

    def _means(self) -> dict[str, Any]:
        """Returns the means of the updates' own numbers over updates and ranks; {} above rank 0."""
        ranks = self._group.gather({name: (float(total), count) for name, (total, count) in self._numbers.items()})
        every = {name: [one[name] for one in ranks if name in one] for one in ranks for name in one}
        return {name: sum(total for total, _ in ones) / sum(count for _, count in ones) for name, ones in every.items()}

    def finish(self) -> TimeTable:
        """Returns what all the time since the beginning was made of. Every rank calls it."""
        self.total.ranks += self._group.table(self._clock.take())
        return self.total

    def _device_use(self) -> float | None:
        """Share of the time since the last line that this device computed, 0 to 1: by the driver, or CPU time."""
        if self._group.device.type == "cuda":
            try:
                return torch.cuda.utilization(self._group.device) / 100
            except Exception:
                # NVML's errors are of their own kind; it says nothing for MIG, nor without its library.
                return None
        return min(1.0, self._cores() / torch.get_num_threads())

    def _cores(self) -> float:
        """How many cores this process has kept busy since the last line, workers of the data left out."""
        return (time.process_time() - self._started_busy) / (time.perf_counter() - self._started)


class EpochMetrics:
    """Sums up the updates of an epoch without reading the device in between.

    Each sample counts once, as the model was when it learned from it. An update that was skipped counts nothing.
    `samples_per_update` are this rank's; of a task that does not count (`counts` is False) nothing is summed.
    """

    def __init__(self, group: Group, samples_per_update: int, *, counts: bool = True) -> None:
        self._group, self._per_update, self._counts = group, samples_per_update, counts
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._samples = 0

    def add(self, metrics: UpdateMetrics) -> None:
        """Counts one update of a task that counts anything."""
        if metrics.skipped or not self._counts:
            return
        sums = {"loss": metrics.loss * self._per_update, **metrics.counts}
        for name, one in sums.items():
            value = torch.as_tensor(one)
            value = value if value.device.type == "mps" else value.double()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._samples += self._per_update

    def read(self) -> dict[str, Any]:
        """Returns the means over the samples since the last call, and how many they are; {} without any.

        Every rank calls it: all have skipped the same updates. What is counted may differ from batch to batch.
        """
        if not self._samples:
            return {}
        ranks = self._group.gather((self._samples, {name: float(value) for name, value in self._sums.items()}))
        self._clear()
        samples = sum(own for own, _ in ranks)
        names = dict.fromkeys(name for _, sums in ranks for name in sums)
        means = {name: sum(sums.get(name, 0.0) for _, sums in ranks) / samples for name in names}
        return self._group.from_first({"epoch_samples": samples, "metrics": means})


def resident_mib() -> float | None:
    """Returns the memory of the host that this process holds now, in MiB; None where the kernel does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * resource.getpagesize() / 2**20


def peak_memory_mib(device: torch.device) -> float:
    """Returns the most memory used so far, in MiB: the device's on a GPU, else this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
