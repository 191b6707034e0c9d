"""A trace of a few updates of each rank, for Perfetto, and on a GPU a picture of its memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule


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
