"""Do the ranks find each other? The rules about master address, port and network interfaces."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from noether.environments.slurm.nodelist import parse_nodelist
from noether.errors import RequestError
from noether.lint.finding import Edit, Finding
from noether.lint.hosts import FIRST_HOST, picks_later_host
from noether.lint.job import Job
from noether.lint.launch import PER_TASK_VARIABLES
from noether.lint.shell import Command, unquote

HEAD = f"MASTER_ADDR={FIRST_HOST}"
PORT = "MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))"
_HOSTNAME = re.compile(r"\$\(\s*hostname[^|)]*\)|`hostname[^`]*`|\$\{?(HOSTNAME|SLURMD_NODENAME)\b")
_MASTER_NAMES = ("MASTER_ADDR", "master_addr", "rdzv_endpoint", "main_process_ip")
_PORT_NAMES = ("MASTER_PORT", "master_port", "main_process_port")


@dataclass(frozen=True)
class _Setting:
    """A place where the script names a master or a port: its text, unexpanded, and whether each task evaluates it."""

    name: str
    raw: str
    line: int
    per_task: bool


def _settings(job: Job) -> list[_Setting]:
    found = []
    for command in job.script.commands:
        found += _assigned(command, False)
    for launch in job.launches:
        inside_shell = launch.layer("shell") is not None and launch.layer("srun") is not None
        for command in launch.per_task:
            found += _assigned(command, launch.layer("srun") is not None)
        for layer in launch.layers:
            if layer.kind == "per-node":
                for name, raw in layer.options.items():
                    if name in _MASTER_NAMES + _PORT_NAMES:
                        found.append(_Setting(name, raw, layer.line, inside_shell))
    return found


def _assigned(command: Command, per_task: bool) -> list[_Setting]:
    pairs = [(name, word.raw, word.line) for name, word in command.assignments]
    for word in command.words:
        match = re.fullmatch(r"(MASTER_ADDR|MASTER_PORT)=(.*)", word.raw, re.DOTALL)
        if match and command.name in ("export", "declare", "env"):
            pairs.append((match[1], match[2], word.line))
    return [_Setting(n, raw, line, per_task) for n, raw, line in pairs if n in ("MASTER_ADDR", "MASTER_PORT")]


def master(job: Job) -> Iterator[Finding]:
    """master-per-task, master-is-localhost, master-fixed, master-not-first, master-not-a-host, master-of-the-job."""
    shapes = [job.step_shape(launch) or job.shape for launch in job.trainings] or [job.shape]
    nodes = max(shape.nodes for shape in shapes) if len(job.components) == 1 else sum(s.nodes for s in job.shapes)
    several = max(nodes, job.shape.nodes) > 1
    listed = job.options.value("nodelist") or ""
    c10d = any(
        (layer.option("rdzv_backend") or "") in ("c10d", "etcd", "etcd-v2")
        for launch in job.trainings
        for layer in launch.layers
    )
    for setting in _settings(job):
        if setting.name not in _MASTER_NAMES:
            continue
        text = unquote(setting.raw)
        host = text.rpartition(":")[0] if setting.name == "rdzv_endpoint" and re.search(r":[^:]*$", text) else text
        expanded = job.variables.expand(host)
        fix = (
            f"export {HEAD}"
            if setting.name == "MASTER_ADDR"
            else f'--{setting.name}="$head_node"      (head_node={HEAD[12:]})'
        )
        edit = (
            Edit(setting.line, (f"export {HEAD}",))
            if job.script.source(setting.line).startswith("export MASTER_ADDR=")
            else None
        )
        edit = (
            edit
            if job.script.source(setting.line).count("export") == 1 and ";" not in job.script.source(setting.line)
            else None
        )

        def found(rule: str, message: str, level: str = "error") -> Finding:
            return Finding(setting.line, level, rule, message, fix, edit)  # type: ignore[arg-type]  # noqa: B023

        if setting.per_task and _HOSTNAME.search(host) and several:
            yield found("master-per-task", "each task names its own host as the master")
        elif re.fullmatch(r"localhost|127\.\d+\.\d+\.\d+|::1", expanded):
            if several:
                yield found("master-is-localhost", f"{expanded} is another host on each of {job.shape.nodes} nodes")
        elif several and not c10d and _later_host(job, host):
            yield found("master-not-first", "rank 0 runs on the first node, and this is not the first")
        elif several and re.fullmatch(r"\$\(\s*scontrol\s+show\s+hostnames?\b[^|()]*\)", host):
            yield found("master-not-a-host", "scontrol show hostnames writes every host of the job, not one")
        elif re.search(r"SLURM_SUBMIT_HOST", host):
            yield found("master-not-a-host", "SLURM_SUBMIT_HOST is the login host, where no rank runs")
        elif (
            re.search(r"SLURM(_JOB|_STEP)?_NODELIST", expanded)
            and "scontrol" not in expanded
            and "noether" not in expanded
        ):
            if several and ("$(" not in expanded or re.search(r"\becho\b[^|]*\|\s*cut\s+-d\s*['\"]?,", expanded)):
                yield found("master-not-a-host", "a node list such as n[1-4] is no host name")
        elif several and not c10d and picks_later_host(expanded):
            yield found("master-not-first", "rank 0 runs on the first node, and this is not the first")
        elif re.fullmatch(r"[A-Za-z0-9][\w.-]*", expanded) and expanded not in _hosts(listed):
            level = "error" if several else "warning"
            yield found("master-fixed", f"the job may run on other nodes than {expanded}", level)
        if "SLURM_JOB_NODELIST" in expanded or "SLURM_NODELIST" in expanded:
            yield from _subset(job, setting.line)


def _later_host(job: Job, host: str) -> bool:
    """Says whether a master is an element other than the first of an array of the job's hosts."""
    element = re.fullmatch(r"\$\{(\w+)\[\s*(-?\d+)\s*\]\}", host)
    if element is None or int(element[2]) == 0:
        return False
    return re.search(rf"\b{element[1]}=\([^\n]*scontrol\s+show\s+hostname", job.script.text) is not None


