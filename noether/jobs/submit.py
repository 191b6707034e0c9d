"""Carry out `noether submit`: submit the job, or print its script or its plan."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from noether.common.errors import ExitCode, RequestError
from noether.core.data.build import check_data
from noether.jobs.job import TrainingJob, describe_job, describe_plan, describe_script
from noether.jobs.script import is_apptainer, render_script
from noether.launch.detect.slurm.queue import clean_environment, has_slurm, queued_jobs, run_slurm
from noether.runs.folder import RunFolder
from noether.runs.overview import job_in_queue
from noether.runs.records import write_record
from noether.training.preflight import check_own_code, check_software


def submit_here(
    overrides: Sequence[str], hp: str | None = None, *, multirun: bool = False, script: bool = False,
    module: str | None = None, to_print: bool = False, dry_run: bool = False,
) -> int:  # fmt: skip
    """Check a job and submit its script, or print the script (`to_print`) or the plan (`dry_run`).

    With `script=True`, the job runs a user's script or `module`, and `overrides` are the words of `noether run`.
    RequestError: `train` or `run` would raise it too; or there is no Slurm; or the run is already in the queue.
    """
    job = _in_this_container(describe_script(overrides, module)) if script else described_here(overrides, hp, multirun)
    if dry_run:
        _check_as_train_does(job)
        print(*describe_plan(job), "", sep="\n")
        print(render_script(job), end="")
        return ExitCode.DONE
    if to_print or (not has_slurm() and not sys.stdout.isatty()):
        return _print_script(job)
    own = [*(["-m"] if multirun else []), *(["--hp", hp] if hp else []), *overrides]
    words = ["run", "--print", *job.shared, *job.script] if script else ["--print", *own]
    job_id, output = send(job, words)
    print(*describe_plan(job), sep="\n")
    print(f"submitted as job {job_id.partition('_')[0]}; to follow it:")
    of_run = f"  noether status\n  noether logs {shlex.quote(str(job.runs[0].folder))} -f" if job.runs else ""
    print(of_run or f"  squeue --me\n  tail -F {output}")
    return ExitCode.DONE


def send(job: TrainingJob, words: Sequence[str]) -> tuple[str, str]:
    """Submit a job; return its id (for an array, the id of its first element) and the path of its output.

    RequestError: a run is already in the queue, or there is no Slurm (then the fix is `noether submit WORDS`).
    """
    if not has_slurm():
        line = shlex.join(["noether", "submit", *words])
        raise RequestError("no-slurm", "there is no Slurm here", seen="no sbatch on the PATH",
                           expected="the login node of a cluster, or --print to write the script to standard output",
                           fix=f"{line} > job.sh      (or … | ssh LOGIN sbatch)")  # fmt: skip
    _refuse_missing_image(job)
    _check_as_train_does(job)
    _refuse_queued(job)
    _make_folder(job)
    started = _submit_script(job)
    for run, (job_id, output) in zip(job.runs, started[: len(job.runs)], strict=True):
        # Record the job in the run's folder, so that `noether status` lists a run that is still waiting.
        folder = RunFolder(run.folder)
        folder.cancelled.unlink(missing_ok=True)
        write_record(folder.job, {"job": job_id, "output": os.path.abspath(output)})
    return started[0]


def _submit_script(job: TrainingJob) -> list[tuple[str, str]]:
    said = run_slurm(["sbatch", "--parsable"], render_script(job), clean_environment())
    job_id = said.strip().partition(";")[0]  # If there are several clusters, sbatch appends ";CLUSTER".
    if job.script:
        return [(job_id, shlex.quote(job.output).replace("%A_%a", f"{job_id}_*").replace("%j", job_id))]
    elements = [f"{job_id}_{index}" for index in range(len(job.runs))] if job.is_array else [job_id]
    return [(one, job.output.replace("%A_%a", one).replace("%j", one)) for one in elements]


def _print_script(job: TrainingJob) -> int:
    # Do not refuse a run that is in the queue: with resume=auto, both scripts would continue the same run.
    print(render_script(job), end="")
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        what = f"create the folder {job.folder} on the machine that submits the job, as Slurm does not"
        print(f"noether: {what}", file=sys.stderr)
    return ExitCode.DONE


def described_here(overrides: Sequence[str], hp: str | None, multirun: bool = False) -> TrainingJob:
    """Return the job that `submit` would submit from this process, which may run in a container."""
    return _in_this_container(describe_job(overrides, hp, multirun=multirun))


def _in_this_container(job: TrainingJob) -> TrainingJob:
    """If this process runs in an image (`apptainer run noether.sif submit …`), run the job in the same image."""
    image = os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")
    if not image or job.slurm.container:
        return job
    if not is_apptainer(image):
        raise RequestError("image-not-on-nodes", "the compute nodes cannot open this image",
                           seen=f"APPTAINER_CONTAINER={image}",
                           expected="a .sif file on a file system that the nodes share",
                           fix="slurm.container=noether.sif")  # fmt: skip
    return replace(job, slurm=job.slurm.model_copy(update={"container": image}))


def _check_as_train_does(job: TrainingJob) -> None:
    """Refuse what `train` would refuse on the nodes, unless the job prepares software that is missing here."""
    if not job.slurm.container and not job.slurm.slurm_setup:
        for config in job.configs:
            check_software(config, job.placement)
            check_data(config)
            check_own_code(config, job.batch.accumulation_steps if job.batch else 1)


def _make_folder(job: TrainingJob) -> None:
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError("job-folder-not-created", f"the folder {job.folder} for the job's output cannot be created",
                           seen=f"slurm.folder={job.slurm.folder}: {error.strerror}",
                           expected="a folder that is writable, also from the nodes",
                           fix="slurm.folder=FOLDER") from None  # fmt: skip


def _refuse_missing_image(job: TrainingJob) -> None:
    image = job.slurm.container
    # Printed scripts are not checked, because another machine that submits the script may have the image.
    if image and is_apptainer(image) and not Path(image).is_file():
        raise RequestError("no-such-image", f"no such image: {image}",
                           seen=f"slurm.container={image}, no such file from {Path.cwd()}",
                           expected="a .sif file on a file system that the nodes share",
                           fix="slurm.container=/path/to/noether.sif")  # fmt: skip


def _refuse_queued(job: TrainingJob) -> None:
    queued = queued_jobs()
    for run in job.runs:
        if known := job_in_queue(RunFolder(run.folder), queued):
            raise RequestError("run-already-queued", f"the run {run.folder} is already in the queue",
                               seen=f"job {known.job_id}, {known.state}", expected="one job per run",
                               fix=f"noether cancel {run.folder}      (or another run_id)")  # fmt: skip
