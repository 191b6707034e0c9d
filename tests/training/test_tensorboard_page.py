"""TensorBoard is served on the loopback address, for finished runs and during training."""

import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from conftest import TINY
from processes import read_until, wait_for
from sharing import in_every_push

from noether.common.errors import RequestError
from noether.runs.folder import RunFolder
from noether.runs.metrics import Metrics
from noether.runs.tracking.tensorboard import TensorBoardFile
from noether.training.tensorboard_page import event_folders

ADDRESS = re.compile(r"TensorBoard .* at (http://127\.0\.0\.1:\d+)/")


def make_run(folder: Path, losses: list[float]) -> Path:
    run = RunFolder(folder)
    run.create()
    run.config.write_text("seed: 0\n")
    events = TensorBoardFile(run.tensorboard, 0, Metrics())
    for update, loss in enumerate(losses, 1):
        events.log({"kind": "training", "update": update, "loss": loss})
    events.sync()
    events.close()
    return folder


def ask(address: str, path: str) -> object:
    with urllib.request.urlopen(address + path, timeout=30) as answer:
        return json.load(answer)


def address_of(process: "subprocess.Popen[str]") -> str:
    return ADDRESS.search(read_until(process, " at http://127.0.0.1:"))[1]  # type: ignore[index]


def curve(address: str, run: str, count: int = 1) -> list[tuple[int, float]]:
    """Return the points of the training loss as soon as the server, which reads files in parts, has read `count`."""

    def points() -> list[tuple[int, float]]:
        if "training/loss" not in dict(ask(address, "/data/plugin/scalars/tags")).get(run, {}):  # type: ignore[call-overload]
            return []
        found = ask(address, f"/data/plugin/scalars/scalars?tag=training/loss&run={run}")
        return [(step, value) for _, step, value in found] if len(found) >= count else []  # type: ignore

    return wait_for(f"{count} points", points, 60, longest_pause_s=0.5)


@pytest.mark.slow
def test_several_runs_are_served_by_their_names(start, tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "one" / "a", [3.0, 2.0]), make_run(tmp_path / "two, three" / "b", [5.0])
    process = start("tensorboard", str(first), str(tmp_path / "two, three"), "--port", "0")
    address = address_of(process)
    assert curve(address, "a", 2) == [(1, 3.0), (2, 2.0)]
    assert curve(address, "b") == [(1, 5.0)]
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert second.is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("devices", in_every_push(("1", "2"), "1"))
def test_it_is_served_beside_a_run_and_ends_with_it(devices: str, start, tmp_path: Path) -> None:
    words = ("--hp", str(TINY), f"output_path={tmp_path}", "run_id=live", f"devices={devices}")
    process = start(
        "train", "--tb", *words, "tracker.tensorboard=true", "trainer.max_updates=100000", "dataset.train_shapes=20"
    )
    address = address_of(process)
    assert curve(address, "live")[0][0] > 0
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 75
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=5)


def test_runs_of_one_name_keep_their_paths(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / folder / "cars", [1.0]) for folder in ("one", "two")]
    found = event_folders(tuple(map(str, paths)))
    assert list(found) == ["cars", str(paths[1]).lstrip("/")]


WRONG = {"nothing-there": ("none", "is not a run folder"), "without-events": ("bare", "has no event files")}


@pytest.mark.parametrize(("name", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_served_is_named(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(RequestError, match=said):
        event_folders((str(tmp_path / name),))
