"""`noether train -m` runs each combination of values in its own process, and compares the runs at the end."""

import io
import json
import signal
import sys
from pathlib import Path

import pytest
from conftest import TINY
from processes import lay, wait_for
from rich.console import Console

from noether.common.numbers import number_text
from noether.runs.folder import RunFolder
from noether.runs.metrics import Metric, Metrics
from noether.runs.records import read_record
from noether.training.sweep import SweptRun, summarise, sweep_table, train_apart


def swept(name: str, *differs: str) -> SweptRun:
    return SweptRun(RunFolder(Path(name)), (), differs)


def test_runs_that_differ_by_seed_alone_are_one_group() -> None:
    results = {
        swept("0", "model=a", "seed=1"): {"error": 1.0},
        swept("1", "model=a", "seed=2"): {"error": 3.0},
        swept("2", "model=b", "seed=1"): {"error": 5.0, "other": 1.0},
    }
    summary = summarise(results)
    # The sample standard deviation: dividing by n instead of n - 1 would make that of two runs 1.4 times too small.
    assert summary["model=a"]["error"] == {"mean": 2.0, "std": pytest.approx(2**0.5), "n": 2}
    assert summary["model=b"]["error"] == {"mean": 5.0, "std": None, "n": 1}


def test_a_figure_that_one_run_lacks_is_the_mean_of_the_others() -> None:
    results = {swept("0", "seed=1"): {"loss": 1.0}, swept("1", "seed=2"): {"loss": 2.0, "relative_l2": 0.5}}
    assert summarise(results)[""]["relative_l2"] == {"mean": 0.5, "std": None, "n": 1}


def test_the_table_has_units_and_no_spread_of_what_is_the_same() -> None:
    results = {
        swept("0", "seed=1"): {"p/relative_l2": 0.25, "p/mae": 2.0, "floor_r2": 0.5},
        swept("1", "seed=2"): {"p/relative_l2": 0.75, "p/mae": 2.0, "floor_r2": 0.5},
    }
    console = Console(file=io.StringIO(), width=100)
    described = Metrics.of(Metric("p/relative_l2", "%"), Metric("p/mae", "Pa"))
    console.print(sweep_table(summarise(results), described))
    rows = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert ["p:", "relative", "l2", "50.00%", "±", "35.36%"] in rows
    assert ["p:", "mae", "2.000", "Pa"] in rows
    assert ["floor", "r2", "0.5000"] in rows


@pytest.mark.slow
def test_a_local_sweep_ends_with_mean_and_spread(noether, tmp_path: Path) -> None:
    words = ("train", "-m", "--hp", str(TINY), f"output_path={tmp_path}", "run_id=s", "trainer.max_updates=4")
    done = noether(*words, "seed=1,2", code=0)
    sweep = json.loads((tmp_path / "s.sweep.json").read_text())
    values = [json.loads((tmp_path / f"s-seed{i}" / "result.json").read_text())["metrics"]["loss"] for i in (1, 2)]
    figure = sweep["groups"][""]["loss"]
    assert figure["mean"] == pytest.approx(sum(values) / 2)
    assert figure["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert values[0] != values[1]
    assert "mean ± std" in done.out
    assert f"{number_text(figure['mean'])} ± " in done.out
    again = noether(*words, "seed=1,2", "resume=auto")
    assert again.out.count("already complete") == 2, "complete runs must not run again"


@pytest.mark.slow
def test_a_run_saves_and_stops_when_its_sweep_is_killed(start, tmp_path: Path) -> None:
    words = ("train", "-m", "--hp", str(TINY), f"output_path={tmp_path}", "run_id=s", "trainer.max_updates=1000000")
    sweep, folder = start(*words, "seed=1,2", "trainer.log_every=1 updates"), RunFolder(tmp_path / "s-seed1")
    wait_for("the first run", folder.metrics.exists, 120)
    sweep.kill()
    wait_for("its end", folder.stopped.exists, 120)
    assert read_record(folder.stopped)["update"] > 0
    assert not (tmp_path / "s-seed2").exists()


def test_a_run_that_a_signal_ends_has_the_exit_code_of_a_shell(tmp_path: Path, monkeypatch) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nkill -TERM $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert train_apart([]) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run_id=s", "seed=1,2"), "s-seed2   seed=2"),
        (("run_id=1_1,1_2",), "1_2   run_id=1_2"),
        (("run_id=s", "optimizer=sgd,lion", "seed=1,2"), "s-optimizer_lion-seed2 "),
        (("run_id=s", "trainer.log_every=1 epoch,2 epochs"), "s-log_every2_epochs "),
        (("run_id=s", "dataset.validation_fraction=0.2,0.20"), "s-validation_fraction0.20 "),
        (("run_id=s", f"tracker.services=[],[{'my.' * 30}Own]"), "s-1 "),
    ],
    ids=str,
)
def test_a_sweep_s_dry_run_names_its_runs_and_leaves_nothing(words, said, noether, tmp_path: Path) -> None:
    done = noether("train", "-m", "--dry-run", "--hp", str(TINY), f"output_path={tmp_path}", *words)
    assert (done.code, f"{tmp_path}/{said}" in done.out) == (0, True), done.err
    assert list(tmp_path.iterdir()) == []


def test_a_job_array_has_one_name(noether, tmp_path: Path) -> None:
    words = ("submit", "-m", "--print", "--hp", str(TINY), f"output_path={tmp_path}", "devices=null")
    done = noether(*words, "run_id=1_1,1_2")
    assert (done.code, "run_id=1_1,1_2" in done.err) == (2, True), done.err
    assert "the runs are 1_1-0, 1_1-1" in done.err


def test_a_sweep_of_an_earlier_version_keeps_its_names(noether, tmp_path: Path) -> None:
    lay(tmp_path, {"s-0/config.yaml": "{}"})
    words = ("train", "-m", "--dry-run", "--hp", str(TINY), f"output_path={tmp_path}", "run_id=s", "seed=1,2")
    assert "s-1   seed=2" in noether(*words, "resume=auto", code=0).out
