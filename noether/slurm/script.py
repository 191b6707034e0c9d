"""Writes the job script, made to be read: everything between sbatch and the trainer, and nothing else."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from noether import __version__
from noether.config.sweep import override_value
from noether.slurm.job import Options, TrainingJob, job_options

STALLED_LIMIT = 3
"""After this many starts in a row that saved nothing new, a job is not queued again."""

CANCELLED = "noether: cancelled; everything is saved in {run}"
ENDED_BY_SLURM = "noether: Slurm ended the job; everything is saved in {run}"
REQUEUED_TOO_OFTEN = "noether: queued again {max_requeues} times already (slurm.max_requeues); submit it again to go on"
STALLED = f"noether: {STALLED_LIMIT} starts in a row saved nothing new; not queued again"
REQUEUED = "noether: everything is saved in {run}; queued again"
REQUEUE_REFUSED = "noether: everything is saved in {run}, but Slurm refused to queue the job again"

# Variables that a launcher sets for its ranks, and those that a step passes to jobs submitted from it.
# sbatch passes on the environment it is called in; inside the job these would describe another launch.
STRIPPED = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR MASTER_PORT \\\n"
    "    ${!TORCHELASTIC_*} ${!OMPI_*} ${!PMI*} \\\n"
    "    ${!SLURM_STEP*} ${!SLURM_PTY*} ${!SLURM_CPU_BIND*} ${!SLURM_MEM_BIND*}"
)

HEAD = """\
#!/bin/bash
# Written by noether {version} submit. To start it: sbatch FILE
{options}

# What another launcher, or another job's step, has left in the environment is not this job's.
unset {stripped}
{setup}
{runs}
restarts=${{SLURM_RESTART_COUNT:-0}}
[ "$restarts" -gt 0 ] || rm -f "$run/cancelled"
rm -f "$run/stopped.json"
# For `noether status` and `logs`: the job, and the file that it writes to.
output=$(readlink "/proc/$$/fd/1" | sed 's/["\\\\]/\\\\&/g')
mkdir -p "$run" && printf '{{"job": "%s", "output": "%s"}}\\n' "{job_id}" "$output" > "$run/.job.json" &&
    mv "$run/.job.json" "$run/job.json"

# When Slurm ends a job it signals this shell too, which stays to learn how the ranks ended.
ended_by_slurm=no
trap 'ended_by_slurm=yes' TERM
{srun}
code=$?
trap - TERM

# The ranks leave with 75 when they have saved everything. --kill-on-bad-exit may kill some while they leave, and srun's
# code is then theirs; stopped.json was written before the first one left.
[ -e "$run/stopped.json" ] && code=75
[ "$code" -eq 75 ] || exit "$code"
"""

SETUP_END = """
# Whatever these lines have set: a code that is not 0 is heard below, and does not end the script.
set +e +o pipefail
"""

REQUEUE = """\

# Starts in a row, this one included, that have saved nothing new.
stalled=$(sed -n 's/.*"attempts_without_progress": \\([0-9]*\\).*/\\1/p' "$run/stopped.json" 2>/dev/null)
if [ -e "$run/cancelled" ]; then
    echo "{cancelled}"
elif [ "$ended_by_slurm" = yes ]; then
    echo "{ended_by_slurm}"
elif [ "$restarts" -ge {max_requeues} ]; then
    echo "{requeued_too_often}"
elif [ "${{stalled:-0}}" -ge {stalled_limit} ]; then
    echo "{stalled}"
else
    trap '' TERM  # Which a requeue sends to this shell too: what became of it is still to be said.
    if said=$(scontrol requeue "{job_id}" 2>&1); then
        echo "{requeued}"
    else
        echo "{requeue_refused}: $said"
        cp "$0" "$run/job.sh"  # Slurm's copy of this script goes with the job.
        echo "noether: to go on: cd $(printf %q "$PWD") && sbatch {element}$(printf %q "$run/job.sh")"
    fi
