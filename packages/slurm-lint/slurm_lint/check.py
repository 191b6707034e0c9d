"""Read files, apply every rule, and summarise what each job would start."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_lint import ending_rules, launch_rules, options_rules, rendezvous_rules
from slurm_lint.finding import Finding, checked, joined
from slurm_lint.job import Job
from slurm_lint.launch_rules import world_size
from slurm_lint.programs import NOTHING, Asked
from slurm_lint.rules import LEVELS
from slurm_lint.script import Script
from slurm_lint.shell import ends_parser
from slurm_lint.words import UsageError, counted, nearest

OPTION_CHECKS: Sequence[Callable[[Job], Iterator[Finding]]] = (
    options_rules.form, options_rules.syntax, options_rules.continued, options_rules.spooled, options_rules.words,
    options_rules.ignored, options_rules.values, options_rules.together, options_rules.dependency, options_rules.site,
)  # fmt: skip
COMMAND_CHECKS: Sequence[Callable[[Job], Iterator[Finding]]] = (
    options_rules.unfilled, launch_rules.tasks, launch_rules.launchers, launch_rules.reach, launch_rules.mpi,
    launch_rules.devices, launch_rules.step_nodes, launch_rules.step_cpus, launch_rules.side_by_side,
    launch_rules.misplaced, launch_rules.unset, launch_rules.never_set, launch_rules.array, rendezvous_rules.master,
    rendezvous_rules.backend, rendezvous_rules.too_early, rendezvous_rules.port, rendezvous_rules.default_port,
    rendezvous_rules.unexported, rendezvous_rules.hosts, ending_rules.exit_code, ending_rules.background_jobs,
    ending_rules.signals, ending_rules.output, ending_rules.requeue, ending_rules.containers, ending_rules.conda,
)  # fmt: skip
MAX_SIZE = 4 * 1024 * 1024  # Slurm accepts scripts of up to 4 MiB (slurm.conf(5), max_script_size).
NO_SCRIPTS = (".py", ".yaml", ".yml", ".toml", ".json", ".ipynb")
_UNUSUAL = re.compile(r"[\0-\x08\x0e-\x1a]|\A(?s:.{100000})")  # No script needs these; they may crash the parser.
_PROSE = (".md", ".markdown", ".rst", ".txt")


class Report(NamedTuple):
    """The findings in one file, in the order of their lines; its bytes; and a summary of what its jobs would start.

    `unread`: True if the file could not be read; the only finding is the reason. `advice`: the count of hidden advice.
    """

    path: Path
    data: bytes
    findings: tuple[Finding, ...] = ()
    summary: tuple[str, ...] = ()
    unread: bool = False
    advice: int = 0


def lint_text(text: str, path: Path, asked: Asked = NOTHING) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return the findings in a script or a README, including advice, and a summary of what its jobs would start."""
    findings, summary = _read(text, path, asked)
    return tuple(checked(text, findings, lambda changed: _read(changed, path, asked)[0])), summary


def _read(text: str, path: Path, asked: Asked) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    prose = path.suffix.lower() in _PROSE and not text.startswith("#!")
    found, summary = list[Finding](), list[str]()
    for script in _quoted_scripts(text, path) if prose else [Script(path, text)]:
        inner = list(script.inner)
        wraps = not script.components[0].given and (inner or re.search(r"(?m)^\s*sbatch\s", script.shell.code))
        for each in [*([] if wraps else [script]), *inner]:
            job = Job(each, asked)
            findings = [finding for check in OPTION_CHECKS for finding in check(job)]
            if not any(finding.rule == "shell-syntax" for finding in findings):
                findings += [finding for check in COMMAND_CHECKS for finding in check(job)]
                findings += [finding for program in asked.programs for finding in program.check(job)]
                summary += summarise(job)
            findings = [f.escaped() for f in findings] if each.expanded else findings
            off = {*asked.site.disable, *script.disabled()}
            found += joined(
                f for f in findings
                if f.concerns(asked.site.slurm) and not {f.rule, f.code, "all"} & (off | each.disabled(f.line))
            )  # fmt: skip
    unique = {(f.line, f.rule, f.message): f for f in found}
    return tuple(sorted(unique.values(), key=lambda f: (f.line, LEVELS.index(f.level), f.code))), tuple(summary)