def _hosts(listed: str) -> Sequence[str]:
    try:
        return parse_nodelist(listed) if listed else ()
    except RequestError:
        return ()


def _subset(job: Job, line: int) -> Iterator[Finding]:
    for launch in job.steps:
        srun = launch.layer("srun")
        if srun is None or not launch.trains or launch.line < line:
            continue
        chosen = [name for name in ("nodelist", "exclude", "relative") if srun.option(name)]
        if any("MASTER" in word or "head" in word.lower() for name in chosen for word in [srun.option(name) or ""]):
            continue
        whole = re.fullmatch(r"\$\{?SLURM(_JOB)?_NODELIST\}?", srun.option("nodelist") or "") is not None
        first = (srun.option("relative") or "") == "0" or whole
        if chosen and not first:
            message = f"the step runs on some of the job's nodes (--{chosen[0]}): the job's first node may not be in it"
            fix = "take the first host of SLURM_STEP_NODELIST, inside the step"
            yield Finding(line, "error", "master-of-the-job", message, fix)


def port(job: Job) -> Iterator[Finding]:
    """fixed-port, port-per-task."""
    for setting in _settings(job):
        text = unquote(setting.raw)
        if setting.name == "rdzv_endpoint":
            text = text.rpartition(":")[2] if ":" in text else ""
        elif setting.name not in _PORT_NAMES:
            continue
        expanded = job.variables.expand(text)
        exported = job.script.source(setting.line).strip().startswith("export MASTER_PORT=")
        alone = exported and len(job.script.source(setting.line).split()) == 2
        edit = Edit(setting.line, (f"export {PORT}",)) if alone and not setting.per_task else None
        if re.fullmatch(r"\d+", expanded) and expanded != "0":
            message = f"port {expanded} is fixed: two jobs on one node collide"
            fix = f"export {PORT}" if setting.name == "MASTER_PORT" else f"{PORT[12:]}      (in place of {expanded})"
            yield Finding(setting.line, "warning", "fixed-port", message, fix, edit)
        elif setting.per_task and re.search(r"\$\{?RANDOM|\bshuf\b|\$\(python", expanded):
            message = "each task draws a port of its own"
            yield Finding(setting.line, "error", "port-per-task", message, f"export {PORT}      (before srun)")


def early(job: Job) -> Iterator[Finding]:
    """expanded-too-early: SLURM_PROCID and the like that the batch shell replaces before srun starts a task."""
    names = "|".join(PER_TASK_VARIABLES)
    for launch in job.steps:
        for layer in launch.layers:
            if layer.kind == "per-node":
                value = layer.option("node_rank", "machine_rank")
                inner = launch.layer("shell") is not None
                match = re.search(r"@early:(\w+)@" if inner else rf"(?<!\\)\$\{{?({names})\b", value or "")
                shape = job.step_shape(launch)
                if match and value and not value.startswith("'") and shape is not None and shape.nodes > 1:
                    message = f"the batch shell expands ${match[1]} before srun: every node gets the value of the first"
                    fix = f"srun bash -c 'torchrun --node_rank=${match[1]} …'"
                    yield Finding(layer.line, "error", "expanded-too-early", message, fix)


