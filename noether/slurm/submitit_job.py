"""A run that submitit starts: pickled on the login node, called in each task of srun, and requeued from here.

submitit itself calls `checkpoint` on SIGUSR2, and ignores SIGTERM, which Slurm sends at a preemption. Once the trainer
has started it handles both signals: every rank saves at an agreed update and exits. This module then only has to
requeue the job if Slurm does not do so itself.
"""

import os
import shlex
import signal
from dataclasses import dataclass
from typing import Any, NoReturn

from noether.common.container import as_typed_here
from noether.common.process_defaults import set_process_defaults
from noether.config.compose import validate
from noether.environments.slurm.queue import SlurmError, clean_environment, run_slurm
from noether.errors import ExitCode, NoetherError, shown
from noether.runs.folder import RunFolder
from noether.runs.lease import job_of_task
from noether.runs.records import is_count, read_record
from noether.runs.resuming import continue_line
from noether.slurm.job import TrainingJob, job_options
from noether.slurm.script import STALLED_LIMIT, STRIPPED, outcomes

REQUEUED_BY_SLURM = "SIGTERM"
"""Slurm sends this signal if the job is preempted (and then requeues it itself) or cancelled (and must stay ended)."""


@dataclass(frozen=True)
class TrainJob:
    """What submitit pickles: the run's whole configuration, so that later edits of its files have no effect."""

    settings: dict[str, Any]
    max_requeues: int

    def __call__(self) -> int:
        """Trains as one task of srun. Returns only if the run is done; otherwise it exits the process."""
        from noether.training.begin import train_here

        config = validate(self.settings)
        assert config.run_id is not None
        folder = RunFolder(config.output_path / config.run_id)
        is_first, restarts = os.environ.get("SLURM_PROCID") == "0", int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        if is_first and not restarts:
            folder.cancelled.unlink(missing_ok=True)
        try:
            set_process_defaults()
            code = train_here(config)
        except NoetherError as error:
            error = as_typed_here(error)
            print(f"noether: {shown(str(error), error.code)}", flush=True)
            code = int(error.exit_code)
        if code == ExitCode.DONE:
            return code
        if code == ExitCode.CHECKPOINTED:
            if not is_first:
                _leave(0)  # Another code could make srun kill rank 0 while that asks for the requeue.
            self._requeue(folder, restarts)
        _leave(code)

    def checkpoint(self) -> Any:
        """Handles submitit's signal if it arrives before the trainer handles signals: requeues the same run."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _requeue(self, folder: RunFolder, restarts: int) -> None:
        stopped = read_record(folder.stopped)
        texts = outcomes(folder.path, self.max_requeues)
        if folder.cancelled.exists():
            said = texts["cancelled"]
        elif stopped.get("reason") == REQUEUED_BY_SLURM:
            said = texts["ended_by_slurm"]
        elif restarts >= self.max_requeues:
            said = texts["requeued_too_often"]
        elif is_count(stalled := stopped.get("attempts_without_progress")) and stalled >= STALLED_LIMIT:
            said = texts["stalled"]
        else:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # A requeue sends it, and the outcome must still be printed.
            try:
                run_slurm(["scontrol", "requeue", job_of_task() or ""])
                said = texts["requeued"]
            except SlurmError as error:
                said = f"{texts['requeue_refused']}: {error}\n"
                said += f"noether: to continue: cd {shlex.quote(os.getcwd())} && {continue_line(folder.path, 'submit')}"
        print(said, flush=True)


def submit_by_submitit(job: TrainingJob) -> list[tuple[str, str]]:
    """Submits a job, or the array of a sweep. Returns each run's job id ("12", "12_3") and output file.

    Raises:
        SlurmError: sbatch refuses the job.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError

    executor = SlurmExecutor(str(job.folder), max_num_timeout=job.slurm.max_requeues)
    # submitit's names have underscores where sbatch's have hyphens.
    options = {name.replace("-", "_"): value for name, value in job_options(job).items()}
    own = ("job_name", "nodes", "ntasks_per_node", "signal", "open_mode", "array")
    cpus = [f"--cpus-per-task={job.slurm.cpus_per_task}"] if job.slurm.cpus_per_task else []
    parallelism = {"array_parallelism": job.slurm.slurm_array_parallelism or len(job.runs)}
    executor.update_parameters(
        **{name: options[name] for name in own[:3]},
        time=None,  # submitit's own default is 5 minutes; with None the cluster's default applies.
        wckey=None,
        signal_delay_s=job.slurm.slurm_signal_delay_s,
        setup=[f"unset {STRIPPED}", *job.slurm.slurm_setup],
        srun_args=["--kill-on-bad-exit=1", "--wait=60", *cpus],
        stderr_to_stdout=True,
        additional_parameters={name: value for name, value in options.items() if name not in own},
        **(parallelism if job.is_array else {}),
    )
    calls = [TrainJob(run.config.model_dump(mode="json"), job.slurm.max_requeues) for run in job.runs]
    before, mask = dict(os.environ), os.umask(0o077)
    os.umask(mask | 0o022)  # The pickled code will run as this user, so nobody else may be able to change it.
    os.environ.clear()
    os.environ.update(clean_environment(before))
    try:
        submitted = executor.submit_array(calls)
    except FailedJobError as error:
        raise SlurmError(f"sbatch refused\n  seen      {str(error).strip()}") from None
    finally:
        os.umask(mask)
        os.environ.clear()
        os.environ.update(before)
    return [(one.job_id, str(one.paths.stdout)) for one in submitted]


def _leave(code: int) -> NoReturn:
    """Exits without shutting down the interpreter, as the commands do once torch is imported."""
    from noether.workers.worker import flush_output

    flush_output()
    os._exit(code)
