"""Somebody else's run folder does not run code unasked, and its settings do not read secrets."""

import os
from pathlib import Path

import pytest
import yaml
from conftest import TINY

from noether.errors import RequestError
from noether.runs.folder import RunFolder
from noether.runs.trust import MARK, check_trust, mark_own

OWN = {"model": {"kind": "upt", "dim": 8}, "task": {"kind": "noether.tasks.regression.Regression"}}
CODE = {"model": {"kind": "os.system", "command": "touch was-here"}, "trainer": {"max_updates": 1}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def run_with(tmp_path: Path, settings: object) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text(yaml.safe_dump(settings))
    return folder


def test_our_own_components_need_no_trust(home: Path, tmp_path: Path) -> None:
    mark_own(run_with(tmp_path, OWN), CODE)  # So this user has a key.
    (tmp_path / "run" / MARK).unlink()
    check_trust(RunFolder(tmp_path / "run"), trust=False)


def test_a_run_of_this_user_is_trusted(home: Path, tmp_path: Path) -> None:
    folder = run_with(tmp_path, CODE)
    mark_own(folder, CODE)
    check_trust(folder, trust=False)
    assert (home / "noether" / "key").stat().st_mode & 0o777 == 0o600


def test_a_run_that_was_unpacked_here_is_not(home: Path, tmp_path: Path) -> None:
    folder = run_with(tmp_path, CODE)
    mark_own(folder, CODE)
    for signature in ("{}", '{"signature": "0"}', "[", '{"signature": null}'):
        (folder.path / MARK).write_text(signature)
        with pytest.raises(RequestError, match="was not started by you") as refused:
            check_trust(folder, trust=False)
        assert "model.kind=os.system" in refused.value.seen
        assert refused.value.fix.startswith("--trust")
    check_trust(folder, trust=True)


def test_settings_that_were_changed_since_are_not(home: Path, tmp_path: Path) -> None:
    folder = run_with(tmp_path, CODE)
    mark_own(folder, CODE)
    folder.config.write_text(yaml.safe_dump({**CODE, "model": {**CODE["model"], "command": "rm -r /"}}))
    with pytest.raises(RequestError, match="was not started by you"):
        check_trust(folder, trust=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not(home: Path, tmp_path: Path) -> None:
    folder = run_with(tmp_path, CODE)
    os.chown(folder.config, 65534, 65534)
    with pytest.raises(RequestError) as refused:
        check_trust(folder, trust=False)
    assert "belongs to user 65534" in refused.value.seen


def test_without_a_key_the_owner_counts(home: Path, tmp_path: Path) -> None:
    check_trust(run_with(tmp_path, CODE), trust=False)


@pytest.mark.parametrize(
    "words",
    [("evaluate", "run"), ("predict", "run", "--mesh", "car.stl"), ("export", "run", "out")],
    ids=lambda words: words[0],
)
def test_the_commands_refuse_and_run_nothing(noether, home: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    mark_own(run_with(tmp_path, CODE), CODE)
    (tmp_path / "run" / MARK).unlink()
    (tmp_path / "car.stl").touch()
    done = noether(*words, cwd=tmp_path, XDG_STATE_HOME=str(home))
    assert done.code == 2
    assert "was not started by you" in done.err
    assert not (tmp_path / "was-here").exists()


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "NOETHER_RUN_KEY", "SLURM_JWT"])
def test_a_file_of_settings_cannot_read_secrets(noether, tmp_path: Path, name: str) -> None:
    (tmp_path / "theirs.yaml").write_text(f"{TINY.read_text()}\nrun_id: run-${{oc.env:{name}}}\n")
    done = noether("plan", "--hp", str(tmp_path / "theirs.yaml"), **{name: "hunter2"})
    assert done.code == 2
    assert f"may not read the variable {name}" in done.err
    assert "hunter2" not in done.err + done.out


def test_a_file_of_settings_can_read_what_names_a_job(noether, tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(f"{TINY.read_text()}\nrun_id: run-${{oc.env:SLURM_ARRAY_TASK_ID,7}}\n")
    done = noether("plan", "--hp", str(tmp_path / "ours.yaml"), "--json")
    assert done.code == 0, done.err
