"""The time and the metrics of updates: seconds by part of an update, metrics by epoch and by log row."""

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
    """The parts into which the time of a run is divided.

    DATA: waiting for samples. REDUCTION: waiting for the other ranks after the last gradient is ready; a reduction that
    overlaps with the backward pass counts as BACKWARD. OTHER: the loop itself.
    """

    DATA, COPY, FORWARD, BACKWARD, REDUCTION, OPTIMIZER, LOGGING, EVALUATION, CHECKPOINT, OTHER = range(10)


NAMES = tuple(part.name.lower() for part in Part)
COMPUTING = (Part.FORWARD, Part.BACKWARD, Part.REDUCTION, Part.OPTIMIZER)
"""The parts that a GPU computes while its host runs ahead."""
OWN_WORK = (Part.DATA, Part.COPY, Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER)
"""The parts whose times differ between ranks; in the other parts, ranks wait or take the same time."""
TRAINING = (*OWN_WORK, Part.REDUCTION, Part.OTHER)
"""The parts whose time is used to compute samples per second: all but logging, evaluations and checkpoints."""
MOST_MARKS = 4000
"""The maximum number of events between two readings; later updates are assumed to divide their time like these."""


class Clock:
    """Measures the seconds that each part of a run has taken since the clock was last read.

    `switch` takes less than a microsecond of CPU time. With a GPU, the host only queues the work; events recorded on
    the device's stream, without waiting, show how to divide the host's time among the parts that compute.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[tuple[Part, torch.cuda.Event]] = []
        self._seconds = [0.0] * len(Part)
        self._part, self._since = Part.OTHER, time.perf_counter()

    def switch(self, part: Part) -> None:
        """Count the time from now on as time of `part`."""
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
        """Return the seconds by part since the last call. On a GPU, wait for the work queued before this part."""
        if self._marks:
            # The time of an event can be read only after the device has passed it, so record no event here.
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
    """Return the host's seconds, with the computing parts divided in the proportions of the device's events."""
    total, measured = sum(host[part] for part in COMPUTING), sum(device[part] for part in COMPUTING)
    seconds = list(host)
    for part in COMPUTING if measured > 0 else ():
        seconds[part] = total * device[part] / measured
    return seconds


@dataclass
class TimeTable:
    """Seconds (ranks, parts) and, on rank 0 alone, the hosts of the ranks."""

    ranks: np.ndarray
    hosts: Sequence[str] = ()

    def parts(self) -> dict[str, float]:
        """Return the mean seconds of a rank by part."""
        return dict(zip(NAMES, self.ranks.mean(axis=0).round(6).tolist(), strict=True))

    def slowest(self) -> dict[str, Any] | None:
        """Return the rank with the most work, its host, and its excess work over the others, as a share of its time."""
        if len(self.ranks) < 2:
            return None
        work = self.ranks[:, OWN_WORK].sum(axis=1)
        rank = int(work.argmax())
        others = (work.sum() - work[rank]) / (len(work) - 1)
        behind = float(work[rank] - others) / max(float(self.ranks[rank].sum()), 1e-9)
        return {"rank": rank, "host": self.hosts[rank] if self.hosts else None, "behind": round(behind, 4)}

    def as_dict(self) -> dict[str, Any]:
        """Return seconds by part, the slowest rank, and every rank's seconds, for JSON."""
        ranks = [dict(zip(NAMES, rank, strict=True)) for rank in self.ranks.round(4).tolist()]
        return {"parts": self.parts(), "slowest": self.slowest(), "ranks": ranks}


