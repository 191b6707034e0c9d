"""Which classes are taken for which: the share of each that is right, and the confusion matrix as a table."""

from html import escape
from typing import Any

import numpy as np

from noether.report.elements import absent
from noether.report.numbers import percent
from noether.report.phrases import plural
from noether.report.run import ReportedRun


def confusion(run: ReportedRun) -> tuple[list[str], np.ndarray] | None:
    """The names of the classes and the counts (classes, classes), true by row; None where there are none."""
    classes: Any = run.result.get("classes")
    if not isinstance(classes, dict):
        return None
    counts = np.asarray(classes.get("confusion") or [], int)
    names = [str(name) for name in classes.get("names") or ()]
    return (names, counts) if counts.shape == (len(names), len(names)) and names else None


def classes_section(run: ReportedRun) -> str:
    """The confusion matrix, one row for each true class, with the share that is right."""
    found = confusion(run)
    if found is None:
        return absent(run, "result.json", "no classes have been counted")
    names, counts = found
    most = max(1, int((counts - np.diag(np.diag(counts))).max(initial=0)))
    head = "".join(f'<th class="n">{escape(name)}</th>' for name in names)
    rows = [f'<tr><th>true class</th>{head}<th class="n">samples</th><th class="n">right</th></tr>']
    for number, (name, row) in enumerate(zip(names, counts, strict=True)):
        cells = "".join(_cell(int(count), column == number, most) for column, count in enumerate(row))
        right = percent(float(row[number] / row.sum())) if row.sum() else "–"
        rows.append(
            f'<tr><th>{escape(name)}</th>{cells}<td class="n">{row.sum():,}</td><td class="n">{right}</td></tr>'
        )
    wrong = int(counts.sum() - np.trace(counts))
    note = (
        f"{plural(wrong, 'sample')} of {counts.sum():,} {'is' if wrong == 1 else 'are'} taken for another class. Rows "
        "are true classes, columns what the model took them for; the deeper the colour, the more frequent the mistake."
    )
    return f'<div class="scroll"><table class="confusion">{"".join(rows)}</table></div><p class="note">{note}</p>'


def _cell(count: int, right: bool, most: int) -> str:
    if right:
        return f'<td class="n"><b>{count:,}</b></td>'
    if not count:
        return '<td class="n muted">·</td>'
    share = round(12 + 48 * count / most)
    return f'<td class="n" style="background:color-mix(in srgb, var(--second) {share}%, transparent)">{count:,}</td>'
