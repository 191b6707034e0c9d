"""Small cases in many formats: the prepared data are those that geometry and the formats' manuals predict.

`corpus.yaml` lists the cases, `corpus/` contains those in text files, and `corpus.py` writes those in binary files.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from noether.common.errors import RequestError
from noether.physics.cases.commands import inspect_here, prepare_here

HERE = Path(__file__).parent
TABLE: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "corpus.yaml").read_text())
KINDS = {"index", "numbers-in-names", "leftovers", "elsewhere", "dimension", "curved", "no-volume", "deck", "counts",
         "format", "groups", "words", "solids", "own-time", "bookkeeping", "ghosts", "plain"}  # fmt: skip
RUNS, SPLIT = 3, {"test": 0.34, "validation": 0}


def test_the_table_has_every_kind_in_three_forms_and_every_file() -> None:
    shown = [entry["shows"] for entry in TABLE.values()]
    assert len(TABLE) >= 66
    assert len({entry["format"] for entry in TABLE.values()}) >= 20
    assert {kind for kind in shown if shown.count(kind) > 2} == set(shown) == KINDS
    named = {entry.get("folder", name) for name, entry in TABLE.items() if "write" not in entry}
    assert {path.name for path in (HERE / "corpus").iterdir()} == named


def build(name: str, entry: dict[str, Any], root: Path) -> None:
    """Make the folder of an entry: a copy, or three runs, each with a copy of the entry's files and its own numbers."""
    first = root if entry.get("root") else root / "run_0"
    for writer, how in entry.get("write", {}).items():
        first.mkdir(parents=True)
        getattr(corpus, writer)(first, **how)
    if "write" not in entry:
        shutil.copytree(HERE / "corpus" / entry.get("folder", name), first)
    for run in range(RUNS) if not entry.get("root") else ():
        if run:
            shutil.copytree(first, root / f"run_{run}")
        (root / f"run_{run}" / "numbers.json").write_text(json.dumps({"speed": 20 + run, "drag": 0.3 + 0.01 * run}))


def merged(own: Any, lines: Any) -> Any:
    """Merge a user's lines into a drafted map; a key whose value is null is removed."""
    if not isinstance(lines, dict) or not isinstance(own, dict):
        return lines
    both = own | {key: merged(own.get(key), value) for key, value in lines.items()}
    return {key: value for key, value in both.items() if value is not None or key not in lines}


def check_sets(entry: dict[str, Any], about: dict[str, Any], out: Path) -> dict[str, int]:
    """Check every prepared case; return how many rows one case has at points and at cells."""
    cases = sorted(out.glob("cases/*/case.json"))
    assert len(cases) == entry["cases"]
    for case in cases:
        rows = dict.fromkeys((wanted["at"] for wanted in entry["sets"].values()), 0)
        made = json.loads(case.read_text())["sets"]
        assert {about["sets"][name]["kind"] for name in made} == entry["sets"].keys()
        for kind, wanted in entry["sets"].items():
            names = [name for name in made if about["sets"][name]["kind"] == kind]
            arrays = {name: load_file(case.with_name(f"{name}.safetensors")) for name in names}
            assert {about["sets"][name].get("at", "cells") for name in names} == {wanted["at"]}
            assert len(names) == wanted.get("in", len(names)), f"{kind}: {names}"
            assert sum(made[name]["points"] for name in names) == wanted["rows"], kind
            rows[wanted["at"]] += wanted["rows"]
            for measure, key in (("area", "area"), ("volume", "cell_volume")):
                if measure in wanted:
                    total = sum(arrays[name][f"{name}_{key}"].sum(dtype=np.float64) for name in names)
                    assert total == pytest.approx(wanted[measure], rel=1e-6), measure
            for array, span in wanted.get("values", {}).items():
                found = [arrays[name][f"{name}_{field}"] for name in names
                         for field, own in about["sets"][name]["fields"].items() if own["array"] == array]  # fmt: skip
                assert found, f"{array} is no field"
                values = np.concatenate(found)
                assert [values.min(), values.max()] == pytest.approx(span, rel=1e-6, abs=1e-6), array
                if wanted.get("rises"):  # along x
                    x = np.concatenate([arrays[name][f"{name}_points"][:, 0] for name in names])
                    assert (np.diff(values[np.argsort(x)]) > 0).all(), f"{array} is at the wrong {wanted['at']}"
    return rows


def says(console: str, count: int) -> bool:
    """Return whether the console reports `count` as the number of cells, points or the like, in one case or in all."""
    what = r"(cells?|points?|faces?|lines?|vert\w+|elements?|nodes?|ghosts?|quad\w*|triangles?)"
    number = "|".join(form for many in (count, count * RUNS) for form in (f"{many}", f"{many:,}"))
    return bool(re.search(rf"(?<![\w.,-])({number}) (\S+ ){{0,6}}?{what}\b", console))


@pytest.mark.parametrize("name", TABLE)
def test_what_lies_in_the_files_is_prepared_or_told(name: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    entry, root, draft, out = TABLE[name], tmp_path / "cases", tmp_path / "cases.yaml", tmp_path / "out"
    build(name, entry, root)
    how = {"map_name": str(draft), "workers": "1", "skip_broken": False, "dry_run": False}
    jobs = {"inspect": lambda: inspect_here(str(root), str(draft), workers="1"),
            "prepare": lambda: prepare_here([str(root), str(out)], **how)}  # fmt: skip
    console, about = "", {}
    for doing, job in jobs.items():
        refusal = None
        try:
            job()
        except RequestError as error:
            refusal = error
        said = " ".join("".join(capsys.readouterr()).split())
        if refusal is not None:
            words = entry.get(f"{doing}_refuses") or entry.get("may_refuse") or ["that it can be read"]
            text = " ".join(f"{refusal.code} {refusal}".lower().split())
            assert not [word for word in words if not any(way in text for way in word.split("|"))], text
            assert doing == "prepare" or not draft.exists()
            return
        assert not entry.get(f"{doing}_refuses"), said
        assert not [word for word in entry.get(f"{doing}_says", []) if word not in said.lower()], said
        console += said + " "
        if doing == "inspect":
            assert f"{entry['cases']} cases" in said
            about = merged(yaml.safe_load(draft.read_text()), entry.get("lines", {})) | {"split": SPLIT}
            fields = {
                field["array"] for own in (about["sets"] or {}).values() for field in own.get("fields", {}).values()
            }
            assert not fields & set(entry.get("not_fields", []))
            draft.write_text(yaml.safe_dump(about, sort_keys=False))
    for at, count in check_sets(entry, about, out).items():
        lost = entry["holds"][at] - count
        assert not lost or says(console, lost), f"{lost} {at} are lost silently"