fi
exit "$code"
"""


def render_script(job: TrainingJob, *, program: Sequence[str] | None = None) -> str:
    """Returns the job's script.

    Args:
        job: from `describe_job`.
        program: how noether is started on the nodes; None: by this Python, or inside the container.
    """
    options = {**job_options(job), "output": job.output}
    # A job of an array is one element: by the array's id every element would be queued again.
    job_id = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if job.is_array else "$SLURM_JOB_ID"
    head = HEAD.format(
        job_id=job_id,
        version=__version__,
        options="\n".join(_sbatch_line(name, options) for name in options),
        stripped=STRIPPED,
        setup="".join(f"\n{line}" for line in job.slurm.slurm_setup) + (SETUP_END if job.slurm.slurm_setup else ""),
        runs=_runs(job),
        srun=_srun(job, program),
    )
    words = {"run": "$run", "max_requeues": job.slurm.max_requeues}
    return head + REQUEUE.format(
        job_id=job_id,
        element="--array=$SLURM_ARRAY_TASK_ID " if job.is_array else "",
        max_requeues=job.slurm.max_requeues,
        stalled_limit=STALLED_LIMIT,
        cancelled=CANCELLED.format(**words),
        ended_by_slurm=ENDED_BY_SLURM.format(**words),
        requeued_too_often=REQUEUED_TOO_OFTEN.format(**words),
        stalled=STALLED,
        requeued=REQUEUED.format(**words),
        requeue_refused=REQUEUE_REFUSED.format(**words),
    )


def train_words(job: TrainingJob) -> list[str]:
    """Returns the arguments after `noether` that all runs of the job share.

    What was said of the place is in the script's options: someone who edits those need not edit it twice.
    """
    settings = [text for text in job.shared if not text.lstrip("+~").startswith("slurm.")]
    return ["train", *(["--hp", job.hp] if job.hp else []), *settings]


def is_apptainer(image: str) -> bool:
    """Returns whether an image is for Apptainer; any other is left to pyxis."""
    return Path(image).suffix == ".sif"


def _sbatch_line(name: str, options: Options) -> str:
    value = options[name]
    return f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={shlex.quote(str(value))}"


def _runs(job: TrainingJob) -> str:
    output = shlex.quote(str(job.output_path))
    if not job.is_array:
        return f"run={output}/{shlex.quote(job.name)}"
    cases = [f"    {index}) overrides=({shlex.join(run.overrides)}) ;;" for index, run in enumerate(job.runs)]
    lines = ["case $SLURM_ARRAY_TASK_ID in", *cases, "esac"]
    return "\n".join([*lines, f"run={output}/{shlex.quote(job.name)}-$SLURM_ARRAY_TASK_ID"])


def _mounts(job: TrainingJob) -> list[str]:
    """Returns the mounts of the container beside the working directory: those asked for, and those the run needs.

    A folder that is still to be made is mounted with the nearest one above it that is there.
    """
    mounts = list(job.slurm.container_mounts)
    needed = [job.output_path, job.runs[0].config.dataset_root, Path(job.hp).parent if job.hp else None]
    for path in (Path(os.path.abspath(path.expanduser())) for path in needed if path is not None):
        there = next(folder for folder in (path, *path.parents) if folder.is_dir())
        # For a mount with another name inside (/data:/mnt), the setting must use the inside name.
        seen = [Path.cwd(), *(Path(mount) for mount in mounts if ":" not in mount)]
        if there != Path("/") and not any(there.is_relative_to(folder) for folder in seen):
            mounts.append(str(there))
    return mounts


def _srun(job: TrainingJob, program: Sequence[str] | None) -> str:
    slurm = job.slurm
    # srun no longer takes --cpus-per-task from sbatch (Slurm 22.05, release notes).
    cpus = [f"--cpus-per-task={slurm.cpus_per_task}"] if slurm.cpus_per_task else []
    srun = ["srun", "--kill-on-bad-exit=1", "--wait=60", *cpus]
    words = [[*(program or (sys.executable, "-m", "noether"))]]
    if slurm.container and is_apptainer(slurm.container):
        binds = [part for mount in _mounts(job) for part in ("--bind", mount)]
        gpu = ["--nv"] if job.plan.placement.workers[0].device.kind == "cuda" else []
        words = [["apptainer", "exec", *gpu, *binds, slurm.container], [*(program or ("noether",))]]
    elif slurm.container:
        pairs = (mount if ":" in mount else f"{mount}:{mount}" for mount in _mounts(job))
        mounts = ",".join(["$PWD:$PWD", *pairs])
        srun += [f"--container-image={slurm.container}", f"--container-mounts={mounts}", "--container-workdir=$PWD"]
        words = [[*(program or ("noether",))]]
    lines = [" ".join(_quoted(word) for word in srun), *(shlex.join(line) for line in words[:-1])]
    own = ["output_path=" + override_value(str(job.output_path)), "resume=auto"]
    if job.is_array:  # Of the first run's name, with the shell's variable for its number.
        head, _, tail = override_value(f"{job.name}-0").rpartition("0")
        name = shlex.quote(f"run_id={head}") + '"$SLURM_ARRAY_TASK_ID"' + (shlex.quote(tail) if tail else "")
    else:
        name = shlex.quote(f"run_id={override_value(job.name)}")
    sweep = ' "${overrides[@]}"' if job.is_array else ""
    lines.append(shlex.join([*words[-1], *train_words(job)]) + sweep)
    lines.append(f"{name} {shlex.join(own)}")
    return " \\\n    ".join(lines)


def _quoted(word: str) -> str:
    return '"$PWD"'.join(shlex.quote(part) if part else "" for part in word.split("$PWD"))
