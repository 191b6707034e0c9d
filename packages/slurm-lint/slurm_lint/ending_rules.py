"""Rules about the end of a job: exit codes, background jobs, signals, output and requeueing."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from os.path import isdir
from pathlib import Path

from tree_sitter import Node

from slurm_lint.finding import Edit, Finding
from slurm_lint.job import SERVES, Job, is_server
from slurm_lint.launch import SHELL_WORDS, Launch, Layer
from slurm_lint.launch_rules import ONE_THREAD
from slurm_lint.options import signal_request
from slurm_lint.shell import REPEATED, ShellText, ancestors, has_ampersand, text_of

_KEEPS = re.compile(r"\$\?|\$\{\?\}|PIPESTATUS|pipestatus|\bERR\b")
_TESTS = re.compile(r"(if|while)_statement|elif_clause|(command|process)_substitution|(negated|test)_command")
_SAYS = re.compile(r"(?:(?:/bin/)?true|:|echo|printf|date)(?:\s[^&|;]*)?")

Loss = tuple[str, Node]
"""How a status is lost (pipe, or, then, exit, wait), and the statement whose status replaces the lost status."""
_AMD = re.compile(r"(?i)\bmi[123]\d\d[ax]?\b|\brocm|(ROCR|HIP)_VIS|MIOPEN|\blumi\b|(dev|small|standard)-g\b|\bamd.?gpu")
_OWN = re.compile(r"(?!/(usr/)?s?bin/)([^\s()]*/(?!start|stop|setup|clean)[^\s()/]+|\$\{?\w+\}?)$")
_TOOLS = ONE_THREAD | SHELL_WORDS | {"python -c"}
_NO_WORK = re.compile(r"--(help|version)\b|\bray stop\b|\bsetup\.py\b")
_FRONT = re.compile(r"(?i)app\b|api|ui\b|web|gateway|proxy|router|worker|controller|demo|gradio|tunnel|bot\b|serv")
_RETURNS = re.compile(r"^(timeout|sleep)\b|ray start(?!.*--block)|start-(master|worker)|--fork\b|docker run.* -d\b|"
                      r"nvidia-smi(?!.* (-l|--loop|dmon|pmon))")  # fmt: skip
_WAIT_FOR_EACH = "pids+=($!) after each, and last: for pid in ${pids[@]}; do wait $pid || code=1; done; exit $code"
_STOPS = re.compile(r"\b(kill|pkill|killall|scancel|ray stop|stop_server|shutdown)\b")
_NO_CONDA = re.compile(r"-|((un)?load|add|purge|list|spider|(cuda|cudnn|nccl|gcc|openmpi|slurm|cmake)[-\d.]*(/.*)?)$")
_LOST = {  # {how a code is lost: (message, fix)}.
    "pipe": ("the pipe returns the exit code of its last program, not of {name}", "set -eo pipefail      (before it)"),
    "or": ("|| hides a failure of {name}: the job ends COMPLETED", "|| code=$?      (and exit $code at the end)"),
    "exit": ("the script returns 0, even if {name} fails", "exit $code      (code=$? after it)"),
    "wait": ("a bare wait returns 0, even if {name} fails", _WAIT_FOR_EACH),
    "then": ("the exit code of line {line} replaces that of {name}: if {name} fails, the job ends COMPLETED",
             "code=$? after it and exit $code at the end, or set -e before it"),
}  # fmt: skip


def _works(job: Job) -> list[Launch]:
    """Return the launches that do the job's work: trainings, steps and mpirun or, if none, the user's programs."""
    works = [x for x in job.launches if not is_server(x) and not _NO_WORK.search(" ".join(x.command.texts))]
    steps = [x for x in works if (x.layer("srun") or x.layer("mpirun")) and x.innermost.name not in _TOOLS]
    # Shells that start no program are left out, because they only print something.
    steps = [x for x in steps if x.innermost.kind != "shell" or not _is_inline(x.innermost)]
    return [x for x in works if x in job.trainings or x in steps] or [x for x in works if _is_own(x.innermost)]


def _is_own(program: Layer) -> bool:
    """Return whether a program is the user's own: called by a path or a variable, or a script of an interpreter."""
    if program.kind == "shell" or re.match(r"(Rscript|R|julia|matlab|octave|java|perl|parallel)$", program.name):
        return len(program.words) > 1 and not _is_inline(program)
    return _OWN.match(program.words[0].text) is not None


