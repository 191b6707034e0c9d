"""Rules about how the ranks find each other: master address, port and variables."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from slurm_lint.finding import Edit, Finding
from slurm_lint.job import Job
from slurm_lint.launch import Launch
from slurm_lint.options import names_in
from slurm_lint.shell import Word, unquote
from slurm_lint.variables import Variables, mark_early

FIRST_HOST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
FREE_PORT = "$((20000 + SLURM_JOB_ID % 20000))"
PORT = f"MASTER_PORT={FREE_PORT}"
_ENDPOINT = '--rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT"'
_HOSTNAME = re.compile(r"\$\(\s*hostname[^|)]*\)|`hostname[^`]*`|\$\{?(HOSTNAME|SLURMD_NODENAME)\b")
_MASTER_NAMES = ("MASTER_ADDR", "master_addr", "rdzv_endpoint", "main_process_ip")
_PORT_NAMES = ("rdzv_endpoint", "init_method", "MASTER_PORT", "master_port", "main_process_port")
_LIST = r"\$\{?SLURM(?:_JOB|_STEP)?_NODELIST\b\}?"
# Matches only pipelines that certainly pick a later line: the last line, or a line by a number of at least 2.
_LATER_LINE = re.compile(r"\|\s*(tail\s+(-n\s*|-)1|sed\s+(-n\s+)?['\"]?([2-9]p|[2-9]!d|[2-9]q;d|\$p)['\"]?"
                         r"|awk\s+['\"]?NR\s*==\s*[2-9]\d*\s*(\{\s*print[^|]*\})?['\"]?)\s*\)?$")  # fmt: skip
_SHOW = "scontrol show hostname"
_OF_A_JOB = re.compile(r"(?<!\\)\$\{?(SLURM_(?:\w*ID|(?:JOB_)?NODELIST|NNODES|NTASKS))\b(?!:?[-=+?])")
_INHERITED = names_in("PATH HOME USER PWD HOSTNAME TMPDIR SCRATCH WORK LD_LIBRARY_PATH PYTHONPATH")
"""The variables that the environment of sbatch may already export to the job."""


class _Setting(NamedTuple):
    """A place where the script sets a master or a port: its unexpanded value, and whether each task evaluates it."""

    name: str
    word: Word
    per_task: bool = False
    launch: Launch | None = None


def _settings(job: Job) -> list[_Setting]:
    found = [_Setting(name, word) for name, word in job.script.assignments]
    for launch in job.launches:
        under_srun = launch.layer("srun") is not None
        inside_shell = launch.layer("shell") is not None and under_srun
        for command in (each for shell in launch.shells for each in shell.commands):
            found += [_Setting(name, word, under_srun, launch) for name, word in command.assignments]
        given = [(x.line, pair) for x in launch.layers if x.kind == "per-node" for pair in x.options.items()]
        found += [_Setting(name, Word(raw, line), inside_shell, launch) for line, (name, raw) in given]
        words = launch.innermost.words if launch.innermost.kind == "python" else ()
        found += [_Setting("init_method", word, inside_shell, launch) for word in words if "tcp://" in word.text]
    return found


def _uses_c10d(launch: Launch | None) -> bool:
    layer = launch.layer("per-node") if launch else None
    return layer is not None and unquote(layer.option("rdzv_backend") or "") in ("c10d", "etcd", "etcd-v2")


def master(job: Job) -> Iterator[Finding]:
    """master-per-task, master-is-localhost, master-fixed, master-not-first, master-not-a-host: the master is wrong."""
    spanning = [launch for launch in job.launches if _spans(job, launch, apart=True)]
    ddp = any(job.shows_ddp(launch) for launch in spanning)
    c10d = all(_uses_c10d(launch) for launch in spanning)
    for setting in _settings(job) if spanning else ():
        if setting.name not in _MASTER_NAMES or (setting.launch and setting.launch not in spanning):
            continue
        text = setting.word.text
        host = text.rpartition(":")[0] if setting.name == "rdzv_endpoint" and re.search(r":[^:]*$", text) else text
        again = setting.name != "MASTER_ADDR" and job.variables.expand(host) == job.variables.expand("$MASTER_ADDR")
        rule, message = _judge(job, setting, host, c10d or _uses_c10d(setting.launch))
        if not rule or again:  # A wrong MASTER_ADDR is reported where it is set.
            continue
        # The program may ignore an exported address, but an option of a launcher certainly takes effect.
        counts = setting.launch is not None and setting.name != "MASTER_ADDR"
        fix = f"export MASTER_ADDR={FIRST_HOST}"
        if setting.name != "MASTER_ADDR":
            fix = f'--{setting.name}="$MASTER_ADDR{text.removeprefix(host)}"      (before it: {fix})'
        edit = _assigned(job, setting, fix)
        yield Finding(setting.word.line, rule, message, fix, edit, (counts or ddp) and rule != "master-fixed")


def hosts(job: Job) -> Iterator[Finding]:
    """hosts-in-one-word: an array contains all hosts in one element instead of one host in each element."""
    for name, word in job.script.assignments:
        quoted = re.fullmatch(r'\("([^"]*)"\)', word.raw)
        later = re.search(rf"\$\{{{name}\[(?![0@*]\])[^]]*\]", job.code)
        if quoted and later and _SHOW in job.variables.expand(quoted[1]):
            message = f"the quotes keep all hosts in one word: {later[0]}}} is empty"
            edit = job.script.rewritten(word.line, rf'\b{name}=\("([^"]*)"\)', rf"{name}=(\1)")
            yield Finding(word.line, "hosts-in-one-word", message, edit=edit)


def _assigned(job: Job, setting: _Setting, line: str) -> Edit | None:
    value = r"(?:\$\([^()]*\)|\"[^\"]*\"|[^\s;&:])*"
    alone = re.fullmatch(rf"(\s*)(?:export\s+)?{setting.name}={value}\s*", job.script.source(setting.word.line))
    return Edit(setting.word.line, (alone[1] + line,)) if alone and setting.launch is None else None


def _spans(job: Job, launch: Launch, apart: bool = False) -> bool:
    """Return whether a launch is a run on several nodes; with `apart=True`, also if it is one node's part of a run."""
    shape, layer = job.shape_at(launch), launch.layer("per-node")
    part = apart and layer is not None and (job.number(launch, layer, "nnodes", "num_machines") or 1) > 1
    under = launch.layer("srun") is not None or launch.layer("mpirun") is not None or part
    # If --nodes is a placeholder, a variable in --nnodes shows that there are several nodes.
    to_fill_in = shape is not None and not shape.nodes_known and "$" in ((layer and layer.option("nnodes")) or "")
    return shape is not None and (shape.nodes > 1 or to_fill_in) and under and launch.trains


