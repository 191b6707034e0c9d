"""The whole page: every section is there, nothing is loaded from elsewhere, text from the run is escaped."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from report_runs import FIELDS, SECTIONS, Page, make_run, without_cases

from noether.config.compose import load_config
from noether.runs.folder import RunFolder
from noether.runs.metrics import Metric, Metrics
from noether.runs.report.page import render_report, write_report
from noether.runs.report.run import ReportedRun

pytest_plugins = ("report_fixtures",)


def test_page_has_every_section_in_order(page: str) -> None:
    read = Page(page)
    assert [attributes["id"] for tag, attributes in read.tags if tag == "section"] == list(SECTIONS)
    assert all(read.texts[section].strip() for section in SECTIONS)
    assert "absent" not in [attributes.get("class") for _, attributes in read.tags]
    assert read.count("img") == 5 * 2 * 3  # cases, fields, columns
    assert read.count("svg") == 1 + 2 * 2 + 5 + 1  # parity, two distributions of each field, curves, time


def test_page_loads_nothing(page: str) -> None:
    read = Page(page)
    assert {"script", "link", "iframe", "object", "base"}.isdisjoint(tag for tag, _ in read.tags)
    links = [value for _, attributes in read.tags for key, value in attributes.items() if key in ("href", "src")]
    assert links
    assert all(link and link.startswith(("#", "data:image/webp;base64,")) for link in links)
    assert "://" not in page
    assert not re.search(r"url\((?!#)|@import|srcset|\son\w+=", page)


def test_ids_are_unique_and_references_resolve(page: str) -> None:
    ids = [attributes["id"] for _, attributes in Page(page).tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)


def test_the_same_run_is_made_again_by_the_line_of_the_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a run, with commas", shapes=3, points=40, updates=20)
    (line,) = re.findall(r"noether train --hp .*", Page(write_report(folder).read_text()).texts["use"])
    words = shlex.split(line)
    again = load_config(words[words.index("--hp") + 2 :], words[words.index("--hp") + 1])
    assert (again.run_id, again.resume, again.trainer.max_epochs) == ("a run, with commas-again", None, 60)


def test_the_spread_over_the_seeds_of_a_sweep_is_shown(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "seeds-1", shapes=3, points=40, updates=20)
    error = {"mean": 0.05, "std": 0.004, "n": 3}
    groups = {"model=upt": {"surface_pressure/relative_l2": error, "loss": {"mean": 1, "std": None, "n": 1}}}
    runs = [{"run": f"runs/seeds-{k}", "group": "model=upt", "overrides": [], "metrics": {}} for k in range(3)]
    sweep = tmp_path / "seeds.sweep.json"
    sweep.write_text(json.dumps({"groups": groups, "runs": runs}))
    text = Page(write_report(folder).read_text()).texts["use"]
    assert "5.00\u202f% ± 0.40\u202f% (3 seeds)" in text
    assert "loss" not in text
    sweep.write_text("{")
    assert "one seed" in Page(write_report(folder).read_text()).texts["use"]


def test_the_spread_is_written_as_in_the_table_of_the_sweep(run: ReportedRun) -> None:
    described = [Metric("mass/mae", "kg", label="MAE", of="mass", headline=True),
                 Metric("chord/mae", "m", label="MAE", of="chord", headline=True),
                 Metric("drag/r2", label="R²", of="drag", headline=True, score=True)]  # fmt: skip
    found = {"mass/mae": (12.345, 0.01235), "chord/mae": (-1.2e-5, 2e-6), "drag/r2": (0.999, 0.0)}
    spread = {name: {"mean": mean, "std": std, "n": 2} for name, (mean, std) in found.items()}
    result = {**run.result, "described": Metrics.of(*described).records()}
    text = Page(render_report(replace(without_cases(run), result=result, spread=spread))).texts["use"]
    power = "\u202f×\u202f10"
    for own in ("12.35 ± 0.01 kg", f"−1.200{power}⁻⁵ ± 2.000{power}⁻⁶ m", "R²0.9990"):
        assert f"{own} (2 seeds)" in text


def test_a_headline_that_is_of_no_field_is_shown_beside_the_fields(run: ReportedRun) -> None:
    own = Metrics.of(Metric("my_score", better="higher", label="my score", headline=True)).records()
    metrics = {**run.metrics, "my_score": 0.125, "loss": 0.375}
    result = {**run.result, "metrics": metrics, "described": [*run.result["described"], *own]}
    page = render_report(replace(without_cases(run), result=result))
    header, errors = page.partition('<section id="errors">')[0], Page(page).texts["errors"]
    assert "my score <b>0.1250</b>" in header
    assert "<dt>my score</dt>" in header
    assert "0.1250" in errors
    assert "0.3750" in errors


def test_pace_and_device_use_are_written_as_in_the_table_of_the_result(run: ReportedRun) -> None:
    result = {**run.result, "samples_per_second": 1234.56, "device_use": 0.85123}
    text = Page(render_report(replace(without_cases(run), result=result))).texts[""]
    for words in ("1,235 samples/s", "devices busy 85.12 %"):
        assert words in text


def test_a_number_of_a_case_has_one_tile_where_there_is_no_field(run: ReportedRun) -> None:
    page = render_report(replace(without_cases(run), result={**run.result, "fields": []}))
    assert "<dt>lift coefficient</dt>" in page
    assert "<dt>lift coefficient: R²</dt>" not in page


def test_report_needs_no_torch_and_no_pyplot(folder: RunFolder) -> None:
    code = (
        "import sys, pathlib; from noether.runs.report.page import write_report; "
        "from noether.runs.folder import RunFolder; write_report(RunFolder(pathlib.Path(sys.argv[1]))); "
        "print([name for name in ('torch', 'matplotlib.pyplot') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, folder.path], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


NASTY = "<script>alert('$x$ & \"q\"')</script>"


def test_text_from_the_run_is_escaped(tmp_path: Path, run: ReportedRun) -> None:
    scalars = {NASTY: {"note": NASTY}, "lift_coefficient": {"note": NASTY}}
    result = {**run.result, "checkpoint": NASTY, "scalars": scalars}
    fields = {name: {**own, "unit": NASTY} for name, own in FIELDS.items()}
    meta = {**run.meta, "fields": fields, "cases": [{**run.meta["cases"][0], "sample": NASTY, "label": NASTY}]}
    plan = {**run.plan, "launcher": NASTY, "nodes": [NASTY], "reasons": {NASTY: NASTY}, "warnings": [NASTY]}
    plan |= {"model": {"kind": NASTY}, "data": {NASTY: 3}}
    rows = [*run.rows, {"kind": "evaluation", "update": 402, "weights": "raw", "metrics": {f"{NASTY}/relative_l2": 1}}]
    hostile = replace(
        run, run_id=NASTY, config=NASTY, result=result, meta=meta, plan=plan, environment={NASTY: [NASTY]}, rows=rows
    )
    text = render_report(hostile)
    read = Page(text)
    assert "script" not in [tag for tag, _ in read.tags]
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    for section in ("", "cases", "scalars", "plan", "environment", "configuration"):
        assert NASTY in read.texts[section], section
