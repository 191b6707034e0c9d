"""How well scalars derived from the fields are predicted, such as the lift coefficient."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from noether.evaluation.tables import reference_words
from noether.report.charts import parity
from noether.report.elements import absent, fill
from noether.report.numbers import number, score_text
from noether.report.phrases import full_stop, heading
from noether.report.run import ReportedRun

SCALAR_PARTS = ("prediction", "truth", "integral_of_truth")


def scalars_section(run: ReportedRun) -> Markup:
    """Each scalar's scores beside a chart of predictions against truths."""
    scores = run.result.get("scalars") or {}
    names = list(scores) or list(run.meta.get("scalars") or ())
    if not names:
        return absent(run, "result.json", "the task derives no scalar from its fields")
    return fill("scalars.html", scalars=[_scalar(run, name, scores.get(name)) for name in names])


def _scalar(run: ReportedRun, name: str, score: Any) -> dict[str, Any]:
    score = score if isinstance(score, Mapping) else {}
    facts = {
        "R²": score_text(score.get("r2")),
        "Spearman": score_text(score.get("spearman")),
        "mean error": number(score["mae"]) if score.get("mae") is not None else None,
        "largest error": number(score["max"]) if score.get("max") is not None else None,
        "R² of the true field": score_text(score["floor_r2"]) if score.get("floor_r2") is not None else None,
    }
    known = any(score.get(key) is not None for key in ("r2", "mae", "floor_r2"))
    about = {"heading": heading(name), "words": _scalar_words(score), "facts": list(facts.items()) if known else []}
    prediction, truth, floor = (run.figures(f"{name}/{part}") for part in SCALAR_PARTS)
    if prediction is None or truth is None or len(prediction) != len(truth) or not len(truth):
        return {**about, "chart": ""}
    if floor is not None and (len(floor) != len(truth) or np.allclose(floor, truth, rtol=1e-9)):
        floor = None  # the truth is that integral: the rings would all lie on the line
    keys = [("model", "accent", "dot"), ("true field", "second", "ring"), ("prediction = truth", "muted", "dashed")]
    lines = [f"R²  {score_text(score.get('r2'))}", f"Spearman  {score_text(score.get('spearman'))}"]
    chart = parity(f"parity-{name}", truth, prediction, floor, lines)
    return {**about, "legend": [key for key in keys if floor is not None or key[2] != "ring"], "chart": chart}


def _scalar_words(score: Mapping[str, Any]) -> list[str]:
    words = [full_stop(str(score["note"]))] if score.get("note") else []
    if score.get("r2") is None and not words:
        words.append("R² is undefined for these samples.")
    if score.get("floor_r2") is not None:
        words.append(
            "The true field, integrated over the same points, has the R² that is listed last; with these points no "
            "model can be expected to do better."
        )
    if (score.get("dynamic_pressure") or score.get("speed_of")) and score.get("reference_area"):
        words.append(full_stop(reference_words(score)))
    return words
