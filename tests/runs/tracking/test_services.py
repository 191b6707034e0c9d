"""W&B and MLflow show a run that was killed and resumed as one run; a failing service never ends a run."""

import json
import os
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import TINY

from noether.common.atomic_write import UNFENCED
from noether.common.dotted_path import code_granted
from noether.runs.folder import RunFolder
from noether.runs.lease import Lease, take_lease
from noether.runs.metrics import Metric, Metrics
from noether.runs.tracking.services import RunFacts, Services, ServiceTracker, open_services, sessions
from noether.runs.tracking.tracker import Trackers, logged

ROW = {"kind": "training", "update": 3, "epoch": 0.1, "samples": 24, "loss": 0.5}


class Failing:
    """A service that raises an error in the method that `where` names."""

    def __init__(self, where: str) -> None:
        self.where, self.seen = where, []

    def open(self, facts: RunFacts) -> str:
        self._at("open")
        return "session-1"

    def log(self, numbers: dict[str, float], update: int) -> None:
        self._at("log")
        self.seen.append((numbers, update))

    def close(self, ended: str) -> None:
        self._at("close")

    def _at(self, place: str) -> None:
        if place == self.where:
            raise ConnectionError(f"no network at {place}")


class Mine(Failing):
    """A service without faults, which settings name by its dotted path."""

    def __init__(self) -> None:
        super().__init__("nowhere")


@pytest.mark.parametrize("where", ["open", "log", "close", "nowhere"])
def test_a_service_that_fails_is_a_warning(where: str, tmp_path: Path) -> None:
    warned: list[str] = []
    service = Failing(where)
    tracker = ServiceTracker("mine", service, RunFacts("run", tmp_path, {}, Metrics()), warned.append)
    tracker.log(ROW)
    tracker.log({"kind": "checkpoint", "update": 3})
    tracker.close()
    tracker.end("done")
    if where == "nowhere":
        assert (warned, service.seen) == ([], [({"training/loss": 0.5}, 3)])
        assert sessions(tmp_path) == {"mine": "session-1"}
    else:
        assert f"no network at {where}" in warned[0]
        lost = ["the tracker mine took 0 of 1 rows; the run's folder has all"]
        assert warned[1:] == lost * (where != "close"), "at the end, one more warning must count lost rows"


@pytest.mark.parametrize("name", ["nowhere.Service", f"{__name__}.Failing"], ids=["no-module", "needs-arguments"])
def test_a_service_that_cannot_be_had_is_said_again_at_the_end(name: str, tmp_path: Path) -> None:
    warned: list[str] = []
    with code_granted([name]):
        services = open_services([name], RunFacts("run", tmp_path, {}, Metrics()), warned.append, UNFENCED)
    with services, Trackers(services.trackers) as trackers:
        trackers.log(ROW)
    assert warned == 2 * warned[:1]
    assert f"{name} is left out" in warned[0]


def test_a_start_that_has_lost_the_run_leaves_its_sessions_alone(tmp_path: Path) -> None:
    warned: list[str] = []

    def mine(lease: Lease) -> Services:
        with code_granted([f"{__name__}.Mine"]):
            return open_services([f"{__name__}.Mine"], RunFacts("run", tmp_path, {}, Metrics()), warned.append, lease)

    own, newer = take_lease(RunFolder(tmp_path), {}), take_lease(RunFolder(tmp_path), {})
    with mine(own):
        pass
    assert sessions(tmp_path) == {}
    assert "FencedError" in warned[0]
    with mine(newer):
        pass
    assert sessions(tmp_path) == {f"{__name__}.Mine": "session-1"}
    assert len(warned) == 1


def test_the_best_of_each_metric_is_told_of_the_groups_that_are_logged(tmp_path: Path, monkeypatch) -> None:
    wandb = pytest.importorskip("wandb")
    from noether.runs.tracking.wandb_service import WandbService

    best: dict[str, str] = {}
    run = SimpleNamespace(id="1", define_metric=lambda name, summary=None, **_: best.update({name: summary}))
    monkeypatch.setattr(wandb, "init", lambda **_: run)
    WandbService().open(RunFacts("run", tmp_path, {}, Metrics.of(Metric("accuracy", better="higher")), ("ema", "raw")))
    row = {"kind": "evaluation", "update": 3, "split": "validation", "metrics": {"accuracy": 0.5}}
    groups = {f"{group}/{name}" for weights in ("ema", "raw") for group, name, _ in logged({**row, "weights": weights})}
    assert best == {"*": None, **dict.fromkeys(groups, "max")}