def _is_inline(program: Layer) -> bool:
    """Return whether an interpreter gets its code on the command line (`bash -lc "…"`, `perl -ne …`)."""
    option = r"-\w*c$" if program.kind == "shell" else r"-\w*e$"
    return any(re.match(option, word.text) for word in program.words[1:3])


def exit_code(job: Job) -> Iterator[Finding]:
    """exit-code-lost: a run's exit code does not become the script's exit code."""
    flow, works = StatusFlow(job.script.shell), _works(job)
    losses = [(x, loss) for x in works if (loss := flow.loss(x.command.node))]
    firsts = {(x.layers[0].name, x.innermost.name): x for x, (kind, _) in reversed(losses) if kind != "or"}
    told = [*firsts.values(), *works[-1:], *job.trainings[-1:]]
    for launch, (kind, by) in losses:
        if launch in told or kind == "pipe":
            answers, (message, fix) = job.script.shell.line_of(by), _LOST[kind]
            line = answers if kind in ("exit", "wait") else launch.line
            message = message.format(name=launch.layers[0].name.rsplit("/", 1)[-1], line=answers)
            yield Finding(line, "exit-code-lost", message, fix)


def conda(job: Job) -> Iterator[Finding]:
    """conda-without-hook: conda activate is called before conda's shell function is defined."""
    ready = re.search(r"\A#!.*\s-(\w*[li]|-login)|conda\(\)|function conda|BASH_ENV", job.script.text) is not None
    for command in job.script.commands:
        loads = command.name in ("module", "ml") and not all(_NO_CONDA.match(text) for text in command.texts[1:])
        ready |= loads or command.name in (".", "source", "eval", "spack", "conda_init")
        activates = command.name in ("conda", "mamba") and command.texts[1:2] == ["activate"]
        if activates and not ready and command.parent_type == "program":
            message = f"a batch script has no shell function {command.name}: activate fails, and the job continues"
            hook = 'eval "$(conda shell.bash hook)"'
            edit = Edit(command.line, (hook, job.script.source(command.line))) if command.name == "conda" else None
            fix = 'eval "$(mamba shell hook --shell bash)"      (before mamba 2: mamba shell.bash hook)'
            yield Finding(command.line, "conda-without-hook", message, fix, edit)
            return


