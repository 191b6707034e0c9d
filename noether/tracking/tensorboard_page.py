"""Serves TensorBoard on this machine's loopback: for finished runs, or beside one that trains, and no longer than it.

python -m noether.tracking.tensorboard_page NAME=FOLDER ...     (what `beside_run` starts)
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from noether.errors import ExitCode, RequestError
from noether.runs.folder import RunFolder, existing_run

LOOPBACK = "127.0.0.1"
ENDING = (signal.SIGINT, signal.SIGTERM)
ENDS_WITHIN_S = 5.0


def serve_here(paths: tuple[str, ...], port: str | None) -> NoReturn:
    """Serves runs, and those in folders of runs, until Ctrl-C or SIGTERM, which end this process with exit code 0.

    Without a port it is the first free one from 6006 on.

    Raises:
        RequestError: a path without events of a run, or a port that is not a number.
    """
    if port is not None and not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise RequestError(
            "tensorboard-port",
            f"--port is a number, not {port!r}",
            expected="0 to 65535; 0: any free one",
            fix="--port 0",
        )
    folders = event_folders(paths or ("runs",))
    # Blocked in TensorBoard's threads too: where one of them took a Ctrl-C, this thread would go on waiting.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    with tempfile.TemporaryDirectory(prefix="noether-tensorboard-") as logdir:
        address = _serve(folders, Path(logdir), int(port) if port else None)
        print(f"tensorboard  {address}      (Ctrl-C ends it)", flush=True)
        signal.sigwait(ENDING)
        print(flush=True)
    os._exit(ExitCode.DONE)  # A thread of TensorBoard's that is reading may keep the interpreter from ending.


def event_folders(paths: tuple[str, ...]) -> dict[str, Path]:
    """Returns the folders of event files by the names that the page shows.

    Raises:
        RequestError: a path that is neither a run nor holds any, or a run that has written no events.
    """
    found: dict[str, Path] = {}
    for path in paths:
        folder = Path(path).expanduser()
        inside = sorted(events.parent for events in folder.glob("*/tensorboard"))
        if (folder / "config.yaml").is_file() or not inside:
            inside = [existing_run(folder).path]
        for run in inside:
            events = RunFolder(run).tensorboard
            if not any(events.glob("events.out.tfevents.*")):
                raise RequestError(
                    "no-event-files",
                    f"{run} has no event files",
                    seen=f"nothing in {events}",
                    expected="a run with tracker.tensorboard=true, which is the default",
                    fix=f"noether report {run}",
                )
            whole = run.absolute()
            found[whole.name if whole.name not in found else str(whole).lstrip("/")] = events.absolute()
    return found


@contextmanager
def beside_run(folder: RunFolder, wanted: bool) -> Iterator[None]:
    """Serves one run's events in a process of its own, which prints its address and ends with the block.

    It also ends where this process is killed: its standard input is then closed.
    """
    if not wanted:
        yield
        return
    events = f"{folder.path.absolute().name}={folder.tensorboard.absolute()}"
    server = subprocess.Popen([sys.executable, "-m", __spec__.name, events], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert server.stdin is not None
        server.stdin.close()
        try:
            server.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _serve(folders: Mapping[str, Path], logdir: Path, port: int | None) -> str:
    """Starts the server in a thread; returns its address. `logdir` is filled with links, whose names the page shows."""
    from tensorboard.program import TensorBoard, TensorBoardServerException

    for name, folder in folders.items():
        (logdir / name).parent.mkdir(parents=True, exist_ok=True)
        (logdir / name).symlink_to(folder)
    board = TensorBoard()
    # Without the data server, which is a binary that images leave out.
    where = {"logdir": str(logdir), "host": LOOPBACK, "port": port}
    board.configure(("noether",), **where, load_fast="false", reload_interval=5.0)
    try:
        return str(board.launch())
    except TensorBoardServerException as error:
        raise RequestError(
            "tensorboard-cannot-serve",
            "TensorBoard cannot serve",
            seen=error.msg,
            expected="a free port",
            fix="--port 0      (any free one)",
        ) from None


def _serve_beside(folders: Mapping[str, Path]) -> None:
    """Serves until the process that started this one closes standard input, or is gone."""
    # Ctrl-C reaches the run too, which saves, and then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with tempfile.TemporaryDirectory(prefix="noether-tensorboard-") as logdir:
        threading.Thread(target=_announce, args=(folders, Path(logdir)), daemon=True).start()
        sys.stdin.buffer.read()
    os._exit(0)


def _announce(folders: Mapping[str, Path], logdir: Path) -> None:
    print(f"tensorboard  {_serve(folders, logdir, 0)}", flush=True)


if __name__ == "__main__":
    _serve_beside({name: Path(folder) for name, _, folder in (word.partition("=") for word in sys.argv[1:])})
