"""A project of `noether init` in the image: made there, built FROM it, trained, tested."""

import json
import os
import subprocess
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


def test_a_project_is_made_trained_and_tested_in_the_image(containers, image_variables, work, user, tmp_path) -> None:
    done = containers.run("init", "heat-rod", work=work, user=f"{user}:{user}")
    assert done.code == 0, done.err
    project = work / "heat-rod"
    dockerfile = project / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text().replace("FROM noether", f"FROM {containers.image}"))
    environ = {**os.environ, **image_variables}
    docker = "/usr/bin/docker" if os.access("/usr/bin/docker", os.X_OK) else "docker"
    name = "noether-own-project"
    subprocess.run([docker, "build", "--quiet", f"--tag={name}", project], check=True, env=environ, timeout=200)
    lend_pytest(tmp_path / "lent")
    os.chmod(tmp_path, 0o755)
    other = type(containers)(containers.client, name)
    try:
        trained = other.run(work=work, user=f"{user}:{user}", limit_s=400)
        assert trained.code == 0, trained.out + trained.err
        (result,) = (work / "runs").glob("*/result.json")
        assert json.loads(result.read_text())["metrics"]["rms_error_K"] < 0.05
        tested = other.run(
            *("-m", "pytest", "-p", "no:cacheprovider", "-q"),
            entrypoint=["/opt/venv/bin/python3"],
            work=work,
            working_dir="/work/heat-rod",
            user=f"{user}:{user}",
            environment={"PYTHONPATH": "/lent"},
            volumes={str(tmp_path / "lent"): {"bind": "/lent", "mode": "ro"}},
            limit_s=400,
        )
        assert "5 passed" in tested.out, tested.out + tested.err
    finally:
        other.remove()
        subprocess.run([docker, "image", "rm", name], env=environ, timeout=60, capture_output=True)