class UpdateProfile:
    """Traces `updates` updates, from an attempt's third update on, and writes one file per rank into `folder`.

    Earlier updates also load, allocate and compile. `trace-rank-0.json.gz` opens at https://ui.perfetto.dev; on a GPU,
    `memory-rank-0.pickle` opens at https://pytorch.org/memory_viz. If a write fails, only `warn` is called.
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
        """Begin the trace after the second update, and write it after the last traced update."""
        if self._on_gpu and self._profile.step_num == 1:
            torch.cuda.memory._record_memory_history(max_entries=100_000)
        self._profile.step()

    def close(self) -> None:
        """End the trace, and write it if the run ends early and an update was traced."""
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
    """The measurements of one update, still on the device; reading them waits for the device.

    loss: this rank's mean loss over its samples. gradient_norm: norm of the whole gradient, before clipping.
    skipped: why the weights were not updated; None if they were.
    counts: sums of the task's counts over this rank's samples. numbers: values that a task's own update returned.
    """

    loss: Tensor
    gradient_norm: Tensor
    skipped: str | None = None
    counts: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, Tensor] = field(default_factory=dict)


class LogWindow:
    """Sums over the updates since the last log row; adding an update does not wait for the device.

    own: True if the task makes the updates; a value that `Task.update` returns is averaged over updates that return it.
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
        """Add one update."""
        self._loss = self._loss + metrics.loss
        self._norm = metrics.gradient_norm
        for name, value in metrics.numbers.items():
            total, count = self._numbers.get(name, (0.0, 0))
            self._numbers[name] = total + value, count + 1
        self._updates += 1

    def read(self) -> dict[str, Any]:
        """Return the means since the last call, over all ranks, and reset the sums. Every rank calls this."""
        self._clock.switch(Part.REDUCTION)  # Wait for the device's queued work and for slower ranks.
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
        """Return the means, over updates and ranks, of the values that `Task.update` returned; {} above rank 0."""
        ranks = self._group.gather({name: (float(total), count) for name, (total, count) in self._numbers.items()})
        every = {name: [one[name] for one in ranks if name in one] for one in ranks for name in one}
        return {name: sum(total for total, _ in ones) / sum(count for _, count in ones) for name, ones in every.items()}

    def finish(self) -> TimeTable:
        """Return the time by rank and part since this object was created. Every rank calls this."""
        self.total.ranks += self._group.table(self._clock.take())
        return self.total

    def _device_use(self) -> float | None:
        """Return the busy share (0 to 1) of this device since the last row, from the driver or from CPU time."""
        if self._group.device.type == "cuda":
            try:
                return torch.cuda.utilization(self._group.device) / 100
            except Exception:
                # NVML has its own error types; it gives no value for MIG devices, or if its library is missing.
                return None
        return min(1.0, self._cores() / torch.get_num_threads())

    def _cores(self) -> float:
        """Return the mean number of busy cores of this process since the last row, without the data workers."""
        return (time.process_time() - self._started_busy) / (time.perf_counter() - self._started)


class EpochMetrics:
    """Sums over the updates of an epoch; adding an update does not wait for the device.

    Each sample is counted once, in the forward pass of its update. Skipped updates are not counted.
    samples_per_update: this rank's samples per update. counts: False if the task has no counts; nothing is summed then.
    """

    def __init__(self, group: Group, samples_per_update: int, *, counts: bool = True) -> None:
        self._group, self._per_update, self._counts = group, samples_per_update, counts
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._samples = 0

    def add(self, metrics: UpdateMetrics) -> None:
        """Add one update, unless the update was skipped or the task has no counts."""
        if metrics.skipped or not self._counts:
            return
        sums = {"loss": metrics.loss * self._per_update, **metrics.counts}
        for name, one in sums.items():
            value = torch.as_tensor(one)
            value = value if value.device.type == "mps" else value.double()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._samples += self._per_update

    def read(self) -> dict[str, Any]:
        """Return the means over the samples since the last call, and the number of samples; {} if there are none.

        Every rank calls this, and all ranks skip the same updates. The names of the counts may differ between batches.
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
    """Return the host memory that this process uses now, in MiB; None if the kernel does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * resource.getpagesize() / 2**20


def peak_memory_mib(device: torch.device) -> float:
    """Return the peak memory so far, in MiB: of the device on a GPU, otherwise of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
