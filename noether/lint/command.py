"""Runs `noether lint`: findings go to the terminal or into a report, fixed scripts beside the originals."""

import re
from collections.abc import Sequence

from noether.common.suggest import nearest
from noether.errors import ExitCode, RequestError
from noether.lint.check import lint_files
from noether.lint.fix import write_fixed
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
    if style not in FORMATS:
        expected = ", ".join(FORMATS)
        raise RequestError(
            "unknown-format",
            f"no format {style!r}",
            seen=f"--format {style}",
            expected=expected,
            fix=f"--format {nearest(style, FORMATS) or 'text'}",
        )
    overrides = [word for word in words if "=" in word.partition("/")[0] or word.startswith(("+", "~"))]
    paths = [word for word in words if word not in overrides]
    if slurm is not None and not re.match(r"\d\d\.\d\d\b", slurm):
        raise RequestError(
            "slurm-version",
            f"{slurm!r} is no version of Slurm",
            seen=slurm,
            expected="such as 23.02",
            fix="--slurm 23.02",
        )
    requested = Requested(read_line, hp, tuple(overrides), float(slurm[:5]) if slurm else None)
    reports = lint_files(paths, requested)
    print(*render(reports, style), sep="\n")
    for report in reports if fix else ():
        said = [] if report.unread else write_fixed(report, requested)
        if style == "text" and said:
            print(*said, sep="\n")
    if any(report.unread for report in reports):
        return ExitCode.REQUEST
    errors = any(finding.level == "error" for report in reports for finding in report.findings)
    return ExitCode.FAILED if errors else ExitCode.DONE


def list_rules() -> int:
    """Prints the rules, one a line; returns the exit code."""
    for rule in RULES:
        print(f"{rule.code}  {rule.name:<24} {rule.level:<8} {rule.why}")
    return ExitCode.DONE
