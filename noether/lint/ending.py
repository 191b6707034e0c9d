"""Does the job end as it should? The rules about exit codes, signals, output, requeueing and containers."""

import re
from collections.abc import Iterator
from pathlib import Path

from noether.lint.finding import Edit, Finding
from noether.lint.job import Job
from noether.lint.launch import Launch
from noether.lint.shell import Command
from noether.lint.values import signal_request

RELIABLE_LEAD_S = 60
"""slurmstepd looks about every 30 s whether a signal is due."""
_SAYING = {"echo", "printf", "date", "sleep", "true", ":", "cp", "mv", "rm", "rsync", "sacct", "seff", "ls", "cat",
           "touch", "mkdir", "nvidia-smi", "module", "conda", "deactivate", "scontrol", "tar", "chmod", "unset",
           "kill"}  # fmt: skip


def exit_code(job: Job) -> Iterator[Finding]:
    """exit-code-lost, background-without-wait."""
    commands = job.script.commands
    options = [text for c in commands if c.name == "set" for text in c.texts()[1:]]
    first = job.script.lines[0] if job.script.lines else ""
    stops = any(re.fullmatch(r"-[a-z]*e[a-z]*", text) or text == "errexit" for text in options) or bool(
        re.search(r"sh\s+-\w*e", first)
    )
    pipefail = "pipefail" in options
    if any(c.name == "trap" and {"EXIT", "ERR"} & set(c.texts()) for c in commands):
        return
    keeps = any(
        re.search(r"\$\?|PIPESTATUS", w.raw) for c in commands for w in (*c.words, *(a for _, a in c.assignments))
    )
    launches = [launch for launch in job.launches if launch.layer("srun") or launch.layer("mpirun") or launch.trains]
    if not launches:
        return
    main = [launch for launch in launches if launch.trains] or launches
    for launch in main:
        index = next(i for i, command in enumerate(commands) if command is launch.command)
        following = commands[index + 1 :]
        last = launch is main[-1]
        if finding := _swallowed(job, launch, following, stops, pipefail, keeps, last):
            yield finding


def _swallowed(
    job: Job, launch: Launch, following: list[Command], stops: bool, pipefail: bool, keeps: bool, last: bool
) -> Finding | None:
    after, line = launch.command.after, launch.line
    source = job.script.source(launch.command.last_line)
    name = launch.layers[0].name
    if after == "||" and following and following[0].name in ("true", ":", "echo"):
        if any(command.name == "exit" for command in following):
            return None
        edited = re.sub(r"\s*\|\|\s*(true|:)\s*$", "", source)
        edit = Edit(launch.command.last_line, (edited,)) if edited != source else None
        message = f"|| {following[0].name} makes a failed {name} a success: the job ends COMPLETED"
        return Finding(line, "error", "exit-code-lost", message, edited.strip() if edit else "leave it out", edit)
    if after in ("|", "|&") and not pipefail:
        if keeps:
            return None
        message = f"the pipe's code is that of {following[0].name if following else 'its end'}, not of {name}"
        text = job.script.source(launch.line)
        edit = Edit(launch.line, ("set -o pipefail", text)) if launch.command.depth == 0 else None
        return Finding(line, "error", "exit-code-lost", message, "set -o pipefail", edit)
    if after == "&":
        if not any(command.name == "wait" for command in following):
            message = "the batch script ends at once, and Slurm ends what still runs in the background"
            return Finding(line, "error", "background-without-wait", message, "wait $!", None)
        waits = [command for command in following if command.name == "wait"]
        if keeps or any(len(command.words) > 1 for command in waits) or not last:
            return None
        message = "wait without a process id returns 0, whatever became of the step"
        at = waits[-1].line
        alone = job.script.source(at).strip() == "wait" and launch.command.depth == 0
        single = alone and sum(item.after == "&" for item in job.script.commands) == 1 and len(waits) == 1
        edit = Edit(at, ("wait $!",)) if single else None
        return Finding(at, "warning", "exit-code-lost", message, "wait $!", edit)
    if stops or keeps or not last or after in ("&&",):
        return None
    rest = [c for c in following if c.words]
    ending = next((c for c in rest if c.name == "exit"), None)
    if ending is not None and ending.texts()[1:] == ["0"] and ending.depth == launch.command.depth and after != "||":
        said = rest[: rest.index(ending)]
        if all(c.name in _SAYING and c.depth == ending.depth for c in said):
            message = f"exit 0 makes a failed {name} a success: the job ends COMPLETED"
            return Finding(ending.line, "error", "exit-code-lost", message, "exit $code      (code=$? behind it)")
    if after == "||" or not rest or ending is not None or rest[0].name == "exec":
        return None
    if launch.command.depth and job.script.source(launch.line).strip().startswith(("if ", "while ", "until ")):
        return None
    if not all(c.name in _SAYING for c in rest):
        return None
    message = f"the script ends with {rest[-1].name}: a failed {name} ends as COMPLETED"
    text = job.script.source(launch.command.last_line)
    whole = rest[0].line > launch.command.last_line and launch.command.depth == 0
    edit = None
    if whole and not text.endswith("\\"):
        edit = Edit(
            job.script.first_line + job.script.end_of_options, ("set -e", job.script.lines[job.script.end_of_options])
        )
    return Finding(
        line,
        "error",
        "exit-code-lost",
        message,
        "set -e      (before it), or code=$? behind it and exit $code at the end",
        edit,
    )


