"""Writes findings as text, JSON, GitHub's annotations or SARIF."""

import json
from collections.abc import Sequence
from typing import Any

from noether.common.numbers import counted
from noether.common.shown import shown_name
from noether.lint.check import Report
from noether.lint.finding import Finding
from noether.lint.rules import RULES

FORMATS = ("text", "json", "github", "sarif")
LONGEST_LINE = 300


def render(reports: Sequence[Report], style: str) -> list[str]:
    """Returns the findings of all files as lines, in one of FORMATS."""
    if style == "json":
        found = [({"file": str(r.path)} if len(reports) > 1 else {}) | f.as_dict() for r in reports for f in r.findings]
        return [json.dumps(found, indent=2, ensure_ascii=False)]
    if style == "github":
        return [_annotation(report, finding) for report in reports for finding in report.findings]
    if style == "sarif":
        return [json.dumps(_sarif(reports), indent=2, ensure_ascii=False)]
    return [line for report in reports for line in text_of(report)]


def text_of(report: Report) -> list[str]:
    """Returns a report as lines: each finding with the line it is about and what to write, then what would start."""
    source = report.data.decode("utf-8", "replace").replace("\r", "").split("\n")
    lines: list[str] = []
    for finding in report.findings:
        text = source[finding.line - 1].strip() if 0 < finding.line <= len(source) else ""
        rule = f"[{finding.code} {finding.rule}]"
        lines.append(f"{report.path}:{finding.line}: {finding.level}: {finding.message} {rule}")
        lines += [f"  line  {shown_name(text)[:LONGEST_LINE]}"] if text else []
        word = "fix " if finding.edit else "hint"
        lines += [f"  {word}  {shown_name(each)[:LONGEST_LINE]}" for each in finding.fix.split("\n") if each]
    errors = sum(finding.level == "error" for finding in report.findings)
    lines += [f"{report.path}: {text}" for text in report.summary]
    count = f"{counted(errors, 'error')}, {counted(len(report.findings) - errors, 'warning')}"
    return [*lines, f"{report.path}: {count if report.findings else 'nothing wrong found'}"]


def _annotation(report: Report, finding: Finding) -> str:
    """Returns a workflow command of GitHub Actions, escaped as docs.github.com says ("Workflow commands")."""
    place = f"file={_escaped(str(report.path), ':,')},line={finding.line}"
    title = _escaped(f"{finding.code} {finding.rule}", ":,")
    message = finding.message + (f"\nfix: {finding.fix}" if finding.fix else "")
    return f"::{finding.level} {place},title={title}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(letter):02X}" if letter in "%\r\n" + more else letter for letter in text)


def _sarif(reports: Sequence[Report]) -> dict[str, Any]:
    """Returns a log by SARIF 2.1.0 (OASIS), as code scanning services read it."""
    rules = [
        {"id": rule.code, "name": rule.name, "shortDescription": {"text": rule.why},
         "defaultConfiguration": {"level": rule.level},
         "helpUri": f"docs/lint-rules.md#{rule.code.lower()}-{rule.name}"}
        for rule in RULES
    ]  # fmt: skip
    results = [
        {"ruleId": f.code, "level": f.level, "message": {"text": f.message + (f"\nfix: {f.fix}" if f.fix else "")},
         "locations": [{"physicalLocation": {"artifactLocation": {"uri": report.path.as_posix()},
                                             "region": {"startLine": f.line}}}]}
        for report in reports for f in report.findings
    ]  # fmt: skip
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": {"name": "noether lint", "rules": rules}}, "results": results}],
    }