def background_jobs(job: Job) -> Iterator[Finding]:
    """background-without-wait, wait-for-server: the script does not wait for its work, or waits for a server."""
    commands = job.script.commands
    stays = re.compile(r"(wait|fg)\b|\S+ wait\b|tail .*(-\w*[fF]\b|--follow|--pid)")
    waits = [command for command in commands if stays.match(" ".join(command.texts))]
    works = [x for x in job.launches if x.command.in_background and not is_server(x) and x.innermost.name not in _TOOLS]
    for launch in works[-1:]:
        command, end = launch.command, launch.command.node.end_byte
        ends = {c.name for c in commands if c.words and c.node.start_byte > end} <= {"echo", "date", "printf"}
        later = {x.command.name for x in _works(job) if x.command.node.start_byte > end}
        alike = len(works) > 1 and later == {command.name}  # The last launch is of the same kind.
        if not waits and (ends or alike) and not command.within("function_definition", "while_statement"):
            message = "the batch script does not wait; when it ends, Slurm kills its background processes"
            edit = Edit(command.last_line, (job.script.source(command.last_line), "wait $!"), safe=True)
            alone = command.parent_type == "program" and len(works) == len(job.launches) == 1
            once = len(works) == 1 and not command.within("for_statement", "c_style_for_statement")
            fix = "wait $!      (at the script's end)" if once else _WAIT_FOR_EACH
            yield Finding(launch.line, "background-without-wait", message, fix, edit if alone else None, certain=ends)
    for last in (c for c in commands[-1:] if c.name == "tail" and c.parent_type == "program" and not c.in_background):
        if re.search(r"\s(-\w*[fF]\b|--follow)(?!.*--pid)", " ".join(last.texts)):
            message = "tail follows its file until the job's time limit"
            yield Finding(last.line, "wait-for-server", message, "wait      (instead of it)")
    for at, launch in enumerate(job.launches):
        name = " ".join(word.text for word in launch.innermost.words)
        waits_for_it = launch.command.parent_type == "program" and not launch.command.in_background
        if waits_for_it and re.match(SERVES, name) and any(later.trains for later in job.launches[at + 1 :]):
            message = f"{launch.innermost.name} serves until the job's time limit: later lines are never reached"
            fix = f"{job.script.source(launch.command.last_line).strip()} &      (and kill $! at the script's end)"
            yield Finding(launch.line, "wait-for-server", message, fix)
    # Without arguments, the last wait also waits for a server that no earlier line has stopped.
    beside = [x for x in job.launches if x.command.in_background]
    servers = [x for x in beside if is_server(x) and not _RETURNS.search(" ".join(x.command.texts))]
    waits = [c for c in commands if c.name == "wait" and (len(c.words) == 1 or all(map(is_server, beside)))]
    # Foreground commands above the servers prepare them. Commands below may be servers too.
    works = [x for x in _works(job) if not x.command.in_background or not _FRONT.search(x.innermost.name)]
    works = [x for x in works if servers and (x.command.in_background or x.command.line > servers[-1].line)]
    if not (servers and waits and works and waits[-1].line >= works[-1].line):
        return
    lines, at = re.sub(r"(?m)^[ \t]*trap\b.*", "", job.code).split("\n"), waits[-1].line - job.script.first_line
    before, after = (_STOPS.search("\n".join(part)) for part in (lines[:at], lines[at + 1 :]))
    # If a script only waits for the server, and never stops it, the server is meant to run until the time limit.
    if not before and (after or len(waits[-1].words) == 1):
        message = f"wait also waits for the server of line {servers[0].line}, which runs until the job's time limit"
        work = "wait $work; " * works[-1].command.in_background
        fix = f"{work}kill $server      (instead of it; server=$! after the server's &, work=$! after the other's)"
        yield Finding(waits[-1].line, "wait-for-server", message, fix)


def signals(job: Job) -> Iterator[Finding]:
    """signal-lead, signal-lost: the signal comes too late for a checkpoint, or does not reach its receiver."""
    option = job.options.last("signal")
    if option is None or (request := signal_request(option.value)) is None:
        return
    traps = [c for c in job.script.commands if c.name == "trap" and len(c.words) > 2 and c.texts[1]]
    trapped = any(request.name in {t.upper().removeprefix("SIG") for t in c.texts[2:]} for c in traps)
    if request.lead_s < 60:
        message = f"{request.lead_s} s before the end: Slurm checks about every 30 s, and a checkpoint takes time"
        yield Finding(option.line, "signal-lead", message, edit=job.script.rewritten(option.line, r"@\d+", "@120"))
    works = [x for x in _works(job) if x.trains or x.innermost.kind == "shell" or x in job.steps or x.layer("mpirun")]
    if not works:
        return
    main, behind = works[-1], works[-1].command.in_background
    under_srun, value, twice = main.layer("srun") is not None, option.value, "step=$!, and wait $step twice"
    if request.to_batch_shell and not trapped and main.command.texts[0] != "exec" and "trap" not in job.code:
        message = f"{value} reaches only the batch shell, which has no trap for it: the signal ends the job"
        edit = job.script.rewritten(option.line, "B:", "") if under_srun else None
        fix = f"trap 'kill -{request.name} $step' {request.name}      (with & after the program, {twice})"
        yield Finding(option.line, "signal-lost", message, fix, edit, certain=False)
    elif request.to_batch_shell and trapped and not (behind or main.command.within("function_definition")):
        message = "bash runs a trap only after the foreground command has ended, which is too late"
        fix = f"{job.script.source(main.command.last_line).strip()} &      (then {twice}: a signal ends the first)"
        yield Finding(main.line, "signal-lost", message, fix)
    elif trapped and not request.to_batch_shell:
        message = f"without B: {value} does not reach the batch shell, so its trap does not run"
        # Even with B:, the trap would not run while a program is in the foreground.
        fix = f"#SBATCH --signal=B:{value}      (and srun in the background, then wait)"
        edit = job.script.with_option("signal", f"B:{value}") if behind else None
        yield Finding(option.line, "signal-lost", message, fix, edit)
    elif not (request.to_batch_shell or under_srun or job.steps) and job.trainings:
        message = f"{value} reaches only srun's steps, never a program that the batch script runs itself"
        yield Finding(option.line, "signal-lost", message, f"srun {main.command.words[0].text} …", certain=False)


