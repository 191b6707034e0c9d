"""Refuses additional sbatch options that contradict the slurm section, and names the setting to use instead."""

import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from noether.errors import RequestError

if TYPE_CHECKING:
    from noether.config.slurm import SlurmConfig

SAME_VALUE: Mapping[str, str] = {
    "nodes": "nodes",
    "partition": "slurm_partition",
    "ntasks-per-node": "tasks_per_node",
    "tasks-per-node": "tasks_per_node",
    "cpus-per-task": "cpus_per_task",
    "account": "slurm_account",
    "qos": "slurm_qos",
    "constraint": "slurm_constraint",
}
"""Options of sbatch for which the section has a key that takes the same values."""
OWN_OPTIONS: Mapping[str, str] = {
    **SAME_VALUE,
    **dict.fromkeys(("nodelist", "nodefile"), "nodelist"),
    **dict.fromkeys(("gpus-per-node", "gpus", "gpus-per-task", "gpus-per-socket"), "gpus_per_node"),
    **dict.fromkeys(("ntasks-per-gpu", "ntasks-per-tres", "ntasks"), "tasks_per_node"),
    **dict.fromkeys(("output", "error"), "folder"),
    "exclude": "slurm_exclude",
    "mem": "mem_gb",
    "time": "timeout_min",
    "signal": "slurm_signal_delay_s",
}
"""All options of sbatch for which the section has a key."""
FIXED_OPTIONS: Mapping[str, str] = {
    "open-mode": "leave {name} out",
    "requeue": "slurm.max_requeues=VALUE",
    "no-requeue": "slurm.max_requeues=0",
    "array": "noether submit -m KEY=VALUE,VALUE      (and slurm.slurm_array_parallelism=VALUE)",
    "job-name": "run_id=NAME",
    "wrap": "slurm.slurm_setup='[COMMAND]'",
    "chdir": "cd FOLDER      (before noether submit)",
    "wait": "noether logs RUN -f      (after noether submit)",
    "test-only": "noether submit --dry-run …",
}
"""Options that `noether submit` needs for itself, to requeue the job or find it again, and what to use instead."""
EXCLUSIVE_OPTIONS: Mapping[str, str] = {
    "mem-per-cpu": "mem_gb",
    "mem-per-gpu": "mem_gb",
    "cpus-per-gpu": "cpus_per_task",
}
"""Options that sbatch accepts only if a certain key of the section is not set."""


def refuse_contradictions(slurm: "SlurmConfig") -> None:
    """Checks a job's additional options against the slurm section, from which the job is planned.

    Raises:
        RequestError: an option has its own setting, is needed by `noether submit` itself, or conflicts with a setting.
        ValueError: a name is not a long option of sbatch.
    """
    for name, value in slurm.slurm_additional_parameters.items():
        option = name.replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z0-9-]+", option) or "\n" in str(value):
            raise ValueError(
                f"slurm_additional_parameters: {name!r} is not a long option of sbatch; write mail-type: END"
            )
        seen = f"slurm.slurm_additional_parameters.{name}={value}"
        option = _in_full(option)
        if option in ("gres", "tres-per-task") and "gpu" in re.split(r"[,:=/]", str(value)):
            raise RequestError(
                f"--{option} asks for GPUs, for which there is a setting",
                seen=seen,
                expected="slurm.gpus_per_node, which determines the tasks per node and the plan of the job",
                fix=_gpus_fix(slurm, name, option, str(value)),
            )
        if option in OWN_OPTIONS:
            key = f"slurm.{OWN_OPTIONS[option]}"
            fix = f"{key}={value if option in SAME_VALUE else 'VALUE'}      (in place of {seen.partition('=')[0]})"
            raise RequestError(
                f"--{option} has its own setting",
                seen=seen,
                expected=f"{key}, which the plan of the job uses",
                fix=_gpus_fix(slurm, name, option, str(value)) if key == "slurm.gpus_per_node" else fix,
            )
        if option in FIXED_OPTIONS:
            raise RequestError(
                f"--{option} is set by noether submit",
                seen=seen,
                expected="other options: this one is needed to requeue the run and to find it",
                fix=FIXED_OPTIONS[option].format(name=f"slurm.slurm_additional_parameters.{name}"),
            )
        beside = EXCLUSIVE_OPTIONS.get(option)
        if beside and getattr(slurm, beside) is not None:
            raise RequestError(
                f"--{option} contradicts slurm.{beside}",
                seen=f"{seen}, slurm.{beside}={getattr(slurm, beside)}",
                expected="one of the two: sbatch refuses both together",
                fix=f"slurm.{beside}=null      (or leave slurm.slurm_additional_parameters.{name} out)",
            )


def _in_full(option: str) -> str:
    """Returns the full name of an abbreviated option, as sbatch would read it (getopt_long), if it is listed here."""
    known = [*OWN_OPTIONS, *FIXED_OPTIONS, *EXCLUSIVE_OPTIONS]
    return option if option in known else next((name for name in known if name.startswith(option)), option)


def _gpus_fix(slurm: "SlurmConfig", name: str, option: str, value: str) -> str:
    """Returns the setting for GPUs that were asked for by another option, plus the other resources of a --gres."""
    parts = value.split(",")
    asked = next((part for part in parts if "gpu" in re.split(r"[:=/]", part)), parts[0])
    others = [part for part in parts if part != asked] if option == "gres" else []
    kind, _, number = re.sub(r"^(gres[/:])?gpu\b[:=]?", "", asked).rpartition(":")
    count = int(number or 1) if not number or number.isdigit() else None
    if count is not None and option == "gpus":
        count = count // slurm.nodes if count % slurm.nodes == 0 else None
    elif count is not None and option in ("gpus-per-task", "tres-per-task"):
        count *= slurm.tasks_per_node or 1
    elif option == "gpus-per-socket":
        count = None
    fix = f"slurm.gpus_per_node={f'{kind}:' * bool(kind)}{'VALUE' if count is None else count}"
    own = f"slurm.slurm_additional_parameters.{name}"
    return f"{fix} {own}={shlex.quote(','.join(others))}" if others else f"{fix}      (in place of {own})"
