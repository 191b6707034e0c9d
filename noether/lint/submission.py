"""Would sbatch take the script? The rules about its form and its options, each as a real sbatch refuses it."""

import re
from collections.abc import Callable, Iterator

from noether.lint.finding import Edit, Finding, Level
from noether.lint.job import Job, gpus_on_node
from noether.lint.options import Given
from noether.lint.values import (
    count,
    gpu_count,
    gpus_in_gres,
    memory_mib,
    node_range,
    signal_request,
    time_limit,
)

SHAPING = {
    "nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task", "gres", "gpus", "gpus-per-node",
    "gpus-per-task", "time", "partition", "mem", "mem-per-cpu", "mem-per-gpu", "signal", "account", "array",
}  # fmt: skip
_CHOICES = {
    "open-mode": r"(?i)a(ppend)?|t(runcate)?",
    "exclusive": r"(?i)|user|mcs|topo",
    "hint": r"compute_bound|memory_bound|(no)?multithread",
    "kill-on-invalid-dep": r"(?i)y(es)?|no?",
    "wait-all-nodes": r"0|1",
    "gres-flags": r"(?i)((disable-binding|enforce-binding|one-task-per-sharing|multiple-tasks-per-sharing|"
    r"allow-task-sharing|none),?)+",
    "distribution": r"(?i)\*?(:\*|:?(block|cyclic|arbitrary|plane=?\d*|fcyclic)|,?(no)?pack)*",
    "gpu-bind": r"(?i)(verbose,|v,)?(closest|none|single(:\d+)?|per_task:\d+|map(_gpu)?:.+|mask(_gpu)?:.+)",
}
_WORDS = {
    "open-mode": "append",
    "exclusive": "",
    "hint": "nomultithread",
    "kill-on-invalid-dep": "yes",
    "wait-all-nodes": "1",
    "gres-flags": "enforce-binding",
    "distribution": "block",
    "gpu-bind": "none",
}
_MAIL = {
    "NONE",
    "BEGIN",
    "END",
    "FAIL",
    "REQUEUE",
    "ALL",
    "INVALID_DEPEND",
    "STAGE_OUT",
    "TIME_LIMIT",
    "TIME_LIMIT_90",
    "TIME_LIMIT_80",
    "TIME_LIMIT_50",
    "ARRAY_TASKS",
}


def form(job: Job) -> Iterator[Finding]:
    """no-shebang, dos-line-ends, null-character, empty-script."""
    script, first = job.script, job.script.first_line
    if script.complete and not script.text:
        yield Finding(first, "error", "empty-script", "the script is empty: sbatch refuses it", "#!/bin/bash")
        return
    if script.complete and not script.text.startswith("#!"):
        message = "the first line does not begin with #!: sbatch refuses the script"
        top = script.lines[0]
        clean = top.lstrip("\ufeff")
        instead: tuple[str, ...] = (
            (clean,) if clean.startswith("#!") else ("#!/bin/bash", clean) if clean else ("#!/bin/bash",)
        )
        if not top.strip() and len(script.lines) > 1 and script.lines[1].startswith("#!"):
            instead = ()
        yield Finding(first, "error", "no-shebang", message, "#!/bin/bash", Edit(first, instead))
    if "\r\n" in script.text:
        line = first + script.text[: script.text.index("\r\n")].count("\n")
        message = r"lines end in \r\n, as on Windows: sbatch refuses the script"
        yield Finding(line, "error", "dos-line-ends", message, f"sed -i 's/\\r$//' {script.name}", Edit(0, ()))
    if "\0" in script.text:
        line = first + script.text[: script.text.index("\0")].count("\n")
        yield Finding(line, "error", "null-character", "a NUL character: the controller refuses the script")


def words(job: Job) -> Iterator[Finding]:
    """unknown-option, missing-value, unwanted-value, stray-word."""
    for options in job.components:
        for problem in options.problems:
            source = job.script.source(problem.line)
            fix, edit = "", None
            if problem.instead and source.count(problem.word) == 1:
                fix = source.replace(problem.word, problem.instead)
                edit = Edit(problem.line, (fix,)) if problem.kind in ("unknown-option", "unwanted-value") else None
            elif problem.kind == "unknown-option" and "srun's" in problem.message:
                fix = f"srun {problem.word} …"
            elif problem.kind == "missing-value":
                fix = f"#SBATCH {problem.word}=VALUE"
            elif problem.kind == "stray-word" and problem.word and source.count(problem.word) == 1:
                fix = source.replace(problem.word, f"# {problem.word}")
            yield Finding(problem.line, "error", problem.kind, problem.message, fix, edit)


