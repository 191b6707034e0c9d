"""Runs `noether lint`: what is wrong goes to the terminal or into JSON, mended scripts beside the originals."""

import json
from collections.abc import Sequence

from noether.errors import ExitCode, RequestError
from noether.lint.check import Report, lint_files, mend, mended_path
from noether.lint.finding import Finding
from noether.lint.rules import RULES


def run_lint(words: Sequence[str], hp: str | None, fix: bool, as_json: bool, rules: bool) -> int:
    """Lints the files among the words, with the others as overrides of the configuration; returns the exit code."""
    if rules:
        for rule in RULES:
            print(f"{rule.name:<24} {rule.level:<8} {rule.why}")
        return ExitCode.DONE
    overrides = [word for word in words if "=" in word.partition("/")[0] or word.startswith(("+", "~"))]
    reports = lint_files([word for word in words if word not in overrides], hp, overrides)
    if as_json:
        several = len(reports) > 1
        found = [({"file": str(r.path)} if several else {}) | f.as_dict() for r in reports for f in r.findings]
        print(json.dumps(found, indent=2, ensure_ascii=False))
    for report in reports:
        if not as_json:
            print(*render(report), sep="\n")
        if fix:
            _write_mended(report, quiet=as_json)
    errors = any(finding.level == "error" for report in reports for finding in report.findings)
    return ExitCode.FAILED if errors else ExitCode.DONE


def render(report: Report) -> list[str]:
    """Returns a report as lines: each finding with the line it is about and what to write, then what would start."""
    source = report.text.replace("\r", "").split("\n")
    lines: list[str] = []
    for finding in report.findings:
        lines += _shown(report, finding, source)
    errors = sum(finding.level == "error" for finding in report.findings)
    warnings = len(report.findings) - errors
    lines += [f"{report.path}: {text}" for text in report.summary]
    count = f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    lines.append(f"{report.path}: {count if report.findings else 'nothing wrong found'}")
    return lines


def _shown(report: Report, finding: Finding, source: Sequence[str]) -> list[str]:
    text = source[finding.line - 1].strip() if 0 < finding.line <= len(source) else ""
    lines = [f"{report.path}:{finding.line}: {finding.level}: {finding.message} [{finding.rule}]"]
    if text:
        lines.append(f"  line  {_printable(text)}")
    if finding.fix:
        lines.append(f"  fix   {_printable(finding.fix)}")
    return lines


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)[:300]


def _write_mended(report: Report, quiet: bool) -> None:
    text, left = mend(report.text, report.path)
    target = mended_path(report.path)
    if text == report.text:
        said = [f"{report.path}: nothing that can be mended without you"] if report.findings else []
    elif target == report.path:
        raise RequestError(
            f"{report.path} is itself a mended script",
            seen=str(report.path),
            expected="the original, beside which the mended one is written",
        )
    else:
        try:
            target.write_text(text, newline="")
        except OSError as error:
            raise RequestError(f"cannot write {target}", seen=error.strerror or str(error)) from None
        said = [f"{target}: written, {len(report.findings) - len(left)} of {len(report.findings)} mended"]
        said += [f"  left to you, line {f.line}: {f.message} [{f.rule}]" for f in left]
    if not quiet and said:
        print(*said, sep="\n")
