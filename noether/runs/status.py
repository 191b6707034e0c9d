"""`noether status`: one line a run, or JSON."""

import json
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from rich.table import Table

from noether.common.console import Console
from noether.common.errors import ExitCode, RequestError
from noether.common.numbers import number_text
from noether.common.shown import shown_name
from noether.launch.detect.slurm.queue import SlurmError, queued_jobs
from noether.runs.overview import RunState, job_of_run, run_state, runs_under

DEFAULT_FOLDER = "runs"
MOST_COLUMNS = 1000


def show_status(output_path: str, *, as_json: bool) -> int:
    """Prints the runs in a folder with the jobs they wait or run in."""
    queued, refusal = {}, None
    try:
        queued = queued_jobs()
    except SlurmError as error:
        refusal = error
    try:
        folders = runs_under(Path(output_path).expanduser(), queued)
    except RequestError:
        if output_path != DEFAULT_FOLDER:
            raise
        folders = []  # Before the first run there is no such folder, and nothing is wrong.
    if refusal and any(job_of_run(folder) for folder in folders):
        print(f"noether: {refusal}\nruns in jobs are shown from their folders alone", file=sys.stderr)
    states = [run_state(folder, queued, _warn) for folder in folders]
    if as_json:
        print(json.dumps({"runs": [asdict(state) for state in states]}, indent=2))
    elif not states:
        print(f"no runs in {output_path}; noether train makes one")
    else:
        console, table = Console(None, speaks=True), status_table(states)
        if not console.terminal.is_terminal:  # A program reads lines: one for each run, however long.
            console.terminal.width = MOST_COLUMNS
        console.say(table)
    return ExitCode.DONE


def _warn(text: str) -> None:
    print(f"noether: {shown_name(text)}", file=sys.stderr)


def status_table(states: list[RunState]) -> Table:
    """Returns the runs as a table."""
    columns = ("run", "state", "job", "update", "training loss", "left", "split", "last metrics")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for state in states:
        progress = "" if state.update is None else f"{state.update:,}"
        if state.total_updates:
            progress = f"{progress or 0}/{state.total_updates:,}"
        left = "" if state.seconds_left is None else str(timedelta(seconds=round(state.seconds_left)))
        table.add_row(
            shown_name(Path(state.run).name),
            state.state if state.state in ("done", "running") else f"{state.state}: {shown_name(state.why)}",
            state.job or "",
            progress,
            "" if state.training_loss is None else number_text(state.training_loss),
            left + (f" (job {state.time_left})" if state.time_left else ""),
            shown_name(state.split),
            ", ".join(map(shown_name, state.headlines)),
        )
    return table