def ignored(job: Job) -> Iterator[Finding]:
    """ignored-option: lines that look like options and are passed over."""
    live = {option.name for options in job.components for option in options.given}
    for found in job.script.ignored:
        names = {option.name for option in found.options.given}
        if not names and not found.options.problems:
            continue
        needed = bool(names & SHAPING - live) or (found.kind == "late" and bool(names - live))
        level: Level = "warning" if found.kind == "disabled" or not needed else "error"
        message = f"sbatch ignores this line: {found.reason}"
        fix = f"#SBATCH {found.text}"
        edit = Edit(found.line, (fix,)) if found.kind == "mistyped" and level == "error" else None
        if found.kind == "mistyped" and found.line - job.script.first_line > job.script.end_of_options:
            edit = None
        if found.kind == "late":
            fix += f"      (above line {job.script.end_of_options + job.script.first_line})"
        yield Finding(found.line, level, "ignored-option", message, fix, edit)


def values(job: Job) -> Iterator[Finding]:
    """bad-time, bad-memory, bad-count, bad-nodes, bad-gpus, bad-signal, bad-array, bad-choice."""
    for options in job.components:
        for option in options.given:
            if option.name in _READERS:
                rule, reads, expected, example = _READERS[option.name]
                if not reads(option.value):
                    yield _refused(job, option, rule, expected, example)
            elif option.name in _CHOICES and not re.fullmatch(_CHOICES[option.name], option.value):
                yield _refused(job, option, "bad-choice", "one of the words of its manual", _WORDS[option.name])
            elif option.name == "mail-type" and not _MAIL & set(option.value.upper().split(",")):
                yield _refused(job, option, "bad-choice", "BEGIN, END, FAIL, ALL, …", "END,FAIL")


def _refused(job: Job, option: Given, rule: str, expected: str, example: str) -> Finding:
    fix = f"#SBATCH --{option.name}={example}" if example else f"#SBATCH --{option.name}"
    message = f"sbatch refuses --{option.name}={option.value}: expected {expected}"
    value = option.value
    edit = None
    if option.name in ("time", "time-min") and (better := _better_time(value)):
        fix = job.script.source(option.line).replace(value, better)
        edit = Edit(option.line, (fix,))
    if option.name.startswith("mem") and (size := re.fullmatch(r"(?i)(\d+)\s*([kmgt])i?b", value)):
        fix = job.script.source(option.line).replace(value, size[1] + size[2].upper())
        edit = Edit(option.line, (fix,))
    if option.name == "gres" and (pair := re.fullmatch(r"gpus?[=:](?:(\w*[A-Za-z]\w*)[:=])?(\d+)", value)):
        fix = job.script.source(option.line).replace(value, "gpu:" + (f"{pair[1]}:" if pair[1] else "") + pair[2])
        edit = Edit(option.line, (fix,))
    return Finding(option.line, "error", rule, message, fix, edit)


def _better_time(value: str) -> str | None:
    match = re.fullmatch(r"(?i)(\d+)\s*(m|mins?|minutes?|h|hours?|hrs?|d|days?)", value)
    if not match:
        return None
    number, unit = int(match[1]), match[2][0].lower()
    return {"m": f"{number}", "h": f"{number}:00:00", "d": f"{number}-00:00:00"}[unit]


def _gres(text: str) -> bool:
    if gpus_in_gres(text) is None:
        return False
    # gpu misspelt is a generic resource that no cluster has.
    return not re.search(r"(^|,)gpus(:|,|$)", text)


