"""A run is finished when its weights and figures are saved: a report that cannot be written does not fail it."""

import io
import json
import shutil
from pathlib import Path

import pytest
from conftest import TINY

from noether.common.console import Console
from noether.runs.folder import RunFolder
from noether.training.final_result import report_run


def folder_gone(folder: RunFolder) -> None:
    """Leaves a file where the folder was."""
    shutil.rmtree(folder.path)
    folder.path.touch()


def folder_in_the_way(folder: RunFolder) -> None:
    folder.config.write_text("seed: 1\n")
    folder.report.mkdir()


@pytest.mark.parametrize(
    ("spoil", "error"),
    [(folder_gone, "FileExistsError"), (folder_in_the_way, "IsADirectoryError")],
    ids=["no folder", "nowhere to write"],
)
def test_a_report_that_fails_is_a_warning(spoil, error: str, tmp_path: Path) -> None:
    folder, stream = RunFolder(tmp_path / "run 1"), io.StringIO()
    folder.create()
    spoil(folder)
    report_run(folder, Console(None, speaks=True, stream=stream))
    said = stream.getvalue()
    assert said.startswith(f"warning: the report could not be written ({error}: ")
    assert f"noether report '{folder.path}'" in said.replace("\n", "")
    assert "\nreport " not in said


@pytest.mark.slow
def test_training_ends_well_without_its_report(noether, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "blocked")
    folder.report.mkdir(parents=True)
    done = noether("train", "--hp", str(TINY), f"output_path={tmp_path}", "run_id=blocked", "tracker.report=true")
    assert done.code == 0, done.err
    assert "warning: the report could not be written (IsADirectoryError: " in done.out
    assert json.loads(folder.result.read_text())["updates"] > 0
