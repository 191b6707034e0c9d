"""Write the job script from its template, job.sh.jinja. Users should be able to read and change the script.

The script contains everything that happens between sbatch and `noether train`, and nothing else.
"""

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from noether import __version__
from noether.common.errors import signal_code
from noether.common.processes import JOB_STOP_SIGNAL
from noether.config.sweep import override_value
from noether.jobs.job import TrainingJob, job_options
from noether.launch.detect.slurm.queue import RANK_VARIABLES

STALLED_LIMIT = 3
"""After this many consecutive attempts without a new checkpoint, a job is not requeued."""

# Variables that a launcher sets for its ranks, or that Slurm sets in a step. sbatch copies its environment to the job,
# so unless the script removes these variables, the job sees those of another launch.
STRIPPED = (
    f"{' '.join(RANK_VARIABLES)} \\\n"
    "    ${!TORCHELASTIC_*} ${!OMPI_*} ${!PMI*} \\\n"
    "    ${!SLURM_STEP*} ${!SLURM_PTY*} ${!SLURM_CPU_BIND*} ${!SLURM_MEM_BIND*}"
)

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters.update(quoted=lambda value: shlex.quote(str(value)), joined=shlex.join)


def render_script(job: TrainingJob, *, program: Sequence[str] | None = None) -> str:
    """Return the text of the job script.

    `program`: the words that start noether on the nodes; None: this Python, or the command in the container.
    """
    options = {**job_options(job), "output": job.output}
    # In an array, the id is that of an element, because a requeue by the array's id would requeue every element.
    job_id = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if job.is_array else "$SLURM_JOB_ID"
    element, kept = "--array=$SLURM_ARRAY_TASK_ID " if job.is_array else "", '"$run/job.sh"'
    if job.script:  # A user can make the job an array when submitting the script.
        job_id, element = "$job", "${SLURM_ARRAY_TASK_ID:+--array=$SLURM_ARRAY_TASK_ID }"
        kept = f'{shlex.quote(str(job.folder))}/"$job.sh"'
    return _TEMPLATES.get_template("job.sh.jinja").render(
        job=job, job_id=job_id, version=__version__, options=options, stripped=STRIPPED, srun=_srun(job, program),
        element=element, kept=kept, setup=job.slurm.slurm_setup,
        max_requeues=job.slurm.max_requeues, stalled_limit=STALLED_LIMIT,
        stop_signal=JOB_STOP_SIGNAL, stop_code=signal_code(signal.Signals[f"SIG{JOB_STOP_SIGNAL}"]),
    )  # fmt: skip


def is_apptainer(image: str) -> bool:
    """Return whether an image is a .sif file, which Apptainer runs; pyxis runs any other image."""
    return Path(image).suffix == ".sif"


def _mounts(job: TrainingJob) -> list[str]:
    """Return the mounts of the container: those that the user requested, and the folders that the runs need.

    The working directory is not included. Instead of a folder that does not exist, its nearest parent is mounted.
    """
    mounts = list(job.slurm.container_mounts)
    for path in (Path(os.path.abspath(path.expanduser())) for path in job.folders):
        there = next(folder for folder in (path, *path.parents) if folder.is_dir())
        # A mount such as /data:/mnt does not count, because the folder has another path in the container.
        seen = [Path.cwd(), *(Path(mount) for mount in mounts if ":" not in mount)]
        if there != Path("/") and not any(there.is_relative_to(folder) for folder in seen):
            mounts.append(str(there))
    return mounts


def _srun(job: TrainingJob, program: Sequence[str] | None) -> str:
    slurm = job.slurm
    program = program or (("noether",) if slurm.container else (sys.executable, "-m", "noether"))
    # Since Slurm 22.05, srun does not inherit --cpus-per-task from sbatch (release notes).
    cpus = [f"--cpus-per-task={slurm.cpus_per_task}"] if slurm.cpus_per_task else []
    srun, container = ["srun", "--kill-on-bad-exit=1", "--wait=60", *cpus], []
    if job.script:  # The ranks of a script can end at any time, so `noether run`, not srun, ends the remaining ranks.
        srun = ["srun", "--kill-on-bad-exit=0", "--wait=0", *cpus]
    if slurm.container and is_apptainer(slurm.container):
        binds = [part for mount in _mounts(job) for part in ("--bind", mount)]
        gpu = ["--nv"] if job.placement.workers[0].device.kind == "cuda" else []
        container = [shlex.join(["apptainer", "exec", *gpu, *binds, slurm.container])]
    elif slurm.container:
        pairs = (mount if ":" in mount else f"{mount}:{mount}" for mount in _mounts(job))
        mounts = ",".join(["$PWD:$PWD", *pairs])
        srun += [f"--container-image={slurm.container}", f"--container-mounts={mounts}", "--container-workdir=$PWD"]
    # Pass the slurm settings too, so that the run records them: `noether submit resume=RUN` reads them from the run.
    asked = [word for word in job.shared if word.lstrip("+~").startswith("slurm.")]
    others = [word for word in job.shared if word not in asked]
    if job.script:
        run = shlex.join([*program, "run", *others, *job.script])
        return " \\\n    ".join([" ".join(map(_quoted, srun)), *container, run])
    train = shlex.join([*program, "train", *(["--hp", job.hp] if job.hp else []), *others])
    own = shlex.join(["output_path=" + override_value(str(job.output_path)), "resume=auto"])
    name = shlex.quote(f"run_id={override_value(job.name)}")
    if job.is_array:  # Use the first run's name, with a shell variable instead of its index.
        head, _, tail = override_value(f"{job.name}-0").rpartition("0")
        name = shlex.quote(f"run_id={head}") + '"$SLURM_ARRAY_TASK_ID"' + (shlex.quote(tail) if tail else "")
        train += ' "${overrides[@]}"'
    lines = [" ".join(map(_quoted, srun)), *container, train, *([shlex.join(asked)] if asked else []), f"{name} {own}"]
    return " \\\n    ".join(lines)


def _quoted(word: str) -> str:
    return '"$PWD"'.join(shlex.quote(part) if part else "" for part in word.split("$PWD"))
