"""Writes what `--fix` can change without a doubt: the rest of the file stays as it was, byte for byte."""

from pathlib import Path

from noether.errors import RequestError
from noether.lint.check import Report, lint_text
from noether.lint.finding import Finding
from noether.lint.rank_rules import Requested
from noether.lint.trial import apply


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

    Raises:
        RequestError: where the file is itself a fixed script, or the new one cannot be written.
    """
    data, left = fix_script(report.data, report.path, requested)
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