def _judge(job: Job, setting: _Setting, host: str, c10d: bool) -> tuple[str, str]:
    """Return the rule that the host of a master violates, and the message; two empty texts if the host is right."""
    expanded, nodes = job.variables.expand(host), job.options.value("nodelist") or ""
    if setting.per_task and _HOSTNAME.search(host) and "SLURM_PROCID" not in job.code:
        return "master-per-task", "each task uses its own host as the master"
    if re.fullmatch(r"localhost|127\.\d+\.\d+\.\d+|::1", expanded):
        return "master-is-localhost", f"{expanded} is a different host on each of the {job.shape.nodes} nodes"
    if re.fullmatch(rf'"?{_LIST}"?', expanded):
        return "master-not-a-host", "a node list such as n[1-4] is not a host name"
    element = re.fullmatch(r'"?\$\{(\w+)\[\s*(-?\d+)\s*\]\}"?', expanded)
    array, index = (job.variables.values.get(element[1], ""), int(element[2])) if element else ("", 0)
    # In nodes=("$list"), the quotes make all hosts one element.
    quoted = re.fullmatch(r'\s*"([^"]*)"\s*', array)
    whole = index == 0 and quoted and _SHOW in job.variables.expand(quoted[1])
    if whole or re.fullmatch(r"\$\(\s*scontrol\s+show\s+hostnames?\b[^|()]*\)", expanded):
        return "master-not-a-host", "scontrol show hostnames prints all hosts of the job, and a master is one host"
    if "SLURM_SUBMIT_HOST" in host:
        return "master-not-a-host", "SLURM_SUBMIT_HOST is the login host, where no rank runs"
    later = index != 0 and not quoted and _SHOW in array + job.variables.expand(array)
    if not c10d and (later or (_LATER_LINE.search(expanded) and "scontrol" in expanded)):
        return "master-not-first", "rank 0 runs on the first node, and this is another node"
    if re.fullmatch(r"[A-Za-z][\w.-]*|\d+(\.\d+){3}", expanded) and expanded not in nodes and "[" not in nodes:
        return "master-fixed", f"the job may run on other nodes than {expanded}"
    return "", ""


