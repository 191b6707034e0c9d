"""The commands called from Python: keywords as settings, refused calls, the end of a run, and a user's own classes."""

import math
import pkgutil
import shutil
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, TINY
from documented import python_blocks

import noether
from noether.cli.python import _bound
from noether.config.sweep import parse_override
from tests.refusal import refusal

SWING = (REPOSITORY / "examples" / "pendulum.py").read_text()
SETTINGS = (REPOSITORY / "examples" / "pendulum.yaml").read_text().replace("examples.pendulum", "swing")
SHORT: dict[str, Any] = {"accelerator": "cpu", "dataset": {"swings": 40}, "trainer": {"max_epochs": 2}}
STOPS = """
import os, signal, subprocess
if os.environ.get("LEAVES"):
    subprocess.Popen(["sleep", "60"])  # It holds the stdout and stderr of whoever has imported this.
class Stops(Follow):
    def loss(self, predictions, batch):
        os.kill(os.getppid(), signal.SIGTERM)  # As a batch system would, of the process that called noether.train.
        return super().loss(predictions, batch)
class Fails(Follow):
    def loss(self, predictions, batch): raise ValueError("of my own")
class Nested(Follow):
    def __init__(self): noether.train()
"""


@pytest.fixture
def project(tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a user's folder, and make it the working directory."""
    for name, value in {**environ, "PYTHONPATH": str(REPOSITORY), "XDG_STATE_HOME": str(tmp_path / "state")}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "swing.py").write_text(f"import noether\n{SWING}{STOPS}")
    (tmp_path / "swing.yaml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "swing", raising=False)
    return tmp_path


VALUES = [
    *(1, -2.5, 1e-05, 1e22, math.inf, True, False, None, "", "text", "10 epochs", "1", "1e-3", "null", "true", "a,b"),
    *("it's", 'a "b" \\', "[1, 2]", "{a: 1}", "a=b", "~/runs, of mine", "ä: ö", "\\", "0,1", "40_1", "run-1"),
    *([], [1, 2.5], ["a", "b, c", "", "null", "1"], [[1, 2], []], [{"a": 1, "b": [None, True]}], {}),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_read_back_as_it_is(value: Any) -> None:
    ((line,), _) = _bound("train", "", {"trainer": {"max_updates": value}})
    found = parse_override(line)
    assert found is not None
    assert (found.key_or_group, found.is_sweep_override()) == ("trainer.max_updates", False)
    assert (found.value(), type(found.value())) == (value, type(value))


@pytest.mark.parametrize(
    ("words", "settings", "line"),
    [
        ("+model=upt 'a=\"b c\"'", {"seed": 1}, ["+model=upt", 'a="b c"', "seed=1"]),
        (["my.yaml", Path("x=y")], {}, ["my.yaml", "x=y"]),
        ("", {"trainer.max_updates": np.int64(4), "run_id": Path("a, b")}, ["trainer.max_updates=4", 'run_id="a, b"']),
        ("", {"model": {"kind": Path, "a": {"b": (1, 2)}}}, ["model.kind=pathlib.Path", "model.a.b=[1,2]"]),
        ("", {"trainer": {"callbacks": [Path, np.int64(1)]}}, ["trainer.callbacks=[pathlib.Path,1]"]),
        ("", {"hp": Path("my.yaml"), "reset": True}, ["--hp=my.yaml", "--reset=True"]),
    ],
)  # fmt: skip
def test_words_and_keywords_make_one_line(words: Any, settings: dict[str, Any], line: list[str]) -> None:
    assert _bound("train", words, settings)[0] == line


class Mine:
    """A class that a notebook defines; the test sets its module to __main__."""


@pytest.mark.parametrize(
    ("call", "words", "settings", "code", "fix"),
    [
        ("train", "", {"trainer": {"max_update": 4}}, "unknown-key", "noether.train('trainer.max_updates=4')"),
        ("plan", "seed=one", {}, "invalid-value", "noether.plan('seed=0')"),
        ("submit", "slurm.node=2", {}, "unknown-key", "noether.submit('slurm.nodes=2')"),
        ("train", "-m seed=1,2", {}, "not-from-python", "noether train -m seed=1,2      (in a shell)"),
        ("train", "", {"dry_run": True}, "not-from-python", "noether train --dry-run=True      (in a shell)"),
        ("plan", "--help", {}, "not-from-python", "noether plan --help      (in a shell)"),
        ("train", "", {"model": {"kind": Mine}}, "class-not-importable", "%%writefile my_module.py"),
        ("train", "--epochs 3", {}, "unknown-flag", ""),
    ],
)
def test_what_is_refused(call: str, words: str, settings: Any, code: str, fix: str, monkeypatch) -> None:
    monkeypatch.setattr(Mine, "__module__", "__main__")
    with refusal(code, fix=fix):
        getattr(noether, call)(words, **settings)


def test_a_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    with refusal("train-inside-a-rank"):
        noether.train(hp=TINY)


def test_a_plan_is_data_and_is_shown_as_a_table() -> None:
    found = noether.plan(["devices=null"], hp=TINY, accelerator="gpu", visible_devices="0,1")
    assert (found["world_size"], found["batch"]["per_rank"]) == (2, 2)
    assert repr(found).startswith("local: 2 ranks on ")
    assert "cuda:1" in repr(found)


def test_no_module_hides_what_the_package_offers() -> None:
    assert not {module.name for module in pkgutil.iter_modules(noether.__path__)} & {*noether.__all__}


@pytest.mark.slow
def test_a_run_that_stops_fails_or_trains_inside_itself(project: Path, capsys, monkeypatch) -> None:
    with refusal("run-stopped", fix='noether.train(resume="') as stopped:
        noether.train(hp="swing.yaml", task={"kind": "swing.Stops"}, run_id="stops", **SHORT)
    assert (stopped.value.exit_code, stopped.value.path) == (75, project / "runs" / "stops")
    monkeypatch.setenv("LEAVES", "1")
    began = time.monotonic()
    with refusal("run-failed", seen="ValueError: of my own") as failed:
        noether.train(hp="swing.yaml", task={"kind": "swing.Fails"}, run_id="fails", **SHORT)
    assert time.monotonic() - began < 50, "the call waited for a thread that the run has left behind"
    assert failed.value.exit_code == 1
    assert "ValueError: of my own" in capsys.readouterr().out  # A notebook, too, shows the traceback.
    with refusal("train-inside-a-rank"):
        noether.train(hp="swing.yaml", task={"kind": "swing.Nested"}, **SHORT)


@pytest.mark.slow
def test_a_run_with_classes_of_ones_own_loads_from_anywhere(project: Path, monkeypatch, tmp_path: Path) -> None:
    run = noether.train(hp="swing.yaml", **SHORT)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "swing.py").write_text("raise SystemExit('another project')")
    monkeypatch.chdir(elsewhere)
    assert sum(tensor.numel() for tensor in noether.load_run(run.path).model.parameters()) == 29_796
    assert repr(noether.load_run(run.path)) == repr(run)
    other = shutil.copy(project / "swing.py", elsewhere / "swing.py")
    monkeypatch.setattr(sys.modules["swing"], "__file__", str(other))
    with refusal("module-of-another-folder", seen=str(other)):
        _ = noether.load_run(run.path).model


@pytest.mark.slow
def test_the_page_runs_from_its_first_block_to_its_last(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code on Slurm is left out; tests/launch/slurm/test_python.py runs it."""
    shutil.copytree(REPOSITORY / "examples", project / "examples")
    monkeypatch.delitem(sys.modules, "examples", raising=False)  # Other tests have a module of that name.
    frame = types.SimpleNamespace(json_normalize=lambda rows: rows)
    monkeypatch.setitem(sys.modules, "pandas", frame)
    names: dict[str, Any] = {}
    for heading, code in python_blocks(REPOSITORY / "docs" / "python.md").items():
        if heading not in ("On Slurm", "With submitit"):
            exec(compile(code, heading, "exec"), names)
    assert names["found"]["units"]["surface_pressure"] == "Pa"
    assert names["plan"]["world_size"] == 4
