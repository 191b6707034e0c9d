"""Run `slurm-lint`: print the findings in one of several formats, and write fixed scripts beside the originals."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from os import devnull, environ
from pathlib import Path

from slurm_lint import __version__
from slurm_lint.check import Report, lint_files, lint_text
from slurm_lint.finding import Finding, apply
from slurm_lint.formats import FORMATS, render
from slurm_lint.programs import NOTHING, Asked, Program, read_site
from slurm_lint.rules import RULES, Rule
from slurm_lint.words import UsageError, nearest


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line of files, folders and flags; return the exit code."""
    parser = ArgumentParser(prog="slurm-lint", allow_abbrev=False,
                            description="Find faults in Slurm job scripts before they wait in the queue.",
                            epilog="Exit code: 1 with errors, 0 without, 2 if a file could not be read.")  # fmt: skip
    parser.add_argument("scripts", nargs="*", metavar="FILE", help="a script for sbatch, a folder of them, or a README")
    parser.add_argument("--advice", action="store_true", help="also show advice: lines that work but could be better")
    parser.add_argument("--fix", action="store_true", help="make the safe fixes in a copy: job.fixed.sbatch")
    parser.add_argument("--format", dest="style", default="text", help=f"{', '.join(FORMATS)} (default: text)")
    parser.add_argument("--slurm", metavar="VERSION", help="also report what is wrong only in this version: 23.02")
    parser.add_argument("--site", metavar="FILE", help="the site's partitions, required options and version of Slurm")
    parser.add_argument("--rules", action="store_true", help="list the rules; check nothing")
    parser.add_argument("--version", action="version", version=f"slurm-lint {__version__}")
    flags = vars(parser.parse_args(words))
    try:
        return list_rules() if flags.pop("rules") else run_lint(flags.pop("scripts"), **flags)
    except UsageError as error:
        print(f"slurm-lint: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # The reader has ended, as in `slurm-lint … | head`.
        sys.stdout = open(devnull, "w")  # noqa: SIM115  (the interpreter closes it)
        return 0


def run_lint(
    paths: Sequence[str], *, fix: bool = False, style: str = "text", slurm: str | None = None, site: str | None = None,
    advice: bool = False, programs: tuple[Program, ...] = (),
) -> int:  # fmt: skip
    """Lint files and print the findings; return the exit code.

    With `fix=True`, also write fixed scripts beside the originals. `style`: one of `formats.FORMATS`. `slurm`: the
    cluster's version of Slurm. `site`: the path of the site's file. `programs`: the taught programs. UsageError:
    a flag has an unknown value, or there is no file to lint.
    """
    if style not in FORMATS:
        raise UsageError(f"no such format: {style}", fix=f"--format {nearest(style, FORMATS) or FORMATS[0]}")
    asked = Asked(read_site(site, slurm), programs, advice)
    reports = lint_files(paths, asked)
    colour, taught = sys.stdout.isatty() and "NO_COLOR" not in environ, [r for each in programs for r in each.rules]
    print(*render(reports, style, taught, colour=colour), sep="\n")
    for report in reports if fix else ():
        said = [] if report.unread else write_fixed(report, asked)
        if style == "text" and said:
            print(*said, sep="\n")
    failed = any(finding.level == "error" for report in reports for finding in report.findings)
    return 2 if any(report.unread for report in reports) else int(failed)


def fix_script(data: bytes, path: Path, asked: Asked = NOTHING) -> tuple[bytes, tuple[Finding, ...]]:
    """Return a script with all safe changes made, and the remaining findings.

    Make one change at a time and then lint the script again, so that changes cannot interfere. Bytes that are not UTF-8
    stay unchanged.
    """
    text = data.decode("utf-8", "surrogateescape")
    while True:
        every, _ = lint_text(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), path, asked)
        findings = tuple(finding for finding in every if asked.advice or finding.level != "advice")
        edit = next((f.edit for f in findings if f.edit and f.edit.safe), None)
        if edit is None:
            return text.encode("utf-8", "surrogateescape"), findings
        text = apply(text, edit)


def write_fixed(report: Report, asked: Asked) -> list[str]:
    """Write the fixed script beside the original; return lines that report the changes.

    UsageError: the script is itself a fixed script, or the folder is not writable.
    """
    path, (data, left) = report.path, fix_script(report.data, report.path, asked)
    target = path.with_name(f"{path.stem.removesuffix('.fixed')}.fixed{path.suffix}")
    if data == report.data:
        return [f"{path}: nothing that is safe to fix automatically"] if report.findings else []
    if target == path:
        raise UsageError(f"{path} is itself a fixed script", fix="the original, beside which the fixed one is written")
    try:
        target.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from None
    said = [f"{target}: written, {len(report.findings) - len(left)} of {len(report.findings)} fixed"]
    return said + [f"  left to you, line {f.line}: {f.message} [{f.code} {f.rule}]" for f in left]


def list_rules(taught: Sequence[Rule] = ()) -> int:
    """Print all rules, including the `taught` ones, one per line; return the exit code."""
    for rule in (*RULES, *taught):
        print(f"{rule.code}  {rule.name:<24} {rule.level:<8} {rule.why}")
    return 0