def output(job: Job) -> Iterator[Finding]:
    """output-folder, array-truncates: the folder of the output is missing, or all jobs of an array share one file."""
    seen: set[str] = set()
    for options in job.components:
        chdir, mode, array = (options.value(name) or "" for name in ("chdir", "open-mode", "array"))
        for option in {o.name: o for o in options.given if o.name in ("output", "error")}.values():
            folder, plain = option.value.rpartition("/")[0], re.fullmatch(r"(?!/dev/)[^%$<{]+", option.value)
            if plain and mode[:1] not in ("a", "A") and re.search(r"\d[,-]", array):
                each = job.script.with_option(option.name, f"{option.value}.%a", option.line)
                yield Finding(option.line, "array-truncates", "every job of the array overwrites this file", edit=each)
            known = folder.partition("%")[0].rpartition("/")[0] if "%" in folder else folder
            made = any(re.match(rf"\s*mkdir\s.*{re.escape(known)}", line) for line in job.script.outer)
            unknown = re.search(r"\A[/~]|[\0${<]", folder) or re.match(r"[/~$]", chdir)
            here = not known or any(isdir(base / known) for base in (Path.cwd(), job.script.path.parent))
            kept = here and ("%" not in folder or any(launch.layer("submitit") for launch in job.launches))
            if not folder or folder in seen or made or unknown or kept or known in (".", ".."):
                continue
            seen.add(folder)
            reason = "is named by the job's number" if here else "does not exist here"
            message = f"the folder {folder} {reason}, and Slurm before 23.02 does not make it: the output would be lost"
            opens, makes, edit = (job.script.outer or ("",))[-1], f"mkdir -p {known}", None
            if here:
                edit = job.script.with_option(option.name, f"{known and known + '/'}%j.out", option.line)
            elif first := re.match(r"(\s*)sbatch\s", opens):  # `mkdir` can go above `sbatch`.
                edit = Edit(job.script.first_line - 1, (first[1] + makes, opens), safe=True)
            yield Finding(option.line, "output-folder", message, "" if here else f"{makes}      (before sbatch)", edit)