def signals(job: Job) -> Iterator[Finding]:
    """signal-lead, signal-lost."""
    option = job.given("signal")
    request = signal_request(option.value) if option else None
    if option is None or request is None:
        return
    traps = [c for c in job.script.commands if c.name == "trap" and len(c.words) > 2]
    trapped = any(request.name in {t.upper().removeprefix("SIG") for t in c.texts()[2:]} for c in traps)
    if request.lead_s < RELIABLE_LEAD_S:
        message = f"{request.lead_s} s before the end: Slurm looks about every 30 s, and a checkpoint takes its time"
        fix = re.sub(r"@\d+", "@120", job.script.source(option.line))
        yield Finding(option.line, "warning", "signal-lead", message, fix, Edit(option.line, (fix,)))
    main = job.trainings[-1] if job.trainings else None
    if main is None:
        return
    under_srun = main.layer("srun") is not None
    value = option.value
    if request.to_batch_shell:
        if not trapped and main.command.name != "exec":
            message = f"{value} reaches the batch shell alone, which has no trap for it: the signal ends the job"
            fix = job.script.source(option.line).replace("B:", "")
            edit = Edit(option.line, (fix,)) if under_srun else None
            yield Finding(option.line, "error", "signal-lost", message, fix, edit)
        elif trapped and main.command.after != "&":
            message = "a shell runs its trap when the foreground command has ended: too late"
            fix = f"{job.script.source(main.command.last_line).strip()} &      (then: wait)"
            yield Finding(main.line, "error", "signal-lost", message, fix)
    elif not under_srun and not job.steps:
        message = f"{value} reaches the steps of srun only, never a program that the batch script runs itself"
        yield Finding(option.line, "error", "signal-lost", message, f"srun {main.command.words[0].text} …")
    elif trapped:
        message = f"without B: {value} does not reach the batch shell and its trap"
        fix = job.script.source(option.line).replace(value, f"B:{value}")
        yield Finding(option.line, "error", "signal-lost", message, fix)
    elif under_srun and main.layer("shell") and not any(c.name in ("exec", "trap") for c in main.per_task):
        message = f"{value} reaches the shell around the program, which does not pass it on"
        yield Finding(main.line, "warning", "signal-lost", message, "exec python …      (inside that shell)")


