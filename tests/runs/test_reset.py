"""Starting a run over keeps the old run's folder, and is refused while the old run may be alive."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from conftest import TINY

from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder
from noether.runs.lease import read_attempt, take_lease
from noether.runs.overview import is_own_attempt, place_aside, set_aside
from noether.runs.records import write_record
from tests.refusal import refusal


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "cars")
    run.create()
    run.config.write_text("seed: 0\n")
    write_record(run.result, {"metrics": {}})
    return run


def test_the_place_has_the_next_free_number(folder: RunFolder) -> None:
    take_lease(folder, {}).release(0)
    assert place_aside(folder, {}) == folder.path.with_name("cars.replaced-1")
    folder.path.with_name("cars.replaced-1").mkdir()
    place = place_aside(folder, {})
    assert place == folder.path.with_name("cars.replaced-2")
    set_aside(folder, place)
    assert not folder.path.exists()
    assert RunFolder(place).result.is_file()


@pytest.mark.parametrize("made", ["nothing", "a-start-that-failed"])
def test_what_has_made_nothing_is_not_kept(made: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "cars")
    if made != "nothing":
        run.create()
        take_lease(run, {}).release(1)
    assert place_aside(run, {}) is None


def test_a_start_that_is_alive_keeps_its_run(folder: RunFolder) -> None:
    take_lease(folder, {})
    with refusal(fix=f"noether cancel {folder.path}"):
        place_aside(folder, {})


def test_a_start_on_a_host_that_cannot_be_asked_keeps_its_run(folder: RunFolder) -> None:
    own = take_lease(folder, {}).own
    write_record(folder.attempt, asdict(replace(own, host="elsewhere")))
    with refusal(seen="elsewhere", fix=f"mv {folder.path} {folder.path}.replaced-1"):
        place_aside(folder, {})


def test_a_start_that_comes_between_looking_and_moving_keeps_its_run(folder: RunFolder, monkeypatch) -> None:
    take_lease(folder, {}).release(0)
    place = place_aside(folder, {})
    rename = Path.rename

    def another_start_first(self: Path, target: Path) -> Path:
        if self == folder.path:
            take_lease(folder, {})
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", another_start_first)
    with refusal("run-not-ended"):
        set_aside(folder, place)
    assert folder.result.is_file()
    assert not place.exists()


@pytest.mark.parametrize(
    ("environ", "own"),
    [({}, True), ({"SLURM_JOB_ID": "7"}, True), ({"SLURM_JOB_ID": "8"}, False)],
    ids=["torchrun", "requeued", "another-job"],
)
def test_a_requeued_job_goes_on_with_its_own_start_alone(environ, own: bool, folder: RunFolder) -> None:
    """With --reset, a requeued job continues the run of its first attempt instead of starting the run over again."""
    take_lease(folder, {"SLURM_JOB_ID": "7"}).release(75)
    assert is_own_attempt(folder, environ) is own


@pytest.mark.slow
def test_a_run_of_two_ranks_is_started_over_once(train_in, noether, tmp_path: Path) -> None:
    first = train_in(tmp_path, "cars", "devices=2", "trainer.max_updates=2", "seed=1")
    before = read_attempt(first)
    words = ("--hp", str(TINY), f"output_path={tmp_path}", "run_id=cars", "devices=2", "trainer.max_updates=4")
    dry = noether("train", "--reset", "--dry-run", *words)
    assert (dry.code, "would be kept as" in dry.out) == (0, True), dry.err
    assert [path.name for path in tmp_path.iterdir()] == ["cars"]
    done = noether("train", "--reset", *words, code=0)
    old = RunFolder(tmp_path / "cars.replaced-1")
    assert f"kept as {old.path}" in " ".join(done.out.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cars", "cars.replaced-1"]
    assert read_attempt(old) == before
    assert list_checkpoints(first.checkpoints)[0].updates == 4
    assert list_checkpoints(old.checkpoints)[-1].updates == 2
    new = read_attempt(first)
    assert new.number == 1
    assert noether("checkpoints", str(old.path), "--verify").code == 0


@pytest.mark.slow
def test_a_start_that_made_nothing_is_started_over_in_its_folder(noether, tmp_path: Path) -> None:
    words = ("train", "--reset", "--hp", str(TINY), f"output_path={tmp_path}", "run_id=cars", "trainer.max_updates=2")
    assert noether(*words, "trainer.select_by=typo").code == 2
    noether(*words, code=0)
    assert [path.name for path in tmp_path.iterdir()] == ["cars"]
