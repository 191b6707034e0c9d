"""The confusion matrix as a table, with the share of each class that is right."""

from typing import Any

import numpy as np
from markupsafe import Markup

from noether.report.elements import absent, fill
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


def classes_section(run: ReportedRun) -> Markup:
    """The confusion matrix, one row for each true class, with the share that is right."""
    found = confusion(run)
    if found is None:
        return absent(run, "result.json", "no classes have been counted")
    names, counts = found
    most = max(1, int((counts - np.diag(np.diag(counts))).max(initial=0)))
    rows = [
        {
            "name": name,
            "number": number,
            "counts": row.tolist(),
            "samples": int(row.sum()),
            "right": percent(float(row[number] / row.sum())) if row.sum() else "–",
        }
        for number, (name, row) in enumerate(zip(names, counts, strict=True))
    ]
    wrong = int(counts.sum() - np.trace(counts))
    note = (
        f"{plural(wrong, 'sample')} of {counts.sum():,} {'is' if wrong == 1 else 'are'} taken for another class. Rows "
        "are true classes, columns what the model took them for; the deeper the colour, the more frequent the mistake."
    )
    return fill("classes.html", names=names, rows=rows, most=most, note=note)