def requeue(job: Job) -> Iterator[Finding]:
    """requeue-truncates, requeue-without-end, kill-on-bad-exit: requeueing, and the end of a run with a failed task."""
    option, mode = job.options.last("requeue"), job.options.value("open-mode") or ""
    again = [c for c in job.script.commands if c.name == "scontrol" and "requeue" in c.texts[1:2]]
    if (option or again) and not mode.lower().startswith("a"):
        line = option.line if option else again[0].line
        message = "a requeued job overwrites the output of its first run, unless your site sets JobFileAppend"
        yield Finding(line, "requeue-truncates", message, edit=job.script.with_option("open-mode", "append"))
    for command in again if not re.search(r"RESTART_COUNT|timeout|trap|124|SIG", job.code) else ():
        if command.parent_type == "list" and "||" in job.script.source(command.line):
            message = "a job that fails every time is requeued endlessly"
            fix = '|| [ "${SLURM_RESTART_COUNT:-0}" -ge 3 ] || scontrol requeue $SLURM_JOB_ID'
            yield Finding(command.line, "requeue-without-end", message, fix)
    for launch, srun, shape in job.known_steps:
        value, new = srun.option("kill-on-bad-exit"), "srun --kill-on-bad-exit=1 "
        kills = value not in (None, "0") or "SLURM_KILL_BAD_EXIT" in job.code
        shown = job.shows_ddp(launch)
        python = launch.innermost.kind == "python" or any(x.text.endswith(".py") for x in launch.innermost.words)
        alone = len(job.steps) == 1 and not launch.command.in_background and not launch.command.within(*REPEATED)
        # The only step is one training if it runs Python and has a task for each GPU, or a master address.
        alike = python and alone and (shape.total_gpus == shape.tasks or "MASTER_ADDR" in job.script.exported)
        if (shown or alike) and shape.tasks > 1 and not (kills or launch.runs_script):
            message = "if one task fails, the others wait for it, unless your site sets KillOnBadExit"
            message = message if shown else f"where the tasks are one training, {message}"
            safe = shown and re.match(r"\s*srun\s", job.script.source(launch.line)) is not None
            edit = job.script.rewritten(srun.line, r"\bsrun\s", new) if value is None else None
            edit = replace(edit, safe=safe) if edit else None
            yield Finding(srun.line, "kill-on-bad-exit", message, f"{new}…", edit, False if shown else None)


def containers(job: Job) -> Iterator[Finding]:
    """separate-runs, container-without-gpus: a container lacks the job's variables or GPUs."""
    text = job.script.text
    no_nvidia = not any(shape.total_gpus for shape in job.shapes) or _AMD.search(text) is not None
    for launch in job.launches:
        layer, shape, kind = launch.layer("container"), job.shape_at(launch), launch.innermost.kind
        if layer is None:
            continue
        ours, docker = launch.layer("ranks") is not None, layer.name not in ("apptainer", "singularity")
        flags = ("--cleanenv", "-e", "--containall", "-C", "--compat")
        clean = next((flag for flag in flags if flag.lstrip("-") in layer.options), None)
        passed = re.search(r"(APPTAINER|SINGULARITY)ENV_SLURM|--env(-file)?[ =]\S*SLURM", text)
        reads_slurm = ours or (kind == "python" and not launch.layer("per-node"))
        several = launch.layer("srun") and shape and shape.tasks > 1
        if clean and several and reads_slurm and not docker and not passed:
            message = f"{clean} removes SLURM_* from the tasks: each trains as if it were alone"
            edit = job.script.rewritten(layer.line, rf" {re.escape(clean)}(?=\s)", "")
            yield Finding(layer.line, "separate-runs", message, edit=edit, certain=ours)
        there = docker and layer.words[1].text == "exec"  # A running container already has its GPUs, or has none.
        flag, options, elsewhere = "--nv", {"nv", "nvccli"}, r"(APPTAINER|SINGULARITY)_(NV|NVCCLI)="
        if docker:
            flag, options, elsewhere = "--gpus all", {"gpus", "device", "runtime", "gpu"}, "(?i)nvidia"
        unknown = "$" in job.script.source(layer.line).partition(layer.name)[2].partition(".sif")[0][:30]
        given = no_nvidia or there or unknown or options & set(layer.options) or re.search(elsewhere, text)
        if kind in ("python", "per-node", "ranks", "submitit") and not given:
            edit = job.script.rewritten(layer.line, rf"({layer.name}\S* (?:exec|run)) ", rf"\1 {flag} ")
            message = f"{layer.name} without {flag}: the program sees none of the job's GPUs"
            message += "" if ours or docker else ", unless your site sets 'always use nv'"
            yield Finding(layer.line, "container-without-gpus", message, edit=edit, certain=ours)


