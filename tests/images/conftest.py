"""Fixtures for a docker engine, the image and the SIF, which are made once per session and removed at its end.

The tests that use them run last (tests/sharing.py), because the images are made while the other tests run.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY
from sharing import session_number

from images.making import CANNOT_FETCH, Finished, Making, are_required

WAIT_S = 2400
LONG = ("trainer.max_updates=100000", "trainer.checkpoint_every=null", "trainer.evaluate_every=null")
"""Settings of a run that lasts until a signal ends it."""
ANY_SCRIPT = REPOSITORY / "tests/launch/slurm/any_script.py"
FOLDER = REPOSITORY / "tests" / "images"


def session_making() -> Making:
    """Return this session's image builds, which any of the workers may have started."""
    return Making(os.environ.get("NOETHER_FLAVOUR", "cpu"), session_number())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start making the images if ci/smoke requires them and a selected test needs them."""
    ours = [item for item in items if FOLDER in item.path.parents]
    wanted = [item for item in ours if "making" in getattr(item, "fixturenames", ())]
    for item in wanted:
        item.add_marker(pytest.mark.timeout(WAIT_S))  # The first test waits for the image.
    is_first = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
    if wanted and is_first and are_required() and not config.option.collectonly and not os.environ.get("NOETHER_IMAGE"):
        session_making().start()


@pytest.fixture(scope="session")
def making() -> Making | None:
    """Return the session's image builds, or None if NOETHER_IMAGE names an existing image."""
    if os.environ.get("NOETHER_IMAGE"):
        return None
    if not are_required():
        pytest.skip("making an image of 1 GB takes minutes: run ci/smoke, or name an image in NOETHER_IMAGE")
    return session_making()


def _require(what: str, done: Finished | None, *, may_skip: bool = False) -> None:
    if done is None:
        pytest.fail(f"{what} was not made in time")
    if done.returncode:
        (pytest.skip if may_skip else pytest.fail)(f"{what} could not be made: {done.stderr[-3000:]}")


@pytest.fixture(scope="session")
def image_variables(making: Making | None) -> dict[str, str]:
    """Return the variables of `ci/images env` once the image exists, or this environment if NOETHER_IMAGE is set."""
    if making is None:
        return dict(os.environ)
    _require("an engine", making.wait("check"))
    _require("the image", making.wait("build", 2000))
    return making.variables()


@pytest.fixture(scope="session")
def sif(making: Making | None, image_variables: dict[str, str]) -> Path:
    """Return the image's SIF. Skip the test if Debian sid no longer provides the packages of Apptainer."""
    if making is None:
        if not os.environ.get("NOETHER_SIF"):
            pytest.skip("no SIF: name one in NOETHER_SIF")
        return Path(os.environ["NOETHER_SIF"])
    fetched = making.wait("apptainer", 600)
    _require("Apptainer", fetched, may_skip=fetched is not None and fetched.returncode == CANNOT_FETCH)
    _require("the SIF", making.wait("sif", 900))
    return Path(making.variables()["NOETHER_SIF"])


@pytest.fixture(scope="session")
def engine_client(image_variables: dict[str, str]) -> Iterator["docker.DockerClient"]:  # noqa: F821
    """Yield a docker-py client of the engine that has the image."""
    docker = pytest.importorskip("docker")
    client = docker.DockerClient(base_url=image_variables.get("DOCKER_HOST"), timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="session")
def image(image_variables: dict[str, str]) -> str:
    return image_variables["NOETHER_IMAGE"]


@pytest.fixture
def containers(engine_client, image: str) -> Iterator["Tracker"]:  # noqa: F821
    """Yield a Tracker that starts containers of the image; remove them after the test."""
    from images.containers_of_tests import Tracker

    tracker = Tracker(engine_client, image)
    yield tracker
    tracker.remove()


@pytest.fixture
def built(image_variables: dict[str, str]) -> Iterator[Callable[[Path, str], None]]:
    """Yield a function that builds a folder's Dockerfile under a name; remove the image after the test."""
    names: list[str] = []
    docker = "/usr/bin/docker" if os.access("/usr/bin/docker", os.X_OK) else "docker"
    environ = os.environ | image_variables

    def build(folder: Path, name: str) -> None:
        names.append(name)
        subprocess.run([docker, "build", "--quiet", f"--tag={name}", folder], check=True, env=environ, timeout=200)

    yield build
    for name in names:
        subprocess.run([docker, "image", "rm", name], env=environ, timeout=60, capture_output=True)


@pytest.fixture
def own(work: Path, user: int) -> dict[str, object]:
    """Return the options of a container that runs as `user` and works in the folder `work`."""
    return {"work": work, "user": f"{user}:{user}"}


@pytest.fixture(scope="session")
def user() -> int:
    """Return a user id that is in no password file or, without root, the id of this user, who owns the files."""
    return 4321 if os.geteuid() == 0 else os.geteuid()


@pytest.fixture
def work(tmp_path_factory: pytest.TempPathFactory, user: int) -> Path:
    """Return a folder of `user`, which containers mount as their working directory."""
    folder = tmp_path_factory.mktemp("work")
    os.chown(folder, user, -1)
    folder.chmod(0o755)
    return folder
