"""Which process leads a run, in which job, and is it alive: process.json of the run folder. No torch here."""

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from noether.common.processes import ProcessId, process_table
from noether.common.whole_file import write_json
from noether.runs.folder import RunFolder


@dataclass(frozen=True)
class RunProcess:
    """The process that answers for rank 0.

    started: its start in clock ticks since the boot, as /proc has it; with the pid it names one process for certain.
    job: the Slurm job whose task it is ("12", of an array "12_3"), or None.
    began: seconds since the epoch.
    exit_code: None while it runs, and where it was killed.
    """

    host: str
    pid: int
    started: int
    job: str | None
    began: float
    exit_code: int | None = None

    def alive(self) -> bool | None:
        """Says whether it runs; None where that cannot be seen from this host."""
        if self.exit_code is not None:
            return False
        if self.host != socket.gethostname():
            return None
        entry = process_table().get(self.pid)
        return entry is not None and not entry.zombie and entry.identity == ProcessId(self.pid, self.started)


def job_of_task(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the name of the Slurm job that this process is in, as scancel and scontrol take it, or None."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    # The id of an array's last element is that of the whole array: requeued by it, every element would start again.
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID") or None


def record_process(folder: RunFolder, job: str | None) -> RunProcess:
    """Writes that this process leads the run from now on; what an earlier attempt left of its end is removed.

    Where the disk refuses, `noether status` knows less, and the run goes on.
    """
    own = process_table().get(os.getpid())
    process = RunProcess(socket.gethostname(), os.getpid(), own.started if own else 0, job, round(time.time(), 3))
    with suppress(OSError):
        folder.stopped.unlink(missing_ok=True)
        write_json(folder.process, asdict(process))
    return process


def record_exit_code(folder: RunFolder, process: RunProcess, exit_code: int) -> None:
    """Writes how it ended, where no later start leads the run by now; on a disk that takes nothing, nothing."""
    with suppress(OSError):  # The exit code, which says whether all is saved, must come through in any case.
        leads = read_process(folder) or process
        if (leads.host, leads.pid, leads.began) == (process.host, process.pid, process.began):
            write_json(folder.process, {**asdict(process), "exit_code": int(exit_code)})


def read_process(folder: RunFolder) -> RunProcess | None:
    """Returns what was recorded, or None where nothing was, or nothing that can be read."""
    content = read_json(folder.process)
    try:
        return RunProcess(**content) if content else None
    except TypeError:
        return None


def read_json(path: Path) -> dict[str, Any]:
    """Returns a file's JSON object; an empty one where there is none that can be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
