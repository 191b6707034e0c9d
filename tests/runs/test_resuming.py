"""A resumed run has the settings with which it began, and those that the user types after resume=."""

import os
import shlex
import time
from pathlib import Path

import pytest
import yaml
from conftest import TINY

from noether.checkpoints.format import write_checkpoint
from noether.checkpoints.resume import find_target
from noether.checkpoints.run_settings import WantedModel, choose_model, load_run_config, rebase_on_run
from noether.checkpoints.table import checkpoints_here
from noether.config.compose import dump_config, load_config
from noether.runs.continue_line import continue_line
from noether.runs.folder import RunFolder, existing_run, newest_run
from noether.runs.overview import runs_under
from noether.runs.trust import mark_own
from tests.refusal import refusal
from tests.saved import META

OWN = ("seed=7", "model=transformer", "trainer.max_updates=9", "accept_changes=[seed]")


def make_run(parent: Path, name: str, *words: str) -> RunFolder:
    folder = RunFolder(parent / name)
    checkpoint = folder.checkpoints / "update-000000004"
    checkpoint.mkdir(parents=True)
    config = load_config([*OWN, *words, f"run_id={name}", f"output_path={parent}"])
    mark_own(folder, config)
    folder.config.write_text(dump_config(config))
    return folder


@pytest.mark.parametrize(
    "resume",
    ["{run}", "{run}/checkpoints/update-000000004", "{run}/../best", "latest"],
    ids=["the-run", "one-of-its-checkpoints", "a-link-to-one", "the-newest"],
)
def test_a_resumed_run_keeps_its_settings_but_for_what_is_typed(resume: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, "cars")
    (tmp_path / "best").symlink_to(run.checkpoints / "update-000000004")
    words = ["trainer.max_updates=20", f"resume={resume.format(run=run.path)}", f"output_path={tmp_path}"]
    config = load_run_config(words, None)
    assert (config.seed, config.model.kind) == (7, "transformer")
    assert config.trainer.max_updates == 20
    assert config.accept_changes == (), "accept_changes must hold for one resume only"


def test_a_name_in_runs_beside_a_folder_of_that_name_keeps_its_settings(tmp_path: Path, monkeypatch) -> None:
    """Regression: the name was looked up twice with different results, so a run got the settings of another run."""
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs"), "cars")
    Path("cars").mkdir()
    assert load_run_config(["resume=cars"], None).seed == 7
    assert existing_run("cars").path == Path("runs/cars")


@pytest.mark.parametrize(
    ("inside", "resume"), [("checkpoints", "update-000000004"), ("checkpoints/update-000000004", "."), (".", ".")]
)
def test_inside_a_run_its_settings_are_its_own_too(inside: str, resume: str, tmp_path: Path, monkeypatch) -> None:
    """Regression: inside a run's folder, the checkpoint was found, but the default settings were used."""
    monkeypatch.chdir(make_run(tmp_path, "cars").path / inside)
    config = load_run_config([f"resume={resume}"], None)
    assert (config.seed, config.output_path) == (7, tmp_path)


def test_the_newest_run_of_a_folder_that_was_moved_is_that_of_the_folder(tmp_path: Path) -> None:
    make_run(tmp_path / "old", "cars")
    (tmp_path / "old").rename(tmp_path / "new")
    config = load_run_config(["resume=latest", f"output_path={tmp_path / 'new'}"], None)
    assert (config.resume, config.output_path) == (str(tmp_path / "new/cars"), tmp_path / "new")
    config = load_run_config([f"resume={tmp_path / 'new/cars'}"], None)
    assert config.output_path == tmp_path / "new"


@pytest.mark.parametrize("later", ["a-removal", "a-copy-of-a-checkpoint", "a-run-that-was-started-over"])
def test_the_newest_run_is_the_one_that_saved_last(later: str, tmp_path: Path) -> None:
    for age, name in ((200, "old"), (100, "new"), *([(0, "old.replaced-1")] if "over" in later else [])):
        run = make_run(tmp_path, name)
        (run.checkpoints / "update-000000002").mkdir()
        for path in run.checkpoints.iterdir():
            os.utime(path, (time.time() - age, time.time() - age))
    if later == "a-removal":
        (tmp_path / "old/checkpoints/update-000000002").rmdir()
    elif later == "a-copy-of-a-checkpoint":
        (tmp_path / "old/checkpoints/update-000000004.bak").mkdir()
    found = newest_run(tmp_path)
    assert found.path.name == "new"


@pytest.mark.parametrize("words", [("resume=auto", "run_id=cars"), ("resume=null",), ()], ids=["auto", "null", "unset"])
def test_other_starts_have_the_settings_that_are_typed(words: tuple[str, ...], tmp_path: Path) -> None:
    make_run(tmp_path, "cars")
    assert rebase_on_run(words, None) == (list(words), None)