def _array(text: str) -> bool:
    if not re.fullmatch(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?|\[.*\].*", text):
        return False
    ranges = re.findall(r"(\d+)-(\d+)", text)
    return all(int(first) <= int(last) for first, last in ranges)


_NODES = "a number, or least-most"
_READERS: dict[str, tuple[str, Callable[[str], object], str, str]] = {
    "nodes": ("bad-nodes", lambda text: node_range(text), _NODES, "2"),
    **{
        name: ("bad-count", lambda text: count(text), "a number of at least 1", "4")
        for name in (
            "ntasks", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-core", "ntasks-per-gpu", "cpus-per-task",
            "cpus-per-gpu", "mincpus", "sockets-per-node", "cores-per-socket", "threads-per-core",
        )
    },
    **{
        name: ("bad-time", lambda text: time_limit(text) is not None, "minutes, H:MM:SS or D-HH:MM:SS", "1-00:00:00")
        for name in ("time", "time-min")
    },
    **{
        name: ("bad-memory", lambda text: memory_mib(text) is not None, "a whole number with K, M, G or T", "64G")
        for name in ("mem", "mem-per-cpu", "mem-per-gpu", "tmp")
    },
    "gres": ("bad-gpus", _gres, "gpu:NUMBER or gpu:TYPE:NUMBER", "gpu:4"),
    **{
        name: ("bad-gpus", lambda text: gpu_count(text) is not None, "NUMBER or TYPE:NUMBER", "4")
        for name in ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
    },
    "signal": ("bad-signal", lambda text: signal_request(text), "[B:]SIGNAL[@seconds]", "B:USR1@120"),
    "array": ("bad-array", _array, "0-7, 1,3,5 or 0-7%2", "0-7%2"),
}  # fmt: skip


def together(job: Job) -> Iterator[Finding]:
    """memory-options, gpu-options: options that sbatch refuses together."""
    for options, shape in zip(job.components, job.shapes, strict=True):
        memory = [found for name in ("mem", "mem-per-cpu", "mem-per-gpu") if (found := options.last(name))]
        if len(memory) > 1:
            names = " and ".join(f"--{option.name}" for option in memory)
            line = max(option.line for option in memory)
            yield Finding(line, "error", "memory-options", f"sbatch refuses {names} together", "keep one of them")
        if options.last("mem-per-gpu") and not shape.total_gpus and not options.problems:
            line = options.given[0].line
            message = "--mem-per-gpu without a GPU: sbatch refuses it"
            yield Finding(options.last("mem-per-gpu").line, "error", "gpu-options", message, "#SBATCH --gpus=1")  # type: ignore[union-attr]
        per_task, per_gpu = options.last("gpus-per-task"), options.last("ntasks-per-gpu")
        on_node, total = gpus_on_node(options), gpu_count(options.value("gpus") or "-")
        if per_task and per_gpu:
            message = "sbatch refuses --gpus-per-task with --ntasks-per-gpu"
            yield Finding(per_gpu.line, "error", "gpu-options", message, "keep one of them")
        elif per_task and not (options.last("ntasks") or options.last("gpus")) and not options.last("ntasks-per-node"):
            message = "sbatch refuses --gpus-per-task without --ntasks or --gpus"
            yield Finding(per_task.line, "error", "gpu-options", message, "#SBATCH --ntasks=4")
        if options.last("cpus-per-gpu") and options.last("cpus-per-task"):
            message = "sbatch refuses --cpus-per-gpu with --cpus-per-task"
            line = options.last("cpus-per-gpu").line  # type: ignore[union-attr]
            yield Finding(line, "error", "gpu-options", message, "keep one of them")
        asked = options.value("nodes")
        if total and on_node and not per_task and asked and count(asked) and total != on_node * shape.nodes:
            message = f"--gpus={total} contradicts {shape.nodes} nodes × {on_node} GPUs = {on_node * shape.nodes}"
            line = options.last("gpus").line  # type: ignore[union-attr]
            yield Finding(line, "error", "gpu-options", message, f"#SBATCH --gpus={on_node * shape.nodes}")
        each = gpu_count(per_task.value) if per_task else None
        per_node = count(options.value("ntasks-per-node") or "")
        if per_task and each and on_node and per_node and each * per_node != on_node:
            message = f"{per_node} tasks × --gpus-per-task={each} are not the {on_node} GPUs of a node"
            fix = f"#SBATCH --ntasks-per-node={max(1, on_node // each)}"
            yield Finding(per_task.line, "error", "gpu-options", message, fix)
        if each and total and total % each:
            message = f"--gpus={total} is no multiple of --gpus-per-task={each}: sbatch refuses them"
            yield Finding(options.last("gpus").line, "error", "gpu-options", message, "keep one of them")  # type: ignore[union-attr]
