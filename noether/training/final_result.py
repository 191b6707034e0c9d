"""The end of a run: the test split evaluated with the selected weights, result.json and the report."""

import shlex
import time
from typing import Any

from noether.checkpoints.format import selected_checkpoint
from noether.checkpoints.state import load_weights, model_tensors
from noether.common.console import Console
from noether.common.errors import NoetherError
from noether.common.whole_file import UNFENCED, DiskRefusal, Publisher, refusals_told
from noether.launch.process_group.group import LONGEST_FINISH_S
from noether.launch.process_group.stop import AgreedStop, StopAgreed
from noether.runs.folder import RunFolder
from noether.runs.records import read_metrics, write_record
from noether.runs.report.tables import result_tables
from noether.runs.resuming import continue_line
from noether.training.evaluation import RunEvaluation, about_weights
from noether.training.flops import measure_arithmetic
from noether.training.open_run import OpenRun


def write_final_result(run: OpenRun, stop: AgreedStop, time_use: dict[str, Any]) -> int:
    """Evaluates the test split with the selected weights, and writes the result and the report.

    `time_use` is what the seconds of this start were made of.

    Returns:
        0, or why all ranks stopped before it was through; the next start of the run does it again.
    """
    started, group = time.perf_counter(), run.group
    try:
        result = _evaluate_selected(run, stop)
        if group.is_first:
            time_use = _of_training(run, time_use)
            result |= {"time_use": time_use, "arithmetic": measure_arithmetic(run, time_use)}
            _show_result(run, result)
            run.console.only_log(f"evaluated in {time.perf_counter() - started:.1f} s")
    except StopAgreed as stopped:
        return stopped.reason
    except DiskRefusal as refusal:
        raise NoetherError(
            f"the result of the run cannot be written to {run.folder.path}; training is complete and saved\n"
            f"  seen      {refusal.seen}\n"
            f"  expected  {refusal.expected}\n"
            f"  fix       make room, then {continue_line(run.folder.path)}: only the evaluation is repeated"
        ) from None
    # A launcher may end what is left a while after the first rank has left, as srun --wait does.
    group.wait_for_first(LONGEST_FINISH_S)
    return 0


def _of_training(run: OpenRun, time_use: dict[str, Any]) -> dict[str, Any]:
    """What the seconds of the last start that made updates were made of: this one may only repeat the evaluation."""
    rows = [] if time_use["updates"] else read_metrics(run.folder.metrics)
    last = next((row for row in reversed(rows) if row["kind"] == "time_use"), time_use)
    return {name: last[name] for name in time_use if name in last}


def _evaluate_selected(run: OpenRun, stop: AgreedStop) -> dict[str, Any]:
    group, folder = run.group, run.folder
    weights = run.state.selected_weights
    model = run.state.evaluation_models()[weights]
    about: dict[str, Any] = {}
    if group.is_first:
        selected = selected_checkpoint(folder.checkpoints, run.console.warn)
        about = about_weights(selected, weights)
        load_weights(model, selected, weights)
    # Sent, not read: other hosts may not see the files of rank 0's, or not yet.
    about = group.from_first(about)
    group.copy_from_first(model_tensors(model).values())
    return RunEvaluation(run.evaluator(stop.check), folder, about, by=run.lease).result(model, "test")


def _show_result(run: OpenRun, result: dict[str, Any]) -> None:
    console, folder = run.console, run.folder
    console.say("")
    for table in result_tables(result):
        console.say(table)
    with refusals_told(folder.path):
        write_record(folder.result, result, run.lease)
    if run.config.tracker.report:
        report_run(folder, console, run.lease)


def report_run(folder: RunFolder, console: Console, by: Publisher = UNFENCED) -> None:
    """Writes the report and says where it is; a run whose weights and metrics are saved does not fail for its page."""
    from noether.runs.report.page import write_report

    try:
        path = write_report(folder, by)
    except OSError as error:
        console.warn(
            f"the report could not be written ({type(error).__name__}: {error}); to make it later:\n"
            f"  noether report {shlex.quote(str(folder.path))}"
        )
    else:
        console.say(f"\nreport {path}")