def backend(job: Job) -> Iterator[Finding]:
    """c10d-without-endpoint, node-rank-missing: torchrun's nodes cannot meet, or all act as the first node."""
    for launch in job.launches:
        layer = launch.layer("per-node")
        if layer is None or layer.name in ("deepspeed", "accelerate") or not _spans(job, launch):
            continue
        shape, agents = job.shape_at(launch), layer.option("nnodes")
        if _uses_c10d(launch) and not layer.option("rdzv_endpoint"):
            given = "--master_addr is ignored: " if layer.option("master_addr") else ""
            message = f"c10d without --rdzv_endpoint: {given}every node looks for the store on itself"
            yield Finding(layer.line, "c10d-without-endpoint", message, _ENDPOINT)
        once = shape is not None and shape.tasks == shape.nodes and agents and unquote(agents) != "1"
        own = {"node_rank", "standalone", "rdzv_conf", "rdzv_backend"} & set(layer.options)
        if once and not own and "PET_" not in job.code:
            message = "without --node_rank, every node acts as the first one (the backend is static by default)"
            yield Finding(layer.line, "node-rank-missing", message, f"--rdzv_backend=c10d {_ENDPOINT}")


def too_early(job: Job) -> Iterator[Finding]:
    """expanded-too-early: the batch shell expands a task's variable, or the submitting shell expands a job's."""
    submitted = job.script.expanded and not any(re.search("#SBATCH|SLURM_", line) for line in job.script.outer)
    for number, line in enumerate(job.script.lines if submitted else (), job.script.first_line):
        if match := _OF_A_JOB.search(line):
            message = f"the shell that submits the job expands ${match[1]}, which is empty there"
            yield Finding(number, "expanded-too-early", message, f"\\${match[1]}", certain=False)
    for launch, _, shape in (step for step in job.known_steps if step[2].tasks > 1):
        names = "PROCID|TASK_PID" + "|NODEID" * (shape.nodes > 1) + "|LOCALID" * (shape.per_node > 1)
        marked, shell, kind = rf"@early:(SLURM_(?:{names}))@", launch.layer("shell"), launch.innermost.kind
        own = [setting for setting in _settings(job) if setting.launch is launch]
        carried = Variables(launch.variables.values | {setting.name: f"${setting.name}" for setting in own})
        words = [s.word for s in own if s.name not in ("node_rank", "machine_rank") or not _uses_c10d(launch)]
        words += [word for x in launch.layers if x.kind in ("python", "ranks") for word in x.words[1:]]
        for word in words:
            if match := re.search(marked, carried.expand(word.raw if shell else mark_early(word.raw))):
                message = f"the batch shell expands ${match[1]} before srun: every task gets the first task's value"
                fix = f"\\${match[1]} in the double quotes" if shell else f"srun bash -c '… ${match[1]} …'"
                yield Finding(word.line, "expanded-too-early", message, fix)
                break
        ranks = "PET_NODE_RANK" if launch.layer("per-node") else r"(\w+_)?RANK"
        source = job.script.neighbour(launch.innermost.name) or ""
        for name, word in job.script.assignments if kind == "python" else ():
            given = (name, word) in launch.command.assignments
            value = mark_early(word.text) if given else carried.values.get(name, "") * (name in job.script.exported)
            early = re.fullmatch(marked, carried.expand(value))
            if early and re.fullmatch(ranks, name):
                message = f"{name} has the batch shell's value: every task gets the first task's value"
                fix = f"srun bash -c 'export {name}=${early[1]}; exec …'"
                certain = ranks == name or (f'"{name}"' in source and early[1] not in source)
                yield Finding(word.line, "expanded-too-early", message, fix, certain=certain)


