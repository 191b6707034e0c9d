"""Code that another user's run folder names does not run without permission, and its settings cannot read secrets."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY, TINY

from noether.checkpoints.format import META, _meta_digest
from noether.common.dotted_path import code_granted, load_object
from noether.common.errors import RequestError
from noether.config.compose import dump_config, read_dumped, validate
from noether.config.schema import RunConfig
from noether.core.models.build import REGISTRY
from noether.runs.folder import RunFolder
from noether.runs.trust import MARK, approved_code, mark_own
from tests.refusal import refusal

RUN = REPOSITORY / "tests" / "physics" / "predict" / "small_runs" / "upt"
CHECKPOINT = Path("checkpoints") / "update-000000002"


def settings_of(model: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the settings of a run with components of noether, except its model."""
    return {**yaml.safe_load((RUN / "config.yaml").read_text()), "model": model, **more}


OWN = validate(settings_of({"kind": "upt"}))
CODE = validate(settings_of({"kind": "os.system", "command": "touch was-here"}))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def run_with(tmp_path: Path, config: RunConfig) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text(dump_config(config))
    return folder


def approved(folder: RunFolder, *, trust: bool = False) -> list[str]:
    return list(approved_code(folder, read_dumped(folder.config), folder.config, trust, trains=True))


def test_our_own_components_need_no_trust(home: Path, tmp_path: Path) -> None:
    mark_own(run_with(tmp_path, OWN), CODE)  # This makes a key for the user.
    (tmp_path / "run" / MARK).unlink()
    assert approved(RunFolder(tmp_path / "run")) == []


def test_a_run_of_this_user_is_trusted(home: Path, tmp_path: Path) -> None:
    folder = run_with(tmp_path, CODE)
    mark_own(folder, CODE)
    assert approved(folder) == ["os.system"]
    assert (home / "noether" / "key").stat().st_mode & 0o777 == 0o600


def test_a_run_that_was_unpacked_here_is_not(home: Path, tmp_path: Path) -> None:
    folder = run_with(tmp_path, CODE)
    mark_own(folder, CODE)
    moved = json.dumps(json.loads((folder.path / MARK).read_text()) | {"folder": "/tmp"})  # Signed for another folder.
    for signature in ("{}", '{"signature": "0"}', "[", "[]", "[" * 100_000, '{"signature": null}', moved):
        (folder.path / MARK).write_text(signature)
        with refusal(seen="model.kind=os.system") as refused:
            approved(folder)
        assert refused.value.fix.startswith("--trust")
    assert approved(folder, trust=True) == ["os.system"]


def test_code_is_looked_for_where_the_run_was_started(home: Path, tmp_path: Path, monkeypatch) -> None:
    folder = run_with(tmp_path, CODE)
    monkeypatch.chdir(tmp_path)
    mark_own(folder, CODE)
    monkeypatch.chdir("/")
    assert approved_code(folder, CODE, folder.config, trust=False, trains=True).folder == str(tmp_path)
    (folder.path / MARK).unlink()
    assert approved_code(folder, CODE, folder.config, trust=True, trains=True).folder == ""


