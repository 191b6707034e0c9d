"""What is wrong with these files? Reads them, asks every rule, and says what the job would start."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from noether.common.suggest import nearest
from noether.errors import RequestError
from noether.lint import batch, claims, ending, hosts, meeting, ranks, reach, submission
from noether.lint.finding import Finding
from noether.lint.job import Job
from noether.lint.script import Script

CHECKS: Sequence[Callable[[Job], Iterator[Finding]]] = (
    submission.form, submission.words, submission.ignored, submission.values, submission.together,
    ranks.tasks, ranks.step_ranks, reach.idle_nodes, reach.bare,
    ranks.launchers, ranks.mpi, ranks.inherited, ranks.resources,
    meeting.master, hosts.lists_as_hosts, meeting.port, meeting.early, meeting.environment, meeting.interfaces,
    ending.exit_code, ending.signals, ending.output, ending.requeue, ending.containers, claims.comments,
)  # fmt: skip
MAX_SIZE = 4 * 1024 * 1024
"""Slurm takes scripts of up to 4 MiB (slurm.conf(5), max_script_size)."""


@dataclass(frozen=True)
class Report:
    """The findings of one file by line, its text, and what its jobs would start."""

    path: Path
    text: str
    findings: tuple[Finding, ...]
    summary: tuple[str, ...]


def lint_text(
    text: str, path: Path, hp: str | None = None, overrides: Sequence[str] = ()
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Returns the findings in a script or a README, and what it would start."""
    if path.suffix.lower() in (".md", ".markdown", ".rst", ".txt") and not text.startswith("#!"):
        lines = list(enumerate(text.split("\n"), 1))
        found = list(claims.arithmetic(lines))
        scripts = list(_quoted_scripts(text, path))
    else:
        found, scripts = [], [Script(path.name, text, path.parent)]
    summary: list[str] = []
    for script in scripts:
        job = Job(script)
        for check in CHECKS:
            found += check(job)
        found += batch.batch(job, hp, overrides)
        summary += summarise(job)
    unique = {(f.line, f.rule, f.message): f for f in found}
    return tuple(sorted(unique.values(), key=lambda f: (f.line, f.level, f.rule))), tuple(summary)


def _quoted_scripts(text: str, path: Path) -> Iterator[Script]:
    for match in re.finditer(r"^([ \t]*)```[^\n]*\n(.*?)^\s*```", text, re.MULTILINE | re.DOTALL):
        if re.search(r"^\s*#SBATCH\s", match[2], re.MULTILINE):
            inner = "\n".join(line.removeprefix(match[1]) for line in match[2].rstrip("\n").split("\n"))
            yield Script(path.name, inner, path.parent, False, text.count("\n", 0, match.start(2)) + 1)


def summarise(job: Job) -> Iterator[str]:
    """Yields a line for each thing the script starts: nodes × tasks × GPUs → ranks."""
    for launch in job.launches:
        if not (launch.trains or launch.layer("srun") or launch.layer("mpirun")):
            continue
        shape = job.step_shape(launch) if launch.layer("srun") else job.shape
        chain = " → ".join(dict.fromkeys(layer.name for layer in launch.layers))
        if shape is None:
            yield f"line {launch.line}: {chain}: how many tasks is known when it runs"
            continue
        world = batch.world_size(job, launch)
        gpus = shape.total_gpus if launch.layer("srun") else shape.gpus_per_node
        parts = [f"{shape.nodes} node{'s' * (shape.nodes != 1)}"]
        if launch.layer("srun"):
            each = f"{shape.per_node:g} task{'s' * (shape.per_node != 1)} a node"
            parts.append(each)
        if shape.gpus_per_node:
            parts.append(f"{shape.gpus_per_node} GPU{'s' * (shape.gpus_per_node != 1)} a node")
        text = f"line {launch.line}: {chain}: {' × '.join(parts)}"
        if world is not None and launch.trains:
            text += f" → {world} rank{'s' * (world != 1)}"
            text += f" on {gpus} GPU{'s' * (gpus != 1)} ({world / gpus:g} per GPU)" if gpus else ""
        yield text


def lint_files(paths: Sequence[str], hp: str | None = None, overrides: Sequence[str] = ()) -> list[Report]:
    """Lints files, and the job scripts in folders (submitit's, say).

    Raises:
        RequestError: for a file that cannot be read, or a folder without a job script.
    """
    if not paths:
        raise RequestError("no job script was named", expected="a file", fix="noether lint job.sbatch")
    reports = []
    for path in [file for name in paths for file in _files(name)]:
        text = read_script(path)
        findings, summary = lint_text(text, path, hp, overrides)
        reports.append(Report(path, text, findings, summary))
    return reports


def read_script(path: Path) -> str:
    """Returns the text of a script, its line ends as they are.

    Raises:
        RequestError: where it cannot be read or is no script at all.
    """
    try:
        if path.stat().st_size > MAX_SIZE:
            raise RequestError(
                f"{path} is no job script", seen=f"{path.stat().st_size} bytes", expected="at most 4 MiB"
            )
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise RequestError(f"cannot read {path}", seen=error.strerror or str(error), expected="a job script") from None


def _files(name: str) -> list[Path]:
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            found = sorted({*path.glob("*_submission.sh"), *path.glob("*.sbatch"), *path.glob("*.slurm")})
            if not found:
                below = max(path.glob("*/*_submission.sh"), key=lambda file: file.stat().st_mtime, default=None)
                raise RequestError(
                    f"no job script in the folder {name}",
                    seen=f"no *_submission.sh, *.sbatch or *.slurm in {name}",
                    expected="a job script, or submitit's folder of one job",
                    fix=f"noether lint {below.parent}" if below else "",
                )
            return found
        if path.exists():
            return [path]
        near = nearest(path.name, (file.name for file in path.parent.iterdir())) if path.parent.is_dir() else None
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {name!r}", seen=str(error), expected="a job script") from None
    fix = f"noether lint {path.parent / near}" if near else ""
    raise RequestError(f"no job script {name}", seen=f"{name} does not exist", expected="a file or folder", fix=fix)


def mend(text: str, path: Path) -> tuple[str, tuple[Finding, ...]]:
    """Returns the script with everything mended that can be, and the findings that are left.

    One finding is mended at a time and the result linted again, so that mends never meet; one that does not make
    its own finding go is undone and left to the reader.
    """
    findings, _ = lint_text(text, path)
    hopeless: set[tuple[str, str]] = set()
    for _ in range(100):
        chosen = next((f for f in findings if f.edit and (f.rule, f.message) not in hopeless), None)
        if chosen is None:
            break
        mended = _apply(text, chosen)
        after, _ = lint_text(mended, path)
        serious = sum(f.level == "error" for f in after) > sum(f.level == "error" for f in findings)
        if serious or any((f.rule, f.message) == (chosen.rule, chosen.message) for f in after) or mended == text:
            hopeless.add((chosen.rule, chosen.message))
            continue
        text, findings = mended, after
    return text, findings


def _apply(text: str, finding: Finding) -> str:
    edit = finding.edit
    if edit is None:
        return text
    if finding.rule == "dos-line-ends":
        return text.replace("\r\n", "\n")
    lines = text.split("\n")
    index = edit.line - 1
    if not 0 <= index < len(lines):
        return text
    return "\n".join([*lines[:index], *edit.instead, *lines[index + 1 :]])


def mended_path(path: Path) -> Path:
    """Returns where a mended script is written: job.sbatch → job.fixed.sbatch."""
    stem = path.stem if path.stem.endswith(".fixed") else f"{path.stem}.fixed"
    return path.with_name(stem + path.suffix)