ENDS = """
import os, signal, time
from pathlib import Path
from noether.runs.tracking.services import sessions
from noether.training.callbacks import Callback

class Ends(Callback):
    def after_update(self, run, metrics):
        if not Path("killed").exists():
            while len(sessions(Path("run"))) < 2:
                time.sleep(0.1)
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if run.state.progress.updates == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        if run.state.progress.updates == 4:
            raise RuntimeError("breaks")
"""


def wandb_records(folder: Path) -> list:
    """Return the records in the newest log of a run; its format is LevelDB's, with blocks of 32 KiB, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    log = max(folder.glob("wandb/offline-run-*/*.wandb"), key=os.path.getmtime).read_bytes()
    records, content, place = [], b"", 7
    while place + 7 < len(log):
        if 2**15 - place % 2**15 < 7:
            place += 2**15 - place % 2**15
        size, kind = struct.unpack_from("<HB", log, place + 4)
        content += log[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # The record is complete.
            records.append(Record.FromString(content))
            content = b""
    return records


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_starts_are_one_run_whose_services_are_told_how_each_ended_and_what_it_changed(tmp_path, noether, monkeypatch):
    """Regression: every attempt was FINISHED, with the first one's settings. The first one is killed silently."""
    pytest.importorskip("wandb")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri, folder, key = (tmp_path / "mlruns").as_uri(), tmp_path / "run", "optimizer.learning_rate"
    (tmp_path / "ends.py").write_text(ENDS)
    words = ["--hp", str(TINY), f"output_path={tmp_path}", "run_id=run", "resume=auto", "trainer.max_updates=6"]
    words += ["tracker.services=[wandb,mlflow]", "trainer.callbacks=[ends.Ends]"]
    changed = ["trainer.callbacks=[]", f"{key}=0.002"]
    services, client = {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": uri}, MlflowClient(uri)
    assert noether("train", *words, **services, cwd=tmp_path).code != 0
    begun = sessions(folder)
    for code, status, exit_code, more in ((75, "KILLED", 1, ()), (1, "FAILED", 1, ()), (0, "FINISHED", 0, changed)):
        noether("train", *words, *more, **services, cwd=tmp_path, code=code)
        run = client.get_run(begun["mlflow"])
        assert run.info.status == status
        records = wandb_records(folder)
        assert [one.exit.exit_code for one in records if one.WhichOneof("record_type") == "exit"] == [exit_code]
        assert ("preempting" in [one.WhichOneof("record_type") for one in records]) == (status == "KILLED")
    assert sessions(folder) == begun
    parts = [part.name for part in folder.glob("wandb/offline-run-*") if any(part.glob("*.wandb"))]
    assert [part.endswith(begun["wandb"]) for part in parts] == [True] * 4, "wandb sync joins parts by their id"
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert [one.info.run_id for one in runs] == [begun["mlflow"]]
    assert max(point.step for point in client.get_metric_history(begun["mlflow"], "training/loss")) == 6
    assert (run.data.tags[key], run.data.params[key] != "0.002") == ("0.002", True)
    assert set(run.data.tags) & set(run.data.params) == {key, "trainer.callbacks"}
    configs = [item.value_json for one in records for item in one.config.update if item.key == "optimizer"]
    assert json.loads(configs[-1])["learning_rate"] == 0.002


def test_mlflow_takes_any_name_of_a_metric(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    from noether.runs.tracking.mlflow_service import MlflowService

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    service = MlflowService()
    run = service.open(RunFacts("run", tmp_path, {}, Metrics()))
    service.log({"training/loss": 3.0, "validation (ema)/top@5": 1.0, "validation (ema)/hits[10]": 2.0}, 1)
    assert MlflowClient((tmp_path / "mlruns").as_uri()).get_run(run).data.metrics == {
        "training/loss": 3.0, "validation ema/top_5": 1.0, "validation ema/hits_10_": 2.0
    }  # fmt: skip
