"""The docker image: its contents, a test of each part, and the arguments that its programs pass on."""

import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime
from hashlib import sha256
from pathlib import Path

import pytest
from conftest import REPOSITORY

import noether
from noether.cli.commands import programs, verbs

pytest.importorskip("docker")
from images.conftest import LONG
from images.containers_of_tests import tiny

pytestmark = pytest.mark.slow

SIZE_LIMIT = {"cpu": 1.40e9, "cu130": 6.5e9}
"""Maximum size of an unpacked image in bytes; VTK takes 0.27 GB of it. If an image grows, this line must change."""
# The ENV of the image has no variable that users set: under Apptainer, it would override the host's value.
GPU_ENV = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
ENV = {
    "cpu": {},
    "cu130": GPU_ENV | {"NVIDIA_REQUIRE_CUDA": "cuda>=13.0"},
    # By CUDA's minor-version compatibility, drivers of CUDA 12.0 support CUDA 12.6.
    "cu126": GPU_ENV | {"NVIDIA_REQUIRE_CUDA": "cuda>=12.0"},
}
NASTY = [
    "run_id=a b", "$HOME `id` $(id)", 'it\'s "quoted"', "back\\slash\\n", "a;b&c|d>e", "*?[x]{1,2}~", "é×\n\ttab", "",
    "--flag=-x", "!history", '+devices="0,1"',
]  # fmt: skip


ECHO = """
import json, sys
from pathlib import Path
def main():
    print(json.dumps([Path(sys.argv[0]).name, *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def echo(tmp_path_factory) -> Path:
    """Return a package to mount in place of noether; with it, the image's programs print their names and arguments."""
    package = tmp_path_factory.mktemp("echo") / "noether"
    cli = package / "cli"
    cli.mkdir(parents=True)
    for name, text in {package / "__init__.py": "", cli / "__init__.py": "", cli / "entry.py": ECHO}.items():
        name.write_text(text)
    for path in (package.parent, package, cli):
        path.chmod(0o755)
    return package


INSIDE = "/opt/noether/noether"


@pytest.mark.parametrize("program", ["noether", "train", "noether-train"])
def test_docker_hands_over_every_word_as_it_is(program: str, containers, echo) -> None:
    volumes = {str(echo): {"bind": INSIDE, "mode": "ro"}}
    if program == "noether":
        done = containers.run("train", *NASTY, volumes=volumes)
    else:
        done = containers.run(*NASTY, volumes=volumes, entrypoint=[program])
    assert json.loads(done.out) == [program, *["train"] * (program == "noether"), *NASTY], done.err


