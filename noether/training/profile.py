"""A trace of a few updates of each rank, for Perfetto, and on a GPU a picture of its memory."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

SKIPPED = 2
"""Updates before the trace: the first ones also load, allocate and compile."""


class UpdateProfile:
    """Traces updates `SKIPPED` + 1 to `SKIPPED` + `updates` of a start into `folder`, one file for each rank.

    `trace-rank-0.json.gz` opens at https://ui.perfetto.dev; on a GPU, `memory-rank-0.pickle` opens at
    https://pytorch.org/memory_viz. What a disk refuses is told to `warn`, and does not end the run.
    """

    def __init__(
        self, folder: Path, updates: int, rank: int, device: torch.device, warn: Callable[[str], None]
    ) -> None:
        self._folder, self._left, self._rank, self._warn = folder, updates, rank, warn
        self._skip, self._on_gpu = SKIPPED, device.type == "cuda"
        self._profile: profile | None = None

    def before_update(self) -> None:
        """Begins the trace when its first update is about to be made, and ends it after its last."""
        if self._skip:
            self._skip -= 1
        elif self._left:
            if self._profile is None:
                self._begin()
            self._left -= 1
        else:
            self.close()

    def close(self) -> None:
        """Writes what was traced; nothing where nothing was, or where it is written already."""
        if self._profile is None:
            return
        traced, self._profile = self._profile, None
        if self._on_gpu:
            torch.cuda.synchronize()
        traced.stop()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            traced.export_chrome_trace(str(self._folder / f"trace-rank-{self._rank}.json.gz"))
            if self._on_gpu:
                torch.cuda.memory._dump_snapshot(str(self._folder / f"memory-rank-{self._rank}.pickle"))
                torch.cuda.memory._record_memory_history(enabled=None)
        except (OSError, RuntimeError) as error:
            self._warn(f"the trace of rank {self._rank} could not be written to {self._folder}: {error}")

    def _begin(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        if self._on_gpu:
            torch.cuda.memory._record_memory_history(max_entries=100_000)
        self._profile = profile(activities=activities, record_shapes=True)
        self._profile.start()
