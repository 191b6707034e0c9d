"""Writes what `--fix` can change without a doubt: the rest of the file stays as it was, byte for byte."""

from pathlib import Path

from noether.errors import RequestError
from noether.lint.check import Report, lint_text
from noether.lint.finding import Edit, Finding


def fix_script(data: bytes, path: Path) -> tuple[bytes, tuple[Finding, ...]]:
    """Returns a script with all changes made that cannot be wrong, and the findings that are left.

    One change is made at a time and the result linted again, so that changes never meet; one that does not make its
    own finding go, or that brings another, is undone. Bytes that are not UTF-8 are carried through unchanged.
    """
    text = data.decode("utf-8", "surrogateescape")
    findings = _findings(text, path)
    hopeless: set[tuple[str, str, int]] = set()
    while chosen := next((f for f in findings if f.edit and (f.rule, f.message, f.line) not in hopeless), None):
        assert chosen.edit is not None
        changed = _apply(text, chosen.rule, chosen.edit)
        after = _findings(changed, path)
        if len(after) >= len(findings) or _alike(after, chosen) >= _alike(findings, chosen) or changed == text:
            hopeless.add((chosen.rule, chosen.message, chosen.line))
        else:
            text, findings = changed, after
    return text.encode("utf-8", "surrogateescape"), findings


def _alike(findings: tuple[Finding, ...], chosen: Finding) -> int:
    return sum((f.rule, f.message) == (chosen.rule, chosen.message) for f in findings)


def _findings(text: str, path: Path) -> tuple[Finding, ...]:
    return lint_text(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), path)[0]


def _apply(text: str, rule: str, edit: Edit) -> str:
    if rule == "dos-line-ends":
        return text.replace("\r\n", "\n")
    lines = text.split("\n")
    index = edit.line - 1
    if not 0 <= index < len(lines):
        return text
    end = "\r" if lines[index].endswith("\r") else ""
    original = lines[index].removesuffix("\r")
    # A line of the edit that is the line itself keeps its bytes, whatever they were read as.
    shown = original.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    instead = [(original if line == shown else line) + end for line in edit.instead]
    changed = "\n".join([*lines[:index], *instead, *lines[index + 1 :]])
    if edit.at_end:
        changed = changed if changed.endswith("\n") else changed + end + "\n"
        changed += "".join(line + end + "\n" for line in edit.at_end)
    return changed


def write_fixed(report: Report) -> list[str]:
    """Writes the fixed script beside the original (job.fixed.sbatch), and returns lines that say what was done.

    Raises:
        RequestError: where the file is itself a fixed script, or the new one cannot be written.
    """
    data, left = fix_script(report.data, report.path)
    path = report.path
    target = path.with_name(f"{path.stem.removesuffix('.fixed')}.fixed{path.suffix}")
    if data == report.data:
        return [f"{report.path}: nothing that can be changed without you"] if report.findings else []
    if target == report.path:
        expected = "the original, beside which the fixed one is written"
        raise RequestError(
            "script-already-fixed", f"{report.path} is itself a fixed script", seen=str(report.path), expected=expected
        )
    try:
        target.write_bytes(data)
    except OSError as error:
        raise RequestError("script-not-written", f"cannot write {target}", seen=error.strerror or str(error)) from None
    said = [f"{target}: written, {len(report.findings) - len(left)} of {len(report.findings)} fixed"]
    return said + [f"  left to you, line {f.line}: {f.message} [{f.code} {f.rule}]" for f in left]
