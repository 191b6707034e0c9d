"""TensorBoard event files of a run."""

import io
import re
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.summary.writer.record_writer import RecordWriter

from noether.common.atomic_write import UNFENCED, AppendingFile, Writer
from noether.common.safe_open import make_folder
from noether.runs.metrics import Metrics
from noether.runs.records import Row
from noether.runs.tracking.tracker import Tracker, logged


class TensorBoardFile(Tracker):
    """Tracker that writes the metrics of each row as scalars over updates.

    Each attempt at a run has its own event file. If an earlier attempt wrote events, the new file makes TensorBoard
    discard the events after the update from which this attempt resumes (all events if it starts anew).
    The writers of torch and TensorBoard are not used: they lose queued events when the process is killed, and their
    thread ends for good when the disk is full for the first time.
    """

    file: AppendingFile

    def __init__(self, folder: Path, start_update: int, described: Metrics, writer: Writer = UNFENCED) -> None:
        self._described, self._told = described, set[str]()
        make_folder(folder)
        earlier = sorted(folder.glob("events.out.tfevents.*"))
        # TensorBoard reads the files of a folder in the order of their names, so this name must sort last.
        seconds = (re.match(r"events\.out\.tfevents\.(\d+)", path.name) for path in earlier)
        newest = max((int(found[1]) for found in seconds if found), default=0)
        name = f"events.out.tfevents.{max(int(time.time()), newest + 1)}.{socket.gethostname()}"
        self.file = AppendingFile(folder / name, writer)
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if earlier:
            start = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=time.time(), step=start_update + 1, session_log=start))

    def log(self, row: Row) -> None:
        """Write the row's metrics with tags such as `training/loss` or `validation (ema)/surface_pressure/mae`."""
        if summary := [self._value(f"{group}/{name}", name, value) for group, name, value in logged(row)]:
            self._add(Event(wall_time=time.time(), step=row["update"], summary=Summary(value=summary)))

    def _value(self, tag: str, name: str, value: float) -> Summary.Value:
        """Return a scalar. The first scalar of each tag also contains the metric's description for TensorBoard."""
        if tag in self._told:
            return Summary.Value(tag=tag, simple_value=value)
        self._told.add(tag)
        about = SummaryMetadata(summary_description=self._described[name].in_words)
        return Summary.Value(tag=tag, simple_value=value, metadata=about)

    def _add(self, event: Event) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        self.file.append(record.getvalue())