def test_a_settings_file_that_is_named_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path, "cars")
    mine = tmp_path / "mine.yaml"
    mine.write_text("seed: 3\n")
    config = load_run_config([f"resume={run.path}"], str(mine))
    assert (config.seed, config.output_path) == (3, tmp_path), "the run must stay in its folder"


@pytest.mark.parametrize("hp", [None, TINY], ids=["own", "hp"])
def test_a_run_does_not_go_on_in_another_folder(hp: Path | None, tmp_path: Path) -> None:
    """Regression: the run resumed in its own folder, but errors of this folder's disk named the other folder."""
    run = make_run(tmp_path, "cars")
    with refusal("resumed-by-another-name", fix="leave output_path=elsewhere out"):
        load_run_config([f"resume={run.path}", "output_path=elsewhere"], str(hp) if hp else None)


@pytest.mark.parametrize(("resume", "hp"), [("{}", None), ("latest", None), ("{}", TINY)], ids=["run", "latest", "hp"])
def test_a_run_does_not_go_on_under_another_name(resume: str, hp: Path | None, tmp_path: Path) -> None:
    """Regression: the run resumed in its own folder, and its new name was ignored."""
    run = make_run(tmp_path, "cars")
    words = [f"resume={resume.format(run.path)}", f"output_path={tmp_path}"]
    with refusal("resumed-by-another-name") as refused:
        load_run_config([*words, "run_id=lorries"], str(hp) if hp else None)
    *own, name = shlex.split(refused.value.fix.splitlines()[1].partition("   ")[0])
    assert (own, name) == (["--hp", str(run.config), "resume=null", f"initial_weights={run.path}"], "run_id=lorries")
    load_run_config([*words, "run_id=cars"], str(hp) if hp else None)


def test_a_name_with_spaces_and_commas_is_continued_by_the_printed_line(tmp_path: Path) -> None:
    make_run(tmp_path / "plain", "cars")
    run = RunFolder((tmp_path / "plain").rename(tmp_path / "a b,c") / "cars")
    noether, train, *words = shlex.split(continue_line(run.path))
    assert (noether, train) == ("noether", "train")
    assert load_run_config(words, None).seed == 7


@pytest.mark.parametrize("file", ["gone", "cut-off", "of-a-start-that-saved-nothing"])
@pytest.mark.parametrize("resume", ["{run}", "{run}/checkpoints/update-000000006"])
def test_the_settings_in_the_checkpoint_count_where_config_yaml_makes_no_run_of_it(file, resume, tmp_path) -> None:
    """Regression: the default settings were used, or the error suggested the very line that it had refused."""
    run = make_run(tmp_path, "cars")
    config = load_config([*OWN, f"output_path={tmp_path}", "run_id=cars"])
    meta = META | {"config": config.model_dump(mode="json")}
    write_checkpoint(run.checkpoints, 6, {"model.safetensors": [b"weights"]}, meta)
    text = run.config.read_text()
    if file == "gone":
        run.config.unlink()
    else:
        run.config.write_text(text[:99] if file == "cut-off" else text.replace("seed: 7", "seed: 3"))
    config = load_run_config([f"resume={resume.format(run=run.path)}", "trainer.max_updates=20"], None)
    assert (config.seed, config.model.kind, config.trainer.max_updates) == (7, "transformer", 20)
    assert find_target(config, whole=False).folder == run
    assert checkpoints_here(str(run.path), verify=False, prune=True, keep=None, yes=False, as_json=True) == 0
    assert runs_under(tmp_path, {}) == [run]
    if file != "of-a-start-that-saved-nothing":  # A user may edit config.yaml for an evaluation.
        assert choose_model(WantedModel(str(run.path), "latest", None, trust=False)).config.seed == 7


def test_settings_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, "cars")
    run.config.write_text(run.config.read_text() + "defaults: [/tmp/theirs]\n")
    with refusal("own-settings-unreadable", fix=str(run.path)):
        load_run_config([f"resume={run.path}"], None)


def test_code_in_the_settings_of_another_users_run_is_refused_unless_it_is_typed(tmp_path: Path) -> None:
    run = make_run(tmp_path, "cars")
    settings = yaml.safe_load(run.config.read_text())
    settings["model"] = {"kind": "subprocess.run", "args": ["id"]}
    run.config.write_text(yaml.safe_dump(settings))
    with refusal("untrusted-run") as raised:
        load_run_config([f"resume={run.path}"], None)
    assert shlex.split(raised.value.fix)[:3] == ["--hp", str(run.config), f"resume={run.path}"]
    typed = load_run_config([f"resume={run.path}", "model.kind=subprocess.run"], None)
    assert typed.model.kind == "subprocess.run"


def test_what_was_approved_is_what_counts_whatever_the_file_becomes(tmp_path: Path) -> None:
    run = make_run(tmp_path, "cars")
    words, own = rebase_on_run([f"resume={run.path}"], None)
    run.config.write_text("model: {kind: subprocess.run}\n")
    assert (load_config(words, own).seed, load_config(words, own).model.kind) == (7, "transformer")
