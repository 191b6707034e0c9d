"""TensorBoard event files of a run."""

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from noether.tracking.tracker import Row

POSITION = ("kind", "update", "epoch", "samples", "split", "weights")


class TensorBoardFile:
    """Writes the numbers of each row as scalars over updates.

    A resumed run tells TensorBoard to forget what was written after the update it resumes from.
    """

    def __init__(self, folder: Path, resumed_from: int) -> None:
        self._writer = EventFileWriter(str(folder), flush_secs=10)
        if resumed_from:
            start = Event(step=resumed_from + 1, session_log=SessionLog(status=SessionLog.START))
            self._writer.add_event(start)

    def log(self, row: Row) -> None:
        """Writes the row's numbers, tagged `training/loss` or `validation (ema)/surface_pressure/mae`."""
        if row["kind"] == "training":
            self._write("training", row, row["update"])
        elif row["kind"] == "evaluation":
            self._write(f"{row['split']} ({row['weights']})", row["figures"], row["update"])

    def _write(self, tag: str, values: Row, update: int) -> None:
        numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        summary = [
            Summary.Value(tag=f"{tag}/{name}", simple_value=value)
            for name, value in numbers.items()
            if name not in POSITION
        ]
        self._writer.add_event(Event(wall_time=time.time(), step=update, summary=Summary(value=summary)))

    def advance(self, update: int) -> None:
        """Nothing to write."""

    def close(self) -> None:
        """Flushes and closes the event file."""
        self._writer.close()