class StatusFlow:
    """Follows the exit statuses of a script's commands by the rules of bash."""

    def __init__(self, shell: ShellText) -> None:
        self.shell = shell
        self.pipefail = re.search(r"\bset\b[^\n]*\bpipefail\b|-o\s*pipefail", shell.code) is not None
        self.tracked = re.search(r"\btrap\b[^\n]*\bERR\b", shell.code) is not None
        # (line from which `set -e` is switched, whether it is on).
        self._switched = [(0, re.match(r"#!.*sh[ \t]+-\w*e", shell.text) is not None)]
        sets, switch = (c for c in shell.commands if c.name == "set"), r"\s([-+])(?:\w*e\w*|o errexit)(?!\S)"
        self._switched += [(c.line, sign == "-") for c in sets for sign in re.findall(switch, " ".join(c.texts))]

    def _errexit(self, node: Node) -> bool:
        return next(on for at, on in reversed(self._switched) if at <= self.shell.line_of(node))

    def loss(self, node: Node, depth: int = 0) -> Loss | None:
        """Return how the status of a statement is lost; None if it is kept or cannot be followed."""
        if self.tracked or depth > 5:
            return None
        tested = False  # Whether the statement is left of &&, where set -e does not apply.
        while (parent := node.parent) is not None:
            kind, last = parent.type, parent.named_children[-1]
            if _TESTS.fullmatch(kind) and (
                kind != "if_statement" or node in parent.children_by_field_name("condition")
            ):
                return None
            if kind == "pipeline" and last != node and not self.pipefail:
                return None if _kept_in(_after(parent, *ancestors(parent))) else ("pipe", last)
            if kind == "list" and last != node:
                if any(child.type == "||" for child in parent.children):
                    return ("or", last) if _SAYS.fullmatch(text_of(last)) and not tested else None
                tested = True
            elif kind == "function_definition":
                calls = (c.node for c in self.shell.commands if c.name == text_of(parent.named_children[0]))
                return next(filter(None, (self.loss(call, depth + 1) for call in calls)), None)
            elif kind not in ("pipeline", "redirected_statement", "case_statement"):
                if has_ampersand(node):
                    return self._waited(node)
                if following := _after(node):
                    stops = self._errexit(node) and not tested
                    # If the status is saved inside a loop or a block, statements after the loop may read it.
                    wide = _after(node, *ancestors(node)) if _KEEPS.search(text_of(following[0])) else following
                    return None if stops or _kept_in(wide) else self._replaced(following)
                tested = False
            node = parent
        return None

    def _replaced(self, following: Sequence[Node]) -> Loss | None:
        """Return how a status is lost if none of the following statements checks it; None as for `loss`."""
        for at, after in enumerate(following):
            text = text_of(after)
            if end := re.fullmatch(r"(?:exit|return)(?:\s+[\"']?(\S+?)[\"']?)?", text):
                return ("exit", after) if end[1] == "0" else ("then", following[at - 1]) if at and not end[1] else None
            if text[:1] in "~-" or re.search(r"\b(exit|return)\b", text):
                return None  # A statement that is not a command sets its own status.
        return "then", following[-1]

    def _waited(self, node: Node) -> Loss | None:
        """Return how the status of a background job is lost by a `wait`; None if it is kept or there is no `wait`."""
        waits = [c for c in self.shell.commands if c.node.start_byte > node.end_byte and c.name == "wait"]
        if waits and len(waits[-1].words) > 1:
            return self.loss(waits[-1].node)
        reads = any(len(c.words) > 1 and not c.within("function_definition") for c in waits)
        return None if not waits or reads or _kept_in(_after(node, *ancestors(node))) else ("wait", waits[-1].node)


def _kept_in(statements: Iterable[Node]) -> bool:
    """Return whether the statements use an exit status. Saving and printing it is not enough."""
    texts = [text for statement in statements if not _SAYS.fullmatch(text := text_of(statement))]
    names = [match[1] for text in texts if (match := re.fullmatch(r"(\w+)=\"?\$(?:\?|\{\?\})\"?", text))]
    kept = sum(_KEEPS.search(text) is not None for text in texts)
    return kept > len(names) or any(re.search(rf"\b{name}\b(?!=)", text) for name in names for text in texts)


def _after(*nodes: Node) -> list[Node]:
    """Return the statements after each node in the node's block."""
    later = [x for node in nodes if node.parent for x in node.parent.named_children if x.start_byte >= node.end_byte]
    return [x for x in later if not re.match("comment|elif_clause|else_clause|heredoc_body|file_redirect", x.type)]
