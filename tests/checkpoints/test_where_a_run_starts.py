"""A run may reuse the folder of an attempt that failed, but never overwrites results of an earlier run."""

import shlex

import pytest
from conftest import TINY

from noether.checkpoints.format import list_checkpoints, write_checkpoint
from noether.checkpoints.resume import ResumeTarget, find_target
from noether.common.errors import RequestError
from noether.config.compose import load_config
from noether.runs.folder import RunFolder
from noether.runs.lease import take_lease
from noether.runs.records import rows_text, write_record
from tests.refusal import refusal
from tests.saved import META

ROW = {"kind": "training", "update": 2, "loss": 1.0}


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.create()
    run.config.write_text("seed: 0\n")
    return run


def start(folder: RunFolder, *overrides: str):
    words = (f"output_path={folder.path.parent}", f"run_id={folder.path.name}", *overrides)
    return find_target(load_config(words, TINY), pytest.fail)


def save(folder: RunFolder, *updates: int) -> None:
    for update in updates:
        write_checkpoint(folder.checkpoints, update, {}, META)


def test_a_start_that_failed_in_its_first_batch_does_not_keep_its_name(folder) -> None:
    take_lease(folder, {}).release(1)
    folder.metrics.touch()
    assert start(folder).checkpoint is None


@pytest.mark.parametrize("made", ["rows", "checkpoint", "result", "leader"])
def test_a_run_that_has_made_something_is_not_overwritten(made, folder) -> None:
    """A folder with results is not overwritten, even if its config.yaml is missing."""
    if made == "rows":
        folder.metrics.write_text(rows_text([ROW]))
    elif made == "checkpoint":
        save(folder, 2)
    elif made == "result":
        write_record(folder.result, {"metrics": {}})
    else:
        take_lease(folder, {})
    folder.config.unlink()
    with refusal("run-exists"):
        start(folder)


@pytest.mark.parametrize("resume", ["run", "run/checkpoints/update-000000002", "link/update-000000002"])
def test_a_run_is_found_by_its_name_in_runs_and_by_links(resume: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path / "runs/run")
    folder.create()
    folder.config.write_text("seed: 0\n")
    config = load_config([f"resume={resume}"], TINY)
    saved = write_checkpoint(folder.checkpoints, 2, {}, META | {"config": config.model_dump(mode="json")})
    (tmp_path / "link").symlink_to(folder.checkpoints)
    assert find_target(config).folder == folder
    assert find_target(config).checkpoint == saved


def test_a_checkpoint_that_is_named_is_damaged_or_is_not_there(folder) -> None:
    save(folder, 2)
    (folder.checkpoints / "update-000000002/meta.json").unlink()
    with refusal("checkpoint-damaged"):
        start(folder, f"resume={folder.checkpoints}/update-000000002")
    with refusal("nothing-to-resume") as refused:
        start(folder, f"resume={folder.checkpoints}/update-00000002")
    assert refused.value.fix == f"resume={folder.checkpoints}/update-000000002"
    with refusal("nothing-to-resume") as refused:
        start(folder, f"resume={folder.checkpoints}/lates")
    assert refused.value.fix == f"resume={folder.checkpoints}/latest", "the fix must name this run's latest"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("word", "update"), [("best", 2), ("latest", 4)])
def test_best_and_latest_name_a_checkpoint_of_a_run(word: str, update: int, whole: bool, folder) -> None:
    config = load_config([f"resume={folder.path}/checkpoints/{word}"], TINY)
    for saved, metric in ((2, 0.1), (4, 0.2)):
        meta = META | {"config": config.model_dump(mode="json"), "metric": metric}
        write_checkpoint(folder.checkpoints, saved, {}, meta)
    found = find_target(config, whole=whole).checkpoint
    assert found.updates == update


@pytest.mark.parametrize("resume", ["auto", "latest", "{}", "{}/checkpoints/update-000000002"])
def test_only_the_run_itself_reads_its_checkpoints_whole(resume: str, folder) -> None:
    """A sweep or a login node only starts runs, so it does not read their checkpoints (`whole=False`)."""
    words = (f"output_path={folder.path.parent}", "run_id=run", f"resume={resume.format(folder.path)}")
    config = load_config(words, TINY)
    meta = META | {"config": config.model_dump(mode="json")}
    saved = write_checkpoint(folder.checkpoints, 2, {"weights": [b"whole"]}, meta)
    (saved.path / "weights").write_bytes(b"other")
    assert find_target(config, whole=False).checkpoint == saved
    with pytest.raises(RequestError) as refused:
        find_target(config)
    assert refused.value.code in ("no-intact-checkpoint", "checkpoint-damaged")


def test_a_run_that_cannot_be_written_goes_on_in_a_copy(folder, monkeypatch) -> None:
    """Regression: the error advised another output_path, with which the old folder was resumed or a new run started."""
    checked = []
    monkeypatch.setattr(RunFolder, "check_writable", lambda self, elsewhere: checked.append(elsewhere))
    ResumeTarget(folder, None, 0).check_writable()
    save(folder, 2)
    ResumeTarget(folder, list_checkpoints(folder.checkpoints)[0], 0).check_writable()
    copied = f"cp -r --no-preserve=mode {folder.path} COPY && noether train resume=COPY"
    assert checked == ["output_path=FOLDER", copied]


def test_without_any_meta_data_a_run_is_not_begun_anew(folder) -> None:
    save(folder, 2, 4)
    for checkpoint in list_checkpoints(folder.checkpoints):
        (checkpoint.path / "meta.json").unlink()
    said: list[str] = []
    words = (f"output_path={folder.path.parent}", "run_id=run", "resume=auto")
    with refusal("no-intact-checkpoint"):
        find_target(load_config(words, TINY), said.append)
    assert ["update-000000004" in said[0], "update-000000002" in said[1]] == [True, True]


def test_without_the_checkpoints_that_the_history_tells_of_a_run_is_not_begun_anew(folder) -> None:
    folder.metrics.write_text(rows_text([ROW, {"kind": "checkpoint", "update": 2}]))
    with refusal("no-intact-checkpoint"):
        start(folder, "resume=auto")
    folder.metrics.write_text(rows_text([ROW]))
    assert start(folder, "resume=auto").checkpoint is None, "a run without checkpoints must start at update 0"
    with refusal("nothing-saved-yet") as refused:  # Not "no-intact-checkpoint": no checkpoint is damaged.
        start(folder, f"resume={folder.path}")
    hp, config, *words = shlex.split(refused.value.fix.partition("   ")[0])
    assert (hp, find_target(load_config(words, config)).folder) == ("--hp", folder)