@pytest.mark.parametrize("program", ["run", "exec-verb", "exec-noether"])
def test_apptainer_hands_over_every_word_as_it_is(program: str, sif, image_variables, echo) -> None:
    words = {
        "run": ["run", "--bind", f"{echo}:{INSIDE}", str(sif), "train"],
        "exec-verb": ["exec", "--bind", f"{echo}:{INSIDE}", str(sif), "train"],
        "exec-noether": ["exec", "--bind", f"{echo}:{INSIDE}", str(sif), "noether", "train"],
    }[program]
    environ = {**os.environ, **image_variables}
    done = subprocess.run(["apptainer", *words, *NASTY], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[program != "exec-verb" :] == ["train", *NASTY]


def test_each_command_is_a_program_of_the_image(containers) -> None:
    commands = {verb: verb for verb in verbs() if " " in verb}
    commands |= {name: verb for name, verb in programs().items() if verb in verbs()}
    # `env` starts the program `export`; the shell would run its own builtin.
    script = "; ".join(f"env {command} --help | sed -n 2p" for command in commands)
    done = containers.run("-c", script, entrypoint=["sh"])
    said = [f"{line} " for line in done.out.splitlines()]
    assert len(said) == len(commands)
    for line, verb in zip(said, commands.values(), strict=True):
        assert line.startswith(f"    noether {verb} - ")


def test_the_image_says_what_it_was_made_from(containers) -> None:
    settings = containers.client.images.get(containers.image).attrs["Config"]
    labels = settings["Labels"]
    assert labels["noether.lock.sha256"] == sha256((REPOSITORY / "constraints.txt").read_bytes()).hexdigest()
    assert labels["org.opencontainers.image.version"] == noether.__version__
    assert labels["org.opencontainers.image.base.digest"].startswith("sha256:")
    assert datetime.fromisoformat(labels["org.opencontainers.image.created"])
    assert labels["org.opencontainers.image.source"], "the label must have a text, if only unknown"
    assert labels["org.opencontainers.image.revision"] not in ("", "unknown")
    env = dict(line.split("=", 1) for line in settings["Env"])
    assert env.pop("PATH").startswith("/opt/venv/bin:")
    assert env == ENV[labels["noether.flavour"]]
    assert settings["User"] not in ("", "root", "0", "0:0")


def test_the_image_is_within_its_budget(containers) -> None:
    attributes = containers.client.images.get(containers.image).attrs
    flavour = attributes["Config"]["Labels"]["noether.flavour"]
    assert attributes["Size"] < SIZE_LIMIT[flavour]


def test_what_is_installed_is_what_the_lock_says(containers) -> None:
    done = containers.run("/opt/noether/installed.txt", entrypoint=["cat"])
    locked = dict(
        line.lower().replace("_", "-").split("==")
        for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    installed = dict(line.lower().replace("_", "-").split("==") for line in done.out.splitlines() if "==" in line)
    assert len(installed) > 30
    other = {name for name, version in installed.items() if version.partition("+")[0] != locked.get(name)}
    assert other <= {"pip"}


def test_every_user_can_read_everything_and_change_nothing(containers) -> None:
    find = "find /opt /usr/local ! -perm -o=r ! -type l -print -o -perm -o=w ! -type l -print"
    done = containers.run("-c", find, entrypoint=["sh"])
    assert (done.code, done.out) == (0, ""), done.err


def test_bytecode_is_there_and_is_not_checked_against_sources(containers) -> None:
    """Importing torch without bytecode takes twice as long, and a user without write access cannot create any."""
    script = (
        "import glob, pathlib\n"
        "for name in ('/opt/venv/lib/python3.11/site-packages/torch', '/opt/noether/noether'):\n"
        "    (path,) = glob.glob(f'{name}/__pycache__/__init__.*.pyc')\n"
        "    print(int.from_bytes(pathlib.Path(path).read_bytes()[4:8], 'little'))\n"
    )
    done = containers.run("-c", script, entrypoint=["/opt/venv/bin/python3", "-I"])
    assert done.out.split() == ["1", "1"], done.err  # By PEP 552, 1 means hash-based and unchecked.


def zombies(container) -> list[str]:
    script = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null; true"
    return container.exec_run(["sh", "-c", script]).output.decode().split()


def test_the_first_process_reaps_what_others_leave(containers, own) -> None:
    """If a shell ends before its child, the child becomes one of PID 1."""
    container = containers.start(*tiny("orphans", *LONG), **own)
    containers.wait_for_output(container, "\nupdate ")
    assert container.exec_run(["cat", "/proc/1/comm"]).output.decode().strip() == "tini"
    container.exec_run(["sh", "-c", "(sleep 0.5 &)"])
    time.sleep(2)
    assert zombies(container) == []


def test_a_new_cache_volume_can_be_written(containers) -> None:
    """docs/containers.md documents these options: -v noether-cache:/cache -e XDG_CACHE_HOME=/cache."""
    volume = containers.client.volumes.create()
    try:
        containers.run(
            *tiny("one", "trainer.max_updates=1"),
            volumes={volume.name: {"bind": "/cache", "mode": "rw"}},
            environment={"XDG_CACHE_HOME": "/cache"},
            user="4321:4321",
            code=0,
        )
        look = {"volumes": {volume.name: {"bind": "/cache", "mode": "ro"}}, "entrypoint": ["ls", "/cache/noether"]}
        assert containers.run(**look).out.strip()
    finally:
        containers.remove()
        volume.remove(force=True)


@pytest.mark.nightly
def test_an_image_with_one_more_package(containers, built, tmp_path) -> None:
    """Build the Dockerfile of docs/containers.md. Its package comes from a folder, because the build has no network."""
    page = (REPOSITORY / "docs" / "containers.md").read_text()
    (text,) = re.findall(r"^```dockerfile\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (package,) = re.findall(r"pip install .* (\w+)$", text, re.MULTILINE)
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={tmp_path / 'wheels'}", package]
    subprocess.run(fetch, check=True, timeout=120)
    here = "USER root\nCOPY wheels /wheels\nENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels"
    text = text.replace("FROM noether", f"FROM {containers.image}").replace("USER root", here)
    (tmp_path / "Dockerfile").write_text(text)
    name = "noether-with-one-more"
    built(tmp_path, name)
    other = type(containers)(containers.client, name)
    try:
        said = other.run("-Ic", f"import {package}, torch; print('both')", entrypoint=["/opt/venv/bin/python3"])
        other.run("plan", "--json", code=0)
    finally:
        other.remove()
    assert said.out.strip() == "both", said.err


PYTHON = "/opt/venv/bin/python3 -Ic"
MESH = (
    "import pyvista; from pathlib import Path; from noether.physics.cases.mesh_source import read_mesh_apart; "
    "pyvista.Sphere().save('/tmp/a.vtp'); assert len(read_mesh_apart(Path('/tmp/a.vtp')).points) > 800"
)
PROVIDER = (
    "import ctypes, glob; (library,) = glob.glob('/usr/lib/*/libibverbs/libmlx5-*.so'); ctypes.CDLL(library); "
    "assert open('/etc/libibverbs.d/mlx5.driver').read()"
)
# Parts of the image, each with a command that works only if the part is there.
PARTS = {
    "pyvista, and its readers of VTK": f'{PYTHON} "{MESH}"',
    "uvicorn": f'{PYTHON} "import uvicorn, noether.watch.serve"',
    "tree-sitter": "printf '#!/bin/bash\\nsrun noether train\\n' > /tmp/j && noether lint /tmp/j && slurm-lint /tmp/j",
    "CA certificates": "test $(grep -c BEGIN /etc/ssl/certs/ca-certificates.crt) -gt 100",
    "the locale": 'test "$(LC_ALL=C.UTF-8 locale charmap)" = UTF-8',
    "providers of ibverbs": f'{PYTHON} "{PROVIDER}"',
    "ibverbs": f"{PYTHON} \"import ctypes; ctypes.CDLL('libibverbs.so.1')\"",
}


def test_each_part_serves(containers) -> None:
    """One container tests all parts and prints the names of those that work."""
    script = "\n".join(f"({command}) >&2 && echo '{part}'" for part, command in PARTS.items())
    done = containers.run("-c", script, entrypoint=["sh"])
    assert done.out.splitlines() == list(PARTS), done.err
