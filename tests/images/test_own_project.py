"""A project of `noether init` in the image: made there, built FROM it, trained, tested."""

import json
import os
from importlib.metadata import files
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""Python files alone, which the image's Python takes from this one's."""


def lend_pytest(folder: Path) -> None:
    """Link what pytest is made of into a folder."""
    for package in PYTEST:
        for file in files(package) or ():
            if file.suffix in (".py", ".json") or file.name in ("METADATA", "entry_points.txt"):
                target = folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(Path(str(file.locate())).read_bytes())


def test_a_project_is_made_trained_and_tested_in_the_image(containers, built, work, own, tmp_path) -> None:
    done = containers.run("init", "heat-rod", **own)
    assert done.code == 0, done.err
    project = work / "heat-rod"
    dockerfile = project / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text().replace("FROM noether", f"FROM {containers.image}"))
    name = "noether-own-project"
    built(project, name)
    lend_pytest(tmp_path / "lent")
    os.chmod(tmp_path, 0o755)
    other = type(containers)(containers.client, name)
    try:
        trained = other.run(limit_s=400, **own)
        assert trained.code == 0, trained.out + trained.err
        (result,) = (work / "runs").glob("*/result.json")
        assert json.loads(result.read_text())["metrics"]["rms_error_K"] < 0.05
        tested = other.run(
            *("-m", "pytest", "-p", "no:cacheprovider", "-q"),
            entrypoint=["/opt/venv/bin/python3"],
            **own,
            working_dir="/work/heat-rod",
            environment={"PYTHONPATH": "/lent"},
            volumes={str(tmp_path / "lent"): {"bind": "/lent", "mode": "ro"}},
            limit_s=400,
        )
        assert "5 passed" in tested.out, tested.out + tested.err
    finally:
        other.remove()