def test_settings_that_were_changed_since_are_not(home: Path, tmp_path: Path) -> None:
    folder = run_with(tmp_path, CODE)
    mark_own(folder, CODE)
    folder.config.write_text(dump_config(validate(settings_of({"kind": "os.system", "command": "rm -r /"}))))
    with refusal(seen="does not match"):
        approved(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not(home: Path, tmp_path: Path) -> None:
    folder = run_with(tmp_path, CODE)
    os.chown(folder.config, 65534, 65534)
    with refusal(seen="belongs to user 65534"):
        approved(folder)


@pytest.mark.parametrize(
    "kind",
    [
        "slurm_lint.finding.run",  # the module imports subprocess.run
        "noether.common.dotted_path.load_object",
        REGISTRY["upt"],  # a class of noether, but by its dotted path
        "os.system",
        "${run_id}",
        "upt ",
        "",
    ],
)
def test_what_is_neither_registered_nor_granted_is_not_imported(kind: str) -> None:
    with pytest.raises(RequestError), code_granted(["os.getcwd"]):
        load_object(kind, "model.kind", REGISTRY)


def test_reading_settings_puts_no_working_directory_on_the_path(tmp_path: Path) -> None:
    """Otherwise another user's files in that folder would take the place of modules that are imported later."""
    code = "import sys, noether.config.schema; print(sys.argv[1] in sys.path)"
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stdout + done.stderr


def test_what_is_granted_ends_with_its_block() -> None:
    with code_granted(["os.getcwd"]):
        assert load_object("os.getcwd", "model.kind") is os.getcwd
    with pytest.raises(RequestError):
        load_object("os.getcwd", "model.kind")


FILES = r"pickle\.loads|torch\.load\(|export\.load\("
RUNS_CODE = re.compile(rf"import_module\(|__import__\(|(?<![.\w])(?:eval|exec)\(|{FILES}")
PLACES = {
    "common/dotted_path.py": "names in settings, once granted",
    "physics/cars/shapenet_car.py": "tensors, with weights_only=True",
    "launch/process_group/stores.py": "objects of ranks, signed with the secret of the run",
    "physics/export/exported_model.py": "a graph, with trust=True",
    "launch/script.py": "the script that `noether run` is given",
    "launch/processes/preload.py": "modules of ours, by constants",
    "launch/processes/worker.py": "targets of ours, and what the launcher hands to its own worker",
}


def test_nothing_else_makes_code_of_a_name_or_of_a_file() -> None:
    package = REPOSITORY / "noether"
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if RUNS_CODE.search(path.read_text())}
    assert found == set(PLACES)


@pytest.mark.parametrize("file", ["config.yaml", "meta.json"])
@pytest.mark.parametrize("words", ["evaluate run", "predict run --mesh car.stl", "export run out"])
def test_no_command_runs_anything_of_a_stranger(noether, home: Path, tmp_path: Path, words: str, file: str) -> None:
    """If config.yaml is unreadable, the checkpoint's settings are used. tests/faults/forged_run.py forges more runs."""
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text(dump_config(CODE))
    mark_own(RunFolder(tmp_path), CODE)
    (tmp_path / "car.stl").touch()
    if file == META:
        (tmp_path / "run" / "config.yaml").write_bytes(b"\xff")
        meta = json.loads((tmp_path / "run" / CHECKPOINT / META).read_text()) | {"config": CODE.model_dump(mode="json")}
        (tmp_path / "run" / CHECKPOINT / META).write_text(json.dumps({**meta, "meta_sha256": _meta_digest(meta)}))
    done = noether(*words.split(), cwd=tmp_path, XDG_STATE_HOME=str(home))
    assert (done.code, "model.kind=os.system" in done.err) == (2, True), done.err
    assert not (tmp_path / "was-here").exists()


def test_a_run_from_python_is_asked_for_too(home: Path, tmp_path: Path) -> None:
    from noether.physics.predict.python_api import LoadedRun

    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text(dump_config(CODE))
    mark_own(RunFolder(tmp_path), CODE)
    with refusal(fix="trust=True"):
        LoadedRun(tmp_path / "run")
    assert LoadedRun(tmp_path / "run", trust=True).config.model.kind == "os.system"


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "NOETHER_RUN_KEY", "SLURM_JWT"])
def test_a_file_of_settings_cannot_read_secrets(noether, tmp_path: Path, name: str) -> None:
    (tmp_path / "theirs.yaml").write_text(f"{TINY.read_text()}\nrun_id: run-${{oc.env:{name}}}\n")
    done = noether("plan", "--hp", str(tmp_path / "theirs.yaml"), **{name: "hunter2"})
    assert (done.code, f"may not read the variable {name}" in done.err) == (2, True), done.err
    assert "hunter2" not in done.err + done.out
