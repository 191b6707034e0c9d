"""The fixes of wrong command lines are commands themselves; in a container they are the container's."""

import pytest

from noether.cli.binding import bind
from noether.common.container import fix_in_container
from noether.common.errors import RequestError


@pytest.mark.parametrize(
    ("words", "engine", "fix"),
    [
        (["bash"], "docker", "docker run --entrypoint bash … IMAGE"),
        (["sh", "-c", "ls /"], "podman", "podman run --entrypoint sh … IMAGE -c 'ls /'"),
        (["bash"], "apptainer", "apptainer exec IMAGE.sif bash"),
        (["trian"], "docker", "--entrypoint PROGRAM"),
        (["trian"], "", "noether train"),
        (["bash"], "", "noether --help"),
    ],
)
def test_programs_of_an_image_are_named_with_its_entrypoint(words, engine, fix) -> None:
    with pytest.raises(RequestError) as caught:
        bind(words, engine)
    assert fix in caught.value.fix


SIF = {"APPTAINER_CONTAINER": "/images/noether.sif"}


@pytest.mark.parametrize(
    ("fix", "mount", "engine", "expected"),
    [
        ("srun noether train …", "", "apptainer", "srun apptainer exec noether.sif train …"),
        ("srun --overlap noether train …", "", "apptainer", "srun --overlap apptainer exec noether.sif train …"),
        ("noether plan      (or noether train)", "", "docker",
         "docker run … IMAGE plan      (or docker run … IMAGE train)"),
        ("accelerator=cpu", "", "docker", "accelerator=cpu"),
        ("srun noether train …", "", "", "srun noether train …"),
    ],
)  # fmt: skip
def test_commands_of_a_fix_are_the_container_s(fix, mount, engine, expected) -> None:
    assert fix_in_container(fix, mount, engine, SIF) == expected


@pytest.mark.parametrize("mount", ["/", "//", ".", "/etc/ssl", "/usr/lib/../..", "/work"])
@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer"])
def test_neither_the_host_s_root_nor_its_system_is_ever_mounted(mount: str, engine: str, monkeypatch) -> None:
    monkeypatch.chdir("/")
    fix = fix_in_container("output_path=FOLDER", mount, engine, SIF)
    assert "output_path=FOLDER" in fix
    assert ("-v " in fix, "--bind" in fix) == (False, False), fix
    assert ("--user" in fix) == (engine != "apptainer")


def test_a_folder_that_the_container_lacks_is_mounted() -> None:
    docker = fix_in_container("output_path=FOLDER", "/data/runs", "docker", {})
    assert '--user "$(id -u):$(id -g)" -v /data/runs:/data/runs' in docker
    assert "output_path=FOLDER" in docker
    assert "--bind /data/runs noether.sif" in fix_in_container("", "/data/runs", "apptainer", SIF)