def port(job: Job) -> Iterator[Finding]:
    """fixed-port, port-per-task: two jobs on a node use the same port, or the tasks of a run use different ports."""
    # torchrun, accelerate and deepspeed ignore MASTER_PORT unless the script passes it to them in an option.
    launched = job.trainings and all(launch.layer("per-node") for launch in job.trainings)
    own = (command for command in (*job.script.commands, *job.inner) if command.name not in ("echo", "printf"))
    words = (word.raw for command in own for word in (*command.words, *(word for _, word in command.assignments)))
    unread = launched and not any(re.search(r"\$\{?MASTER_PORT\b(?!:?-)", word) for word in words)
    for setting in (setting for setting in _settings(job) if setting.name in _PORT_NAMES):
        text = setting.word.text
        if (setting.name == "MASTER_PORT" and unread) or (setting.name == "master_port" and _uses_c10d(setting.launch)):
            continue  # c10d reads only the endpoint.
        if setting.name in ("rdzv_endpoint", "init_method"):
            text = text.rpartition(":")[2] if ":" in text else ""
        expanded = job.variables.expand(text)
        if re.fullmatch(r"\d+", expanded) and expanded != "0" and not job.has_whole_nodes:
            # If the setting reads the number from a variable, report the line that sets this variable.
            written = (word.line for _, word in job.script.assignments if re.search(rf"\b{expanded}\b", word.raw))
            line = next(written, setting.word.line)
            message = f"port {expanded} is fixed: two jobs on one node collide"
            edit = _assigned(job, setting, f"export {PORT}") if line == setting.word.line else None
            yield Finding(line, "fixed-port", message, f"{FREE_PORT}      (in place of {expanded})", edit)
        elif "SLURM_ARRAY_JOB_ID" in expanded and not re.search(r"TASK_ID|SLURM_JOB_?ID", expanded):
            message = "all jobs of the array use this port: two of them on one node collide"
            yield Finding(setting.word.line, "fixed-port", message, edit=_assigned(job, setting, f"export {PORT}"))
        elif setting.per_task and re.search(r"\$\{?RANDOM|\bshuf\b", expanded):
            message = "each task draws a different port"
            yield Finding(setting.word.line, "port-per-task", message, f"export {PORT}      (before srun)")


def default_port(job: Job) -> Iterator[Finding]:
    """fixed-port: torchrun or deepspeed uses its default port on a node that other jobs may share."""
    for launch in job.trainings if not job.has_whole_nodes and "PET_" not in job.code else ():
        layer, shape, c10d = launch.layer("per-node"), job.shape_at(launch), _uses_c10d(launch)
        told = {"standalone", "rdzv_endpoint", "rdzv_conf", "" if c10d else "master_port"}
        shares = shape and shape.nodes == 1 and shape.gpus_per_node
        if layer and layer.name != "accelerate" and shares and not told & set(layer.options):
            deep = layer.name == "deepspeed"
            who = "c10d without an endpoint" if c10d else "deepspeed" if deep else "torchrun before PyTorch 2.12"
            message = f"{who} meets at {29400 if c10d else 29500}: two jobs on one node collide"
            new = f"--master_port={FREE_PORT}" if deep else "--standalone"
            typed = r"\b(torchrun|deepspeed|torch\S+\.run)(?=\s)"
            edit = job.script.rewritten(launch.line, typed, rf"\1 {new}", launch.command.last_line)
            yield Finding(layer.line, "fixed-port", message, new, edit)
            return


def unexported(job: Job) -> Iterator[Finding]:
    """not-exported: a program that the script starts reads a variable that the script sets but does not export."""
    for launch in job.launches:
        container, shape = launch.layer("container"), job.shape_at(launch)
        if container and container.name not in ("apptainer", "singularity"):
            continue  # Docker's containers have their own environment.
        read = set(re.findall(r"\$\{?([A-Za-z_]\w*)\b(?!:?[-=+?])", launch.expands)) - _INHERITED
        if launch.trains and launch.layer("srun") and shape and shape.tasks > 1:
            read |= {name for name in ("MASTER_ADDR", "MASTER_PORT") if not re.search(rf"\$\{{?{name}\b", job.code)}
        if launch.innermost.kind == "python" and not re.search(r"\b(module|ml) ", job.code):
            read |= {"PYTHONPATH"}
        given = "\n".join([*launch.command.texts, launch.expands, *re.findall(r"(?<=--export.)\S+", job.code)])
        for name, word in (pair for command in job.script.commands for pair in command.declared):
            own = re.search(rf"\b{name}=|\b(?:for|read|local|declare) .*\b{name}\b", given)
            late = word.line > launch.line or (re.search(rf"\$\{{?{name}\b", word.raw) and name != "PYTHONPATH")
            if name in read - job.script.exported and not own and not late:
                edit = job.script.rewritten(word.line, rf"(?={name}=)", "export ")
                message = f"{name} is set but not exported: the program on line {launch.line} does not see it"
                yield Finding(word.line, "not-exported", message, edit=edit)