def environment(job: Job) -> Iterator[Finding]:
    """export-drops, not-exported."""
    exported, assigned = _exports(job)
    needed = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name in exported]
    of_job = job.given("export")
    resets = any("SLURM_EXPORT_ENV" in word.raw for command in job.script.commands for word in command.words)
    for launch in job.steps:
        srun = launch.layer("srun")
        if srun is None or not launch.trains:
            continue
        own = srun.option("export")
        value = own if own is not None else of_job.value if of_job and not resets else "ALL"
        names = {part.partition("=")[0] for part in value.split(",")}
        lost = [name for name in needed if name not in names]
        if lost and "ALL" not in {name.upper() for name in names}:
            line = srun.line if own is not None else (of_job.line if of_job else srun.line)
            message = f"--export={value} keeps {' and '.join(lost)} from the tasks"
            fix = "srun --export=ALL …"
            source = job.script.source(srun.line)
            edit = None if own is not None else Edit(srun.line, (source.replace("srun ", "srun --export=ALL ", 1),))
            yield Finding(line, "error", "export-drops", message, fix, edit)
            break
        used = launch.layer("per-node") is not None
        for name, at in assigned.items():
            whole = job.script.text
            if name not in exported and not used and len(re.findall(rf"\$\{{?{name}\b", whole)) == 0:
                message = f"{name} is set but not exported: no task sees it"
                source = job.script.source(at)
                fix = f"export {source.strip()}"
                edit = Edit(at, (fix,)) if source.strip().startswith(f"{name}=") else None
                yield Finding(at, "error", "not-exported", message, fix, edit)
        break


def _exports(job: Job) -> tuple[set[str], dict[str, int]]:
    exported: set[str] = set()
    assigned: dict[str, int] = {}
    automatic = False
    for command in job.script.commands:
        texts = command.texts()
        if command.name == "set" and ("-a" in texts or "allexport" in texts):
            automatic = True
        if command.name == "export" or (command.name == "declare" and "-x" in texts):
            exported |= {text.partition("=")[0] for text in texts[1:]}
        if not command.words:
            for name, word in command.assignments:
                if name in ("MASTER_ADDR", "MASTER_PORT"):
                    assigned[name] = word.line
                    exported |= {name} if automatic else set()
    return exported, assigned


def interfaces(job: Job) -> Iterator[Finding]:
    """nccl-interface, gloo-interface."""
    several = job.shape.nodes > 1 or len(job.components) > 1
    commands = [*job.script.commands, *(command for launch in job.launches for command in launch.per_task)]
    for command in commands:
        pairs = [(name, word.raw, word.line) for name, word in command.assignments]
        for word in command.words:
            if match := re.fullmatch(r"((?:NCCL|GLOO|TP)_SOCKET_IFNAME)=(.*)", word.raw):
                pairs.append((match[1], match[2], word.line))
        for name, raw, line in pairs:
            value = unquote(raw)
            excluded = [item.lstrip("=") for item in value[1:].split(",")]
            level = "error" if several else "warning"
            if name == "NCCL_SOCKET_IFNAME" and value.startswith("^") and "lo" not in excluded:
                fix = f"export NCCL_SOCKET_IFNAME={value},lo"
                message = f"{value} replaces NCCL's own exclusions, so the loopback lo may be picked"
                source = job.script.source(line)
                edit = Edit(line, (source.replace(value, f"{value},lo"),)) if value in source else None
                yield Finding(line, level, "nccl-interface", message, fix, edit)  # type: ignore[arg-type]
            elif name == "NCCL_SOCKET_IFNAME" and value in ("lo", "=lo"):
                message = "lo reaches no other node"
                yield Finding(line, level, "nccl-interface", message, "leave the line out")  # type: ignore[arg-type]
            elif name == "GLOO_SOCKET_IFNAME" and value.startswith("^"):
                message = "gloo takes one interface's name and knows no exclusions"
                yield Finding(line, "error", "gloo-interface", message, "leave the line out")
            elif name == "GLOO_SOCKET_IFNAME" and re.fullmatch(r"=?[\w.:-]+", value):
                message = f"{value} is not the name of the interface on every machine"
                yield Finding(
                    line, "warning", "gloo-interface", message, "take it from the route to the master, on each node"
                )
