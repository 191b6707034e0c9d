"""Runs `noether lint`: findings go to the terminal or into a report, fixed scripts beside the originals."""

import re
from collections.abc import Sequence
from pathlib import Path

from noether.common.errors import ExitCode, RequestError
from noether.common.suggest import one_of
from noether.lint.check import Report, lint_files, lint_text
from noether.lint.finding import Finding, apply
from noether.lint.formats import FORMATS, render
from noether.lint.rank_rules import ReadLine, Requested
from noether.lint.rules import RULES


def run_lint(
    words: Sequence[str], hp: str | None, fix: bool, style: str, read_line: ReadLine, slurm: str | None = None
) -> int:
    """Lints the files among the words, with the others as overrides of the configuration; returns the exit code.

    `hp` is a configuration file whose batch the ranks are to share; with `fix` fixed scripts are written beside the
    originals; `style` is one of `formats.FORMATS`; `slurm` is the version of Slurm that the job is for, such as 23.02.
    """
    style = one_of("format", style, FORMATS)
    overrides = [word for word in words if "=" in word.partition("/")[0] or word.startswith(("+", "~"))]
    paths = [word for word in words if word not in overrides]
    if slurm is not None and not re.match(r"\d\d\.\d\d\b", slurm):
        raise RequestError("slurm-version", f"{slurm!r} is no version of Slurm", seen=slurm, fix="--slurm 23.02")
    requested = Requested(read_line, hp, tuple(overrides), float(slurm[:5]) if slurm else None)
    reports = lint_files(paths, requested)
    print(*render(reports, style), sep="\n")
    for report in reports if fix else ():
        said = [] if report.unread else write_fixed(report, requested)
        if style == "text" and said:
            print(*said, sep="\n")
    if any(report.unread for report in reports):
        return ExitCode.REQUEST
    return ExitCode.FAILED if any(f.level == "error" for r in reports for f in r.findings) else ExitCode.DONE


def fix_script(data: bytes, path: Path, requested: Requested | None = None) -> tuple[bytes, tuple[Finding, ...]]:
    """Returns a script with all changes made that cannot be wrong, and the findings that are left.

    One change is made at a time and the result linted again, so that changes never meet. Bytes that are not UTF-8 are
    carried through unchanged.
    """
    text = data.decode("utf-8", "surrogateescape")
    while True:
        findings, _ = lint_text(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), path, requested)
        edit = next((f.edit for f in findings if f.edit and f.edit.safe), None)
        if edit is None:
            return text.encode("utf-8", "surrogateescape"), findings
        text = apply(text, edit)


def write_fixed(report: Report, requested: Requested) -> list[str]:
    """Writes the fixed script beside the original (job.fixed.sbatch), and returns lines that say what was done.

    RequestError: the file is itself a fixed script, or the new one cannot be written.
    """
    data, left = fix_script(report.data, report.path, requested)
    path = report.path
    target = path.with_name(f"{path.stem.removesuffix('.fixed')}.fixed{path.suffix}")
    if data == report.data:
        return [f"{report.path}: nothing that can be changed without you"] if report.findings else []
    if target == report.path:
        expected = "the original, beside which the fixed one is written"
        raise RequestError("script-already-fixed", f"{report.path} is itself a fixed script", expected=expected)
    try:
        target.write_bytes(data)
    except OSError as error:
        raise RequestError("script-not-written", f"cannot write {target}", seen=error.strerror or str(error)) from None
    said = [f"{target}: written, {len(report.findings) - len(left)} of {len(report.findings)} fixed"]
    return said + [f"  left to you, line {f.line}: {f.message} [{f.code} {f.rule}]" for f in left]


def list_rules() -> int:
    """Prints the rules, one a line; returns the exit code."""
    for rule in RULES:
        print(f"{rule.code}  {rule.name:<24} {rule.level:<8} {rule.why}")
    return ExitCode.DONE
