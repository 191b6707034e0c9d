"""Serve TensorBoard to this machine only: for finished runs, or for a training run until it ends."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from noether.common.errors import ExitCode, RequestError
from noether.common.suggest import number_of
from noether.launch.processes.death_signal import set_death_signal
from noether.runs.folder import RunFolder, existing_run

ENDS_WITHIN_S = 5.0


def serve_here(paths: tuple[str, ...], port: str | None) -> int:
    """Serve the events of runs, or of all runs in a folder, until Ctrl-C or SIGTERM.

    port: None for the first free port from 6006 on. RequestError: a path has no event files, or the port is invalid.
    """
    if port is not None:
        number_of("port", port, int, 0, 2**16 - 1, "--port 0      (any free port)")
    with _serving(event_folders(paths or ("runs",)), port) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: server.terminate())
        return ExitCode.FAILED if server.wait() else ExitCode.DONE


def beside_run(folder: RunFolder, wanted: bool) -> AbstractContextManager[object]:
    """Return a context that serves a run's events at any free port; if not `wanted`, return an empty context."""
    return _serving({folder.path.absolute().name: folder.tensorboard.absolute()}, "0") if wanted else nullcontext()


def event_folders(paths: tuple[str, ...]) -> dict[str, Path]:
    """Return {name on the page: folder of event files}. RequestError: a path has no event files."""
    found: dict[str, Path] = {}
    for path in paths:
        folder = Path(path).expanduser()
        inside = sorted(events.parent for events in folder.glob("*/tensorboard"))
        if (folder / "config.yaml").is_file() or not inside:
            inside = [existing_run(folder).path]
        for run in inside:
            events = RunFolder(run).tensorboard
            if not any(events.glob("events.out.tfevents.*")):
                raise RequestError("no-event-files", f"{run} has no event files", seen=f"nothing in {events}",
                                   expected="a run with tracker.tensorboard=true, which is the default",
                                   fix=f"noether report {run}")  # fmt: skip
            whole = run.absolute()
            found[whole.name if whole.name not in found else str(whole).lstrip("/")] = events.absolute()
    return found


@contextmanager
def _serving(folders: Mapping[str, Path], port: str | None) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the server, which prints its address; stop it when the block ends or this process is killed.

    The server has its own session, so that Ctrl-C reaches only this process, which may have a run to save first.
    """
    with tempfile.TemporaryDirectory(prefix="noether-tensorboard-") as logdir:
        for name, folder in folders.items():  # The page shows the names of these links.
            (Path(logdir) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(logdir) / name).symlink_to(folder)
        # TensorBoard runs without its data server, a binary that images leave out.
        options = ("--host=127.0.0.1", "--load_fast=false", "--reload_interval=5", f"--logdir={logdir}")
        server = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", *options, *([f"--port={port}"] if port else [])],
            start_new_session=True,
            preexec_fn=partial(set_death_signal, signal.SIGTERM),
        )
        try:
            yield server
        finally:
            server.terminate()
            try:
                server.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
