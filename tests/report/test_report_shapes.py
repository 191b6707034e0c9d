"""Records that are JSON of another shape than the page reads are named as damaged, as those that cannot be parsed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import make_run

from noether.report.page import render_report
from noether.report.run import read_run
from noether.runs.folder import RunFolder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose page is made in a moment: no pictures, no curves."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "small", shapes=3, points=40)
    (folder.evaluation / "test.npz").unlink()
    folder.metrics.unlink()
    return folder


SHAPES = {  # name: (file, keys of the place, what stands there)
    "fields-in-a-list": ("result.json", ("fields",), ["surface_pressure"]),
    "a-field-is-a-number": ("result.json", ("fields", "surface_pressure"), 0.1),
    "components-in-a-list": ("result.json", ("fields", "volume_velocity", "components"), [1.0]),
    "figures-in-a-list": ("result.json", ("figures",), [0.1]),
    "scalars-in-a-list": ("result.json", ("scalars",), ["lift"]),
    "a-score-is-a-text": ("result.json", ("scalars", "lift_coefficient", "r2"), "0.9"),
    "baselines-in-a-list": ("result.json", ("baselines",), [1]),
    "a-ragged-confusion": ("result.json", ("classes",), {"names": ["a", "b"], "confusion": [[1], [0, 2]]}),
    "seconds-in-words": ("result.json", ("seconds",), "318 s"),
    "updates-without-end": ("result.json", ("updates",), 10**400),
    "parts-of-time-in-words": ("result.json", ("time_use",), {"parts": {"forward": "most"}}),
    "a-part-that-is-a-list": ("result.json", ("report_parts",), [["errors"]]),
    "length-in-a-list": ("plan.json", ("length",), [402]),
    "data-in-a-list": ("plan.json", ("data",), [540, 60, 100]),
    "model-is-a-text": ("plan.json", ("model",), "upt"),
    "endpoint-is-a-text": ("plan.json", ("endpoint",), "127.0.0.1:0"),
    "ranks-in-words": ("plan.json", ("world_size",), "two"),
    "workers-by-rank": ("plan.json", ("workers",), {"0": {"rank": 0}}),
    "batch-without-end": ("plan.json", ("batch", "effective"), float("inf")),
}


@pytest.mark.parametrize(("name", "place", "value"), SHAPES.values(), ids=SHAPES.keys())
def test_a_record_of_another_shape_is_named(small: RunFolder, name: str, place: tuple[str, ...], value: Any) -> None:
    path = small.path / name
    whole = path.read_text()
    content = json.loads(whole)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))
    try:
        run = read_run(small)
        page = render_report(run)
    finally:
        path.write_text(whole)
    assert run.troubles[name].startswith(f"{name} cannot be read (ValueError: {'.'.join(place)}")
    assert f"{name} cannot be read" in page
    assert name not in read_run(small).troubles, "as it was written"


def test_the_meta_of_an_evaluation_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", shapes=3, points=40)
    np.savez(folder.evaluation / "test.npz", meta=np.array(json.dumps({"fields": ["surface_pressure"]})))
    run = read_run(folder)
    assert (run.meta, run.arrays) == ({}, {})
    assert "fields" in run.troubles["test.npz"]
    assert render_report(run)