def output(job: Job) -> Iterator[Finding]:
    """output-folder: Slurm makes no folders."""
    for options in job.components:
        for option in {o.name: o for o in options.given if o.name in ("output", "error")}.values():
            folder = option.value.rpartition("/")[0]
            if not folder or option.value.startswith("/dev/") or "\0" in folder:
                continue
            known = folder.partition("%")[0].rpartition("/")[0] if "%" in folder else folder
            chdir = options.value("chdir")
            bases = [Path(chdir)] if chdir and chdir.startswith("/") else [Path.cwd(), job.script.folder]
            try:
                exists = any((base / known).is_dir() for base in bases)
            except (OSError, ValueError):
                continue
            # submitit makes its folder itself, as soon as it has the job's number.
            submitit = any(launch.layer("submitit") for launch in job.launches)
            if exists and ("%" not in folder or submitit):
                continue
            reason = "is made of the job's number" if exists else "is not here"
            message = f"the folder {folder} {reason}, and Slurm makes none: the job would leave no output"
            file = option.value.rpartition("/")[2]
            named = "/".join([*([known] if known else []), file if "%" in file else f"%j-{file}"])
            fix = f"#SBATCH --{option.name}={named}" if exists else f"mkdir -p {known or '.'}      (before sbatch)"
            yield Finding(option.line, "warning", "output-folder", message, fix)


def requeue(job: Job) -> Iterator[Finding]:
    """requeue-truncates, kill-on-bad-exit."""
    option = job.given("requeue")
    again = [c for c in job.script.commands if c.name == "scontrol" and "requeue" in c.texts()[1:2]]
    mode = job.options.value("open-mode") or ""
    if (option or again) and not mode.lower().startswith("a"):
        line = option.line if option else again[0].line
        message = "a requeued job writes its output over that of its first run"
        fix = "#SBATCH --open-mode=append"
        given = job.given("open-mode")
        at = given.line if given else option.line if option else job.line_of("output", "nodes", "time")
        lines = (fix,) if given and job.script.source(at).count("--") == 1 else (job.script.source(at), fix)
        edit = Edit(at, lines) if job.options.given else None
        yield Finding(line, "warning", "requeue-truncates", message, fix, edit)
    set_anyway = "SLURM_KILL_BAD_EXIT" in job.script.text
    for launch in job.steps:
        srun = launch.layer("srun")
        shape = job.step_shape(launch)
        if srun is None or shape is None or shape.tasks < 2 or not launch.trains or set_anyway:
            continue
        value = srun.option("kill-on-bad-exit")
        if value is None or value == "0":
            source = job.script.source(srun.line)
            fix = source.replace("srun ", "srun --kill-on-bad-exit=1 ", 1)
            edit = Edit(srun.line, (fix,)) if source != fix and value is None else None
            message = "one rank that fails leaves the others waiting until the time limit"
            yield Finding(srun.line, "warning", "kill-on-bad-exit", message, fix.strip(), edit)


def containers(job: Job) -> Iterator[Finding]:
    """container-cleanenv, container-without-nv."""
    text = job.script.text
    for launch in job.launches:
        layer = launch.layer("container")
        if layer is None:
            continue
        clean = [name for name in ("--cleanenv", "-e", "--containall", "-C", "--compat") if name in layer.options]
        passed = re.search(r"(APPTAINER|SINGULARITY)ENV_SLURM|--env(-file)?[ =]\S*SLURM", text)
        if clean and launch.layer("srun") and not passed:
            message = f"{clean[0]} takes SLURM_* from the tasks: each believes it is alone"
            source = job.script.source(layer.line)
            fix = re.sub(rf" {re.escape(clean[0])}(?=\s)", "", source, count=1)
            edit = Edit(layer.line, (fix,)) if fix != source else None
            yield Finding(layer.line, "error", "container-cleanenv", message, fix.strip(), edit)
        gpu = {"--nv", "--nvccli", "--rocm"} & set(layer.options) or re.search(
            r"(APPTAINER|SINGULARITY)_(NV|NVCCLI|ROCM)=", text
        )
        if job.asks_for_gpus and not gpu and launch.innermost.kind != "other":
            message = f"{layer.name} without --nv: the program sees none of the GPUs"
            source = job.script.source(layer.line)
            fix = re.sub(rf"({layer.name} (?:exec|run)) ", r"\1 --nv ", source, count=1)
            edit = Edit(layer.line, (fix,)) if fix != source else None
            yield Finding(layer.line, "error", "container-without-nv", message, fix.strip(), edit)
