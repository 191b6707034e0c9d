"""`noether evaluate` reproduces the metrics of the run's own evaluation, and names a run that it cannot evaluate."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import needs_namespaces

from noether.runs.folder import RunFolder
from noether.runs.records import parse_record


@pytest.fixture(scope="module")
def run(train_in, tmp_path_factory) -> RunFolder:
    return train_in(tmp_path_factory.mktemp("again"), "run", "trainer.ema_decay=0.9")


@pytest.mark.slow
def test_the_test_split_again_gives_the_same_metrics(run: RunFolder, noether) -> None:
    before = parse_record(run.result)
    again = json.loads(noether("evaluate", str(run.path), "--json", code=0).out)
    assert again == parse_record(run.result)
    for key in ("weights", "checkpoint", "updates", "parameters", "world_size"):
        assert again[key] == before[key], key
    for name, value in before["metrics"].items():
        assert again["metrics"][name] == pytest.approx(value, rel=1e-4), name


@pytest.mark.slow
def test_other_weights_and_splits(run: RunFolder, noether) -> None:
    words = ("--split", "validation", "--weights", "raw", "--checkpoint", "latest", "--json")
    result = json.loads(noether("evaluate", str(run.path), *words, code=0).out)
    assert (result["split"], result["weights"], result["samples"]) == ("validation", "raw", 4)
    assert result["checkpoint"] == "update-000000008"
    assert json.loads(run.result.read_text())["split"] == "test", "another split must not change the run's result"
    assert not list(run.evaluation.glob("*.json")), "a file that nothing reads must not be kept"


NOT_THERE = [("--split", "tset", "test"), ("--weights", "mea", "ema"), ("--checkpoint", "lates", "latest")]


@pytest.mark.parametrize(("flag", "typed", "meant"), NOT_THERE)
def test_what_is_not_there_is_named(run: RunFolder, noether, flag, typed, meant) -> None:
    done = noether("evaluate", str(run.path), flag, typed)
    assert (done.code, f"fix       {flag} {meant}" in done.err) == (2, True), done.err


@pytest.mark.slow
def test_a_share_of_less_than_a_sample_is_no_validation_split(train_in, noether, tmp_path: Path) -> None:
    path = str(train_in(tmp_path, "none", "dataset.validation_fraction=0.01").path)
    mesh = ("--mesh", str(Path(__file__).parents[2] / "examples" / "car.stl"), "--out", str(tmp_path / "car.vtp"))
    for words, fix in (
        (("evaluate", path, "--split", "validation"), "--split test"),
        (("predict", path, *mesh, "--interval", "60"), "leave --interval out"),
    ):
        done = noether(*words)
        assert (done.code, "[nothing-held-out]" in done.err) == (2, True), done.out
        assert f"fix       {fix}" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["evaluate", "report"])
def test_a_run_that_can_only_be_read_is_copied_by_the_line_of_the_refusal(verb, run, environ, tmp_path) -> None:
    needs_namespaces("mount a run to be read alone", "--mount", "true")
    environ = {**environ, "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}

    def ran(script: str) -> subprocess.CompletedProcess[str]:
        command = ["unshare", "--mount", "sh", "-c", script]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)

    mount = f"mount --bind {run.path} {run.path} && mount -o remount,ro,bind {run.path}"
    refused = ran(f"{mount} && noether {verb} {run.path}")
    assert refused.returncode == 2, refused.stderr
    (fix,) = (line.split(maxsplit=1)[1] for line in refused.stderr.splitlines() if line.startswith("  fix"))
    done = ran(f"{mount} && {fix}")
    assert done.returncode == 0, done.stderr
    assert {"evaluate": "unseen cases", "report": "COPY/report.html"}[verb] in done.stdout