def _quoted_scripts(text: str, path: Path) -> Iterator[Script]:
    for match in re.finditer(r"^([ \t]*)```[^\n]*\n(.*?)^\s*```", text, re.MULTILINE | re.DOTALL):
        if re.search(r"^\s*#SBATCH\s", match[2], re.MULTILINE):
            inner = "\n".join(line.removeprefix(match[1]) for line in match[2].rstrip("\n").split("\n"))
            yield Script(path, inner, complete=False, first_line=text.count("\n", 0, match.start(2)) + 1)


def summarise(job: Job) -> Iterator[str]:
    """Yield a line for each launch in a shell script (nodes × tasks × GPUs → ranks), or one line for other scripts."""
    if not job.script.is_shell:
        yield f"{job.script.shebang[1]}: options read, body not read"
    for launch in (each for each in job.launches if each.trains or each.layer("srun") or each.layer("mpirun")):
        shape, under_srun = job.shape_at(launch), launch.layer("srun") is not None
        text = f"line {launch.line}: {' → '.join(dict.fromkeys(layer.name for layer in launch.layers))}: "
        if shape is None:
            yield text + "the number of tasks is known only when it runs"
            continue
        tasks = f" × {shape.per_node:g} task{'s' * (shape.per_node != 1)} a node" if under_srun else ""
        text += counted(shape.nodes, "node") + tasks
        text += f" × {counted(shape.gpus_per_node, 'GPU')} a node" if shape.gpus_per_node else ""
        world, gpus = world_size(job, launch), shape.total_gpus if under_srun else shape.gpus_per_node
        gpus = shape.total_gpus if world and gpus and world > gpus else gpus
        if world is not None and launch.trains:
            text += f" → {counted(world, 'rank')}"
            text += f" on {counted(gpus, 'GPU')} ({world / gpus:g} per GPU)" if gpus else ""
        yield text


def lint_files(paths: Sequence[str], asked: Asked = NOTHING) -> list[Report]:
    """Lint files, and the job scripts in folders (such as submitit's). A file that cannot be read gets a finding.

    UsageError: no file was named, or the only name is neither a job script nor a folder with job scripts.
    """
    if not paths:
        raise UsageError("no job script was named", fix="slurm-lint job.sbatch")
    reports: list[Report] = []
    for name in paths:
        try:
            reports += [lint_file(path, asked) for path in _files(name)]
        except UsageError as error:
            if len(paths) == 1:
                raise
            reports.append(_unread(Path(name), error.summary))
    return reports


def lint_file(path: Path, asked: Asked = NOTHING) -> Report:
    """Lint one file. If this fails, the report has the reason as its only finding."""
    data = b""
    try:
        if path.stat().st_size > MAX_SIZE:
            return _unread(path, f"{path.stat().st_size} bytes: Slurm accepts scripts of at most 4 MiB")
        data = path.read_bytes()
        text = data.decode("utf-8", "replace")
        if _UNUSUAL.search(text) and ends_parser(text):
            return _unread(path, "the parser for bash cannot read it to the end", data)
        findings, summary = lint_text(text, path, asked)
    except OSError as error:
        return _unread(path, error.strerror or str(error), data)
    except (RecursionError, ValueError, KeyError, IndexError, AttributeError, TypeError, AssertionError) as error:
        return _unread(path, f"a fault in slurm-lint: {type(error).__name__}: {error}", data)
    shown = tuple(finding for finding in findings if asked.advice or finding.level != "advice")
    return Report(path, data, shown, summary, advice=len(findings) - len(shown))


def _unread(path: Path, why: str, data: bytes = b"") -> Report:
    return Report(path, data, (Finding(1, "unreadable-file", f"could not be read: {why}"),), unread=True)


def _files(name: str) -> list[Path]:
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            found = sorted({*path.glob("*_submission.sh"), *path.glob("*.sbatch"), *path.glob("*.slurm")})
            if not found:
                raise UsageError(f"no job script in {name}: expected *.sbatch, *.slurm or *_submission.sh")
            return found
        if path.suffix in NO_SCRIPTS and path.is_file() and b"#SBATCH" not in path.read_bytes()[:MAX_SIZE]:
            raise UsageError(f"{name} is not a job script: it has no line with #SBATCH", fix="slurm-lint JOB.sh")
        if path.exists() or path.is_symlink():
            return [path]
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        scripts = (file for file in sorted(beside) if file.endswith((".sh", ".sbatch", ".slurm")))
        near = nearest(path.name, beside) or next(scripts, None)
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"cannot read {name!r}: {error}") from None
    raise UsageError(f"no job script {name}", fix=f"slurm-lint {path.parent / near}" if near else "")
