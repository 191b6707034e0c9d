"""Read facts about this process that environment variables may not show, such as its parents and its cgroup."""

import contextlib
import os
import re
import socket
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from noether.common.container import container_engine
from noether.common.processes import ancestors

SHELLS = ("bash", "sh", "dash", "zsh", "ksh", "tcsh", "csh", "fish", "ash", "busybox")
MAX_ANCESTORS = 64
# The number of characters to read of a command line: a name and a shell's options fit, and the rest is private.
MAX_COMMAND = 200

_STEP_TITLE = re.compile(r"slurmstepd: \[([0-9]+)(?:[+_][0-9]+)?\.([0-9]+|batch|extern|interactive)(?:\+[0-9]+)?\]")
# cgroup v1: /slurm/uid_0/job_13/step_0; v2: /system.slice/slurmstepd.scope/job_13/step_batch/user/task_0.
_STEP_CGROUP = re.compile(r"/job_([0-9]+)/step_([0-9]+|batch|extern|interactive)(?:/|\s|$)")


@dataclass(frozen=True)
class ProcessFacts:
    """Facts that the system shows about this process, in addition to its environment. By default nothing is known.

    `ancestors`: the command lines of its ancestors in this PID namespace, as `ps` shows them, nearest ancestor first.
    `cgroup`: the text of /proc/self/cgroup. `container`: the name of the container engine, or "" outside a container.
    `nvidia_kernel`: whether the kernel has NVIDIA GPUs, which is visible inside a container too. `amd_driver`: whether
    AMD's driver is loaded. `full_name`: this host's name with its domain, from /etc/hosts.
    """

    stdin_is_terminal: bool = False
    ancestors: tuple[str, ...] = ()
    cgroup: str = ""
    container: str = ""
    nvidia_kernel: bool = False
    amd_driver: bool = False
    full_name: str = ""


NOTHING_KNOWN = ProcessFacts()


@dataclass(frozen=True)
class StepSeen:
    """The Slurm step that runs this process: `step` is a number, "batch", "interactive" or "extern"."""

    job_id: str
    step: str
    evidence: str


def read_process_facts(proc: Path = Path("/proc")) -> ProcessFacts:
    """Read facts about this process. A fact stays unknown if it cannot be read (not on Linux, hidden processes)."""
    nvidia = False
    with contextlib.suppress(OSError):
        nvidia = any((proc / "driver" / "nvidia" / "gpus").iterdir())
    cgroup, name = _text(proc / "self" / "cgroup"), full_name(_text(Path("/etc/hosts")), socket.gethostname())
    amd = os.path.exists("/dev/kfd")
    return ProcessFacts(os.isatty(0), _ancestors(proc), cgroup, container_engine(os.environ), nvidia, amd, name)


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def full_name(hosts: str, host: str) -> str:
    """Return the name of `host` with its domain, from the text of /etc/hosts (hosts(5)), or "" if it is not there."""
    for line in hosts.splitlines():
        names = line.partition("#")[0].split()[1:]
        if host in names:
            return next((name for name in names if name == host or name.startswith(f"{host}.") if "." in name), "")
    return ""


def _ancestors(proc: Path) -> tuple[str, ...]:
    lines: list[str] = []
    with contextlib.suppress(OSError):
        for pid, name in islice(ancestors(proc), MAX_ANCESTORS):
            command = (proc / str(pid) / "cmdline").read_bytes()[:MAX_COMMAND].replace(b"\0", b" ").strip()
            lines.append(command.decode(errors="replace") or name)
    return tuple(lines)


def step_seen(facts: ProcessFacts) -> StepSeen | None:
    """Return the Slurm step that this process runs in, read from its nearest ancestor slurmstepd, else from its cgroup.

    slurmstepd's command line is `slurmstepd: [JOB.STEP]`. A container that shares the host's process list shows it too.
    """
    for line in facts.ancestors:
        if match := _STEP_TITLE.match(line):
            return StepSeen(match[1], match[2], f"its ancestor process is {match[0]}")
    match = _STEP_CGROUP.search(facts.cgroup)
    return StepSeen(match[1], match[2], f"its cgroup is …{match[0].strip().rstrip('/')}") if match else None


def interactive_shell(facts: ProcessFacts) -> str | None:
    """Return the command line of the nearest interactive shell among this process's ancestors, up to slurmstepd.

    Return "" if slurmstepd is visible but no such shell is below it, and None if neither is visible.
    `bash script.sh` and `bash -c …` are wrappers that a launcher started, not interactive shells.
    """
    for line in facts.ancestors:
        if _STEP_TITLE.match(line):
            return ""
        if _is_interactive(line):
            return line
    return None


def _is_interactive(line: str) -> bool:
    program, *arguments = line.split() or [""]
    if program.removeprefix("-").rpartition("/")[2] not in SHELLS:
        return False
    if "-i" in arguments:
        return True
    return all(word.startswith("-") and (word.startswith("--") or "c" not in word) for word in arguments)
