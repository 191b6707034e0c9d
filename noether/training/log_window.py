"""What the updates since the last log line amount to, over all ranks."""

import resource
import socket
import time
from typing import Any

import torch

from noether.distributed.group import Group
from noether.training.time_use import TRAINING, Clock, Part, TimeTable
from noether.training.update import UpdateFigures


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
        self._loss: torch.Tensor | None = None
        self._updates = 0
        self._started, self._started_busy = time.perf_counter(), time.process_time()

    def add(self, figures: UpdateFigures) -> None:
        """Counts one update."""
        self._loss = figures.loss if self._loss is None else self._loss + figures.loss
        self._norm = figures.gradient_norm
        self._updates += 1

    def read(self) -> dict[str, Any]:
        """Returns the means since the last call, over all ranks, and starts anew. Every rank calls it."""
        assert self._loss is not None
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
        """Share of the time since the last line that this device computed, 0 to 1: the driver's figure, or CPU time."""
        if self._group.device.type == "cuda":
            try:
                return torch.cuda.utilization(self._group.device) / 100
            except Exception:
                # NVML's errors are of their own kind; it has no such figure for MIG, nor without its library.
                return None
        busy, seconds = time.process_time() - self._started_busy, time.perf_counter() - self._started
        return min(1.0, busy / (seconds * torch.get_num_threads()))


def peak_memory_mib(device: torch.device) -> float:
    """Returns the most memory used so far, in MiB: the device's on a GPU, else this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
