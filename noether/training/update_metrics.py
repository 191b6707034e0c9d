"""What updates measure, and what they amount to over all ranks: since the last log line, and over an epoch."""

import resource
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from noether.launch.process_group.group import Group
from noether.training.time_use import TRAINING, Clock, Part, TimeTable


@dataclass(frozen=True)
class UpdateMetrics:
    """What one update measured, still on the device: reading them is a synchronisation.

    loss: this rank's mean loss over its samples. gradient_norm: of the whole gradient, before clipping.
    skipped: why the weights were not updated; None where they were.
    counts: what the task counts of this rank's samples, as sums.
    """

    loss: Tensor
    gradient_norm: Tensor
    skipped: str | None = None
    counts: Mapping[str, Tensor] = field(default_factory=dict)


class LogWindow:
    """Sums up the updates since the last log line without reading the device in between.

    What all the time was made of is counted by `clock`; the pace counts the parts of it that are training.
    """

    def __init__(self, group: Group, effective_batch_size: int, clock: Clock) -> None:
        self._group, self._effective, self._clock = group, effective_batch_size, clock
        self._hosts = group.gather(socket.gethostname())
        self.total = TimeTable([[0.0] * len(Part) for _ in range(group.world_size)], self._hosts)
        self._clear()

    def _clear(self) -> None:
        self._loss: Tensor | float = 0.0
        self._updates = 0
        self._started, self._started_busy = time.perf_counter(), time.process_time()

    def add(self, metrics: UpdateMetrics) -> None:
        """Counts one update."""
        self._loss = self._loss + metrics.loss
        self._norm = metrics.gradient_norm
        self._updates += 1

    def read(self) -> dict[str, Any]:
        """Returns the means since the last call, over all ranks, and starts anew. Every rank calls it."""
        self._clock.switch(Part.REDUCTION)  # The device finishes what was queued; the slower ranks arrive.
        own = float(self._loss) / self._updates
        seconds = self._clock.take()
        table = self._group.table([own, *seconds])
        self._clock.switch(Part.LOGGING)
        times = TimeTable([row[1:] for row in table], self._hosts)
        self.total.add(times)
        row = {
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

    def finish(self) -> TimeTable:
        """Returns what all the time since the beginning was made of. Every rank calls it."""
        self.total.add(TimeTable(self._group.table(self._clock.take())))
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
