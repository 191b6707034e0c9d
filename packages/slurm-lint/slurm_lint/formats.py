"""Write findings as text, JSON, GitHub's annotations or SARIF."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from slurm_lint.check import Report
from slurm_lint.finding import Finding
from slurm_lint.rules import RULES, Rule
from slurm_lint.words import counted, on_one_line

FORMATS = ("text", "json", "github", "sarif")
LONGEST_LINE = 300
_COLOURS = {"error": "31;1", "warning": "33;1", "advice": "36;1", "fix ": "32", "hint": "32"}  # Codes of ECMA-48.


def render(reports: Sequence[Report], style: str, taught: Sequence[Rule] = (), *, colour: bool = False) -> list[str]:
    """Return the findings in all files as lines, in one of FORMATS. `taught`: the rules of taught programs."""
    if style == "text":
        return [line for report in reports for line in text_of(report, colour)]
    found = [(report, finding) for report in reports for finding in report.findings]
    if style == "github":
        return [_annotation(report, finding) for report, finding in found]
    listed = [{"file": str(report.path)} | finding.as_dict() for report, finding in found]
    return [json.dumps(_sarif(found, (*RULES, *taught)) if style == "sarif" else listed, indent=2, ensure_ascii=False)]


def text_of(report: Report, colour: bool = False) -> Iterator[str]:
    """Yield the lines of a report as text: the path, each finding with its fix, and what the script would start."""

    def painted(word: str) -> str:
        return f"\x1b[{_COLOURS[word]}m{word}\x1b[0m" if colour and word in _COLOURS else word

    source = report.data.decode("utf-8", "replace").replace("\r", "").split("\n")
    yield str(report.path)
    for finding in report.findings:
        text = source[finding.line - 1].strip() if 0 < finding.line <= len(source) else ""
        yield f"  {finding.line}: {painted(finding.level)}: {finding.message} [{finding.code} {finding.rule}]"
        parts = [
            ("line", text),
            *(("fix " if finding.edit else "hint", each) for each in finding.fix.expandtabs(4).split("\n")),
        ]
        yield from (f"      {painted(word)}  {on_one_line(each)[:LONGEST_LINE]}" for word, each in parts if each)
    yield from (f"  {text}" for text in report.summary)
    levels = [finding.level for finding in report.findings]
    counts = [counted(number, word) for word in ("error", "warning") if (number := levels.count(word))]
    counts += [counted(number, "piece") + " of advice" for number in [levels.count("advice")] if number]
    hidden = f" ({counted(report.advice, 'piece')} of advice: --advice)" if report.advice else ""
    yield f"  {', '.join(counts) or 'nothing wrong found'}{hidden}"


def _annotation(report: Report, finding: Finding) -> str:
    """Return a finding as a workflow command of GitHub Actions, escaped as in "Workflow commands" (docs.github.com)."""
    place = f"file={_escaped(str(report.path), ':,')},line={finding.line}"
    title = _escaped(f"{finding.code} {finding.rule}", ":,")
    message = _with_fix(finding)
    return f"::{finding.level.replace('advice', 'notice')} {place},title={title}::{_escaped(message)}"


def _with_fix(finding: Finding) -> str:
    return finding.message + (f"\n{'fix' if finding.edit else 'hint'}: {finding.fix}" if finding.fix else "")


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(letter):02X}" if letter in "%\r\n" + more else letter for letter in text)


def _sarif(found: Sequence[tuple[Report, Finding]], known: Sequence[Rule]) -> dict[str, Any]:
    """Return the findings as a log in SARIF 2.1.0 (OASIS) for code scanning; SARIF's name for advice is "note"."""
    rules = [{"id": rule.code, "name": rule.name, "shortDescription": {"text": rule.why},
              "defaultConfiguration": {"level": rule.level.replace("advice", "note")}} for rule in known]  # fmt: skip
    results = [
        {"ruleId": f.code, "level": f.level.replace("advice", "note"),
         "message": {"text": _with_fix(f)},
         "locations": [{"physicalLocation": {"artifactLocation": {"uri": report.path.as_posix()},
                                             "region": {"startLine": f.line}}}]}
        for report, f in found
    ]  # fmt: skip
    runs = [{"tool": {"driver": {"name": "slurm-lint", "rules": rules}}, "results": results}]
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": runs}
