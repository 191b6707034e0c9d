"""Shared fixtures, which run the real program as a user runs it."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from processes import find_program
from sharing import group_of, needs_machines, reorder, session_number
from warm_start import WarmStart

from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder

REPOSITORY = Path(__file__).resolve().parent.parent
TINY = REPOSITORY / "tests" / "tiny.yaml"
BROWSER_LIMIT_MS = 120_000
TIME_LIMIT = 180


def pytest_configure(config: pytest.Config) -> None:
    """Set the session's number and its temporary folder before the workers start, so that they inherit both.

    Killed processes leave files in the folder, such as multiprocessing's sockets; the session removes it at its end.
    """
    if session_number() == os.getpid():
        # Short names: the paths of multiprocessing's sockets include the test's name and may have at most 108 bytes.
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="noether-")
        config.option.basetemp = config.option.basetemp or f"{tempfile.tempdir}/t"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Distribute the tests to the workers by the groups that sharing.py defines."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark nightly tests as slow, and mark the tests that need other machines, before -m selects tests."""
    if item.get_closest_marker("nightly"):
        item.add_marker(pytest.mark.slow)
    if needs_machines(item.nodeid):
        item.add_marker(pytest.mark.machines)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reorder(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without the garbage collector, which would take a third of the time and find nothing.

    Also turn off hypothesis's deadline, because a busy machine would exceed it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        if hypothesis := sys.modules.get("hypothesis"):
            hypothesis.settings.register_profile("busy", deadline=None)
            hypothesis.settings.load_profile("busy")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the image builds and remove the temporary files of this session, even if it was interrupted."""
    from images.making import Making

    if session_number() == os.getpid():
        making = Making(os.environ.get("NOETHER_FLAVOUR", "cpu"), os.getpid())
        if making.has_begun:
            making.end()
        shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)


@dataclass(frozen=True)
class Finished:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder of this session, so that its tests make the embedded data only once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def environ(cache: Path) -> dict[str, str]:
    """Return the environment of a user who has set nothing but one thread for each rank.

    With two threads each, three tiny runs at once on two cores take ten times as much processor time.
    """
    private = ("CUDA_", "SLURM_", "MASTER_", "OMP_", "NOETHER_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(private)}
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    return {name: value for name, value in inherited.items() if name not in names} | {
        "XDG_CACHE_HOME": str(cache),
        # A killed compiler leaves a damaged library in its cache, and every later run with that cache fails.
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Limit torch in the tests' own process to one thread, for the reason given in the docstring of `environ`."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def noether(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Finished]]:
    """Return a function that runs `noether ARGUMENTS` to its end and checks `code` if given; see warm_start.py."""
    warm: list[WarmStart] = []

    def run(
        *arguments: str, cwd: Path | None = None, timeout: float = TIME_LIMIT, code: int | None = None, **more: str
    ) -> Finished:
        folder, env = cwd or REPOSITORY, {**environ, **more}
        if WarmStart.takes(arguments, more):
            if not warm:
                warm.append(WarmStart(environ, tmp_path_factory.mktemp("start")))
            done = warm[0].run(arguments, folder, env, timeout)
        else:
            command = [sys.executable, "-m", "noether", *arguments]
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout)
        assert code in (None, done.returncode), done.stdout + done.stderr
        return Finished(done.returncode, done.stdout, done.stderr)

    yield run
    for server in warm:
        server.end()


@pytest.fixture(scope="session")
def train_in(noether: Callable[..., Finished]) -> Callable[..., RunFolder]:
    """Return a function that trains the tiny configuration with further overrides and returns the run's folder.

    The function checks that the parts of rank 0's time add up to its total time, within 3 % and rounding.
    """

    def run(output: Path, name: str, *overrides: str, timeout: float = TIME_LIMIT) -> RunFolder:
        asked = ("--hp", str(TINY), f"output_path={output}", f"run_id={name}", *overrides)
        noether("train", *asked, timeout=timeout, code=0)
        folder = RunFolder(output / name)
        time_use = json.loads(folder.result.read_text())["time_use"]
        assert sum(time_use["ranks"][0].values()) == pytest.approx(time_use["seconds"], rel=0.03, abs=1e-3)
        return folder

    return run


@pytest.fixture(scope="session")
def by_one(train_in: Callable[..., RunFolder], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the weights that one process learns with the settings PROOF."""
    from learned import PROOF, weights

    return weights(train_in(tmp_path_factory.mktemp("one-process"), "one", *PROOF))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Yield Debian's chromium, driven by playwright."""
    program = find_program("chromium", "chromium")
    from playwright.sync_api import expect as expectations
    from playwright.sync_api import sync_playwright

    expectations.set_options(timeout=BROWSER_LIMIT_MS)
    with sync_playwright() as playwright:
        # The sandbox needs user namespaces, which root in a container does not have.
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def train(train_in: Callable[..., RunFolder], tmp_path: Path) -> Callable[..., RunFolder]:
    """Return `train_in` with the test's temporary folder as its output."""
    return partial(train_in, tmp_path)


@pytest.fixture
def start_process() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Yield a function that starts a command in a new session; kill the command's process group after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(
        command: Sequence[str], *, env: Mapping[str, str], cwd: Path = REPOSITORY, stderr: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


@pytest.fixture
def start(
    environ: dict[str, str], start_process: Callable[..., subprocess.Popen[str]]
) -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts `noether ARGUMENTS`; the process is ended after the test."""
    return lambda *arguments: start_process([sys.executable, "-m", "noether", *arguments], env=environ)


def final_hashes(folder: RunFolder) -> dict[str, str]:
    """Return the SHA-256 of every file of the last checkpoint that must be the same after kill and resume."""
    last = list_checkpoints(folder.checkpoints)[-1]
    names = ("model.safetensors", "ema.safetensors", "optimizer.safetensors", "random.safetensors", "task.json")
    return {name: sha256((last.path / name).read_bytes()).hexdigest() for name in names if (last.path / name).exists()}
