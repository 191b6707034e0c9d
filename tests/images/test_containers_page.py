"""Every command of docs/containers.md works.

The commands run as written. Small programs named docker and apptainer take the place of the real ones: they skip the
build, which would download, leave GPUs out, insert the image under test, and make the data and the model small.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY
from launch.slurm.conftest import Slurm, end_jobs, slurm  # noqa: F401
from test_readme import SMALL

pytestmark = pytest.mark.slow

Workplace = tuple[Path, dict[str, str]]
PAGE = REPOSITORY / "docs" / "containers.md"
SHIM = """#!{python}
import os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
if words[0] == "build":
    # What `ci/images arguments` printed is there: without it the labels would say "unknown".
    told = dict(word.partition("=")[2].split("=", 1) for word in words if word.startswith("--build-arg="))
    sys.exit(0 if os.path.exists(words[-1]) and len(told.get("LOCK_SHA256", "")) == 64 else 1)
trains = {{"train", "plan"}} & set(words)
if "--gpus" in words:
    at = words.index("--gpus"); del words[at:at + 2]
words = [{{"noether": {image!r}, "noether.sif": {sif!r}}}.get(word, word) for word in words]
words = [word.replace("hostA", "127.0.0.1") for word in words]
if trains:
    words += {small!r}.split()
os.execv({programs!r}[name], [name, *words])
"""


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def test_the_page_has_every_way() -> None:
    lines = commands()
    for words in ("docker build", "docker run", "docker stop", "resume=auto", "node_rank=1", "apptainer run", "srun"):
        assert any(words in line for line in lines), words


@pytest.fixture(scope="module")
def documented_name(image: str, engine_client) -> Iterator[None]:
    """Tag the image with the name that the page uses, because some commands pass this name to the engine."""
    engine_client.images.get(image).tag("noether", "latest")
    yield
    if image != "noether:latest":
        engine_client.images.remove("noether:latest")


@pytest.fixture
def workplace(documented_name: None, image: str, image_variables: dict[str, str], tmp_path: Path) -> Workplace:
    """Return a user's folder with the project's files, and an environment whose PATH has the small programs first."""
    folder, programs = tmp_path / "user", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    for name in ("Dockerfile", "apptainer.def", "ci"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / "train.py").write_text("import torch.distributed as group\ngroup.init_process_group('gloo')")
    real = {}
    for name in ("docker", "apptainer"):
        places = image_variables["PATH"].split(os.pathsep)
        places = ["/usr/bin", *places] if name == "docker" else places
        found = [f"{place}/{name}" for place in places if os.access(f"{place}/{name}", os.X_OK)]
        real[name] = found[0] if found else ""
    text = SHIM.format(
        python=sys.executable,
        image=image,
        sif=image_variables.get("NOETHER_SIF", ""),
        small=f"{SMALL} accelerator=cpu trainer.max_epochs=null trainer.max_updates=6 tracker.report=false",
        programs=real,
    )
    for name in real:
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    variables = {**os.environ, **image_variables, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return folder, {**variables, "PATH": f"{programs}{os.pathsep}{image_variables['PATH']}"}


def begin(line: str, workplace: Workplace) -> "subprocess.Popen[str]":
    folder, environ = workplace
    return subprocess.Popen(
        ["sh", "-c", line], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(line: str, process: "subprocess.Popen[str]") -> str:
    try:
        said = process.communicate(timeout=240)[0]
    finally:
        process.kill()
    assert process.returncode == 0, f"{line}\n{said}"
    return said


def test_docker_s_commands(workplace, containers) -> None:
    lines = [line for line in commands() if line.startswith("docker")]
    first = None
    for line in lines:
        process = begin(line, workplace)
        if "node_rank=0" in line:
            first = (line, process)  # The commands of both machines run at the same time.
            continue
        finish(line, process)
        if first is not None:
            finish(*first)
            first = None
    runs = workplace[0] / "runs"
    results = {run.name: json.loads((run / "result.json").read_text()) for run in runs.iterdir()}
    assert results.keys() == {"cars", "long", "alone", "two"}
    assert results["two"]["world_size"] == 2


def test_apptainer_s_commands(workplace, sif) -> None:
    for line in commands():
        if line.startswith("apptainer"):
            finish(line, begin(line, workplace))
    assert (workplace[0] / "runs" / "single" / "result.json").is_file()


def test_the_command_under_srun(workplace, sif, slurm: Slurm) -> None:  # noqa: F811
    folder, environ = workplace
    (line,) = [line for line in commands() if line.startswith("srun")]
    names = ("PATH", "XDG_CACHE_HOME", "APPTAINER_DROP_CAPS")
    variables = {name: environ[name] for name in names if name in environ} | {"OMP_NUM_THREADS": "1"}
    slurm.run("sh", "-c", f"cd {folder} && {line}", limit_s=400, **variables)
    result = json.loads((folder / "runs" / "cluster" / "result.json").read_text())
    assert result["world_size"] == 4
