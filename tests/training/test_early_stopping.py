"""A run that ends early because no checkpoint improves is complete, and stays the same when it is resumed."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import TINY, final_hashes

from noether.checkpoints.format import list_checkpoints
from noether.common.errors import ExitCode
from noether.runs.folder import RunFolder
from noether.runs.metrics import described_in
from noether.runs.records import read_metrics, read_record

FIXED = "lift_coefficient/floor_r2"
"""A metric that depends only on the true field: it is constant, so the first evaluation is the best."""
WORSE = (
    *("optimizer.learning_rate=1e-6", f"trainer.select_by=-{FIXED}"),
    *("trainer.evaluate_every=1 updates", "trainer.checkpoint_every=1 updates"),
)
METRIC = "volume_velocity/relative_l2"


@pytest.fixture
def train(noether, tmp_path):
    def run(name: str, *overrides: str):
        words = ("--hp", str(TINY), f"output_path={tmp_path}", f"run_id={name}", "resume=auto", *overrides)
        return noether("train", *words), RunFolder(tmp_path / name)

    return run


def last_update(folder: RunFolder) -> int:
    return list_checkpoints(folder.checkpoints)[-1].updates


def test_a_run_that_does_not_improve_ends_complete_and_resumes_to_the_same(train) -> None:
    patient = (*WORSE, "trainer.stop_after=2")
    done, calm = train("calm", *patient)
    assert done.code == 0, done.out + done.err
    assert (last_update(calm), calm.result.is_file()) == (3, True)
    # Like `noether evaluate`, result.json names the checkpoint whose weights were evaluated.
    assert [read_record(calm.result)[key] for key in ("checkpoint", "updates")] == ["update-000000001", 1]
    for record in (calm.plan, calm.result):
        assert described_in(read_record(record))[FIXED].better == "higher"
    hashes = final_hashes(calm)

    broken = RunFolder(calm.path.with_name("broken"))
    shutil.copytree(calm.path, broken.path)
    shutil.rmtree(list_checkpoints(broken.checkpoints)[-1].path)
    broken.result.unlink()
    assert train("broken", *patient)[0].code == 0
    assert final_hashes(broken) == hashes

    again, _ = train("calm", *patient)
    assert (again.code, "the run is already complete" in again.out) == (0, True)
    assert final_hashes(calm) == hashes
    assert train("calm", *WORSE, "trainer.stop_after=4")[0].code == 0
    assert last_update(calm) == 5


@pytest.mark.parametrize(("select_by", "best", "devices"), [(METRIC, min, "2"), ("lift_coefficient/r2", max, "1")])
def test_any_figure_selects_the_best_checkpoint(select_by, best, devices, train) -> None:
    done, folder = train("run", f"trainer.select_by={select_by}", f"devices={devices}")
    assert done.code == 0, done.out + done.err
    rows = [row for row in read_metrics(folder.metrics) if row["kind"] == "evaluation" and row["selected"]]
    assert {row["weights"] for row in rows} == {"ema"}
    metrics = {row["update"]: row["metrics"][select_by] for row in rows}
    saved = {one.updates: one.meta()["metric"] for one in list_checkpoints(folder.checkpoints)}
    assert len(metrics) > 1
    assert saved == metrics
    selected = json.loads(folder.result.read_text())["checkpoint"]
    assert int(Path(selected).name.removeprefix("update-")) == best(metrics, key=metrics.__getitem__)


UNFIT = {
    "no-such-metric": ("trainer.select_by=-volume_velocity/relativ_l2 devices=2", f"trainer.select_by={METRIC}"),
    "select-by-direction": ("trainer.select_by=-loss", "trainer.select_by=loss"),
    "plateau-without-evaluations": (
        "schedule.kind=torch.optim.lr_scheduler.ReduceLROnPlateau trainer.evaluate_every=null",
        "'trainer.evaluate_every=1 epoch' dataset.validation_fraction=0.1",
    ),
    "stop-without-validation": ("trainer.stop_after=2 dataset.validation_fraction=0", "trainer.stop_after=null"),
}


@pytest.mark.parametrize(("code", "overrides", "fix"), [(code, *case) for code, case in UNFIT.items()], ids=UNFIT)
def test_a_selection_that_cannot_be_made_is_refused_before_the_first_update(code, overrides, fix, train) -> None:
    done, folder = train("run", *overrides.split())
    assert (done.code, f"[{code}]" in done.err) == (ExitCode.REQUEST, True), done.err
    assert fix in done.err
    assert list_checkpoints(folder.checkpoints) == []
