"""`noether watch`: serves the page at a loopback address of this machine until Ctrl-C. Does not import torch."""

import contextlib
import getpass
import os
import secrets
import socket
from collections.abc import Sequence

from noether.common.errors import ExitCode, RequestError
from noether.common.sanitize import shown_name
from noether.common.suggest import number_of
from noether.watch.watched_run import WatchedRuns, find_runs

PORT = 8642
"""The port to try first, so that the same tunnel can be used every time. If it is taken, use any free port."""


def watch_here(paths: Sequence[str], port: str | None) -> int:
    """Serve the page until SIGINT or SIGTERM. It shows the given runs, and all runs in the given folders.

    RequestError: there is no such run, the port is invalid or taken, or the extra `watch` is not installed.
    """
    runs = find_runs(paths)
    try:
        import uvicorn

        from noether.watch.app import make_app
        from noether.watch.connections import MOST_OF_A_HEADER, BoundedConnection
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise RequestError(
            "watch-not-installed",
            "noether watch needs a package that is not installed",
            seen=f"no module {error.name}",
            expected="the extra watch: starlette and uvicorn",
            fix="pip install starlette uvicorn      (or, in noether's checkout: pip install '.[watch]')",
        ) from None
    with contextlib.closing(_listen(port)) as listening:
        token = secrets.token_urlsafe(24)
        app = make_app(runs, token)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            http=BoundedConnection,
            h11_max_incomplete_event_size=MOST_OF_A_HEADER,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        _say_address(runs, listening.getsockname()[1], token)
        with contextlib.suppress(KeyboardInterrupt):  # After shutting down, uvicorn raises the signal again.
            server.run(sockets=[listening])
    print("\nnoether watch has ended; the runs continue", flush=True)
    return ExitCode.DONE


def _listen(port: str | None) -> socket.socket:
    wanted = PORT if port is None else number_of("port", port, int, 0, 2**16 - 1, f"--port {PORT}")
    for number in (wanted,) if port is not None else (wanted, 0):
        try:
            return socket.create_server(("127.0.0.1", number))  # A browser can connect from now on.
        except OSError as error:
            reason = os.strerror(error.errno or 0)
    raise RequestError("watch-port-unusable", f"cannot listen at port {wanted}", seen=f"{reason} (127.0.0.1:{wanted})",
                       expected="a free port of this machine",
                       fix="noether watch      (takes any free port)")  # fmt: skip


def _say_address(runs: WatchedRuns, port: int, token: str) -> None:
    what, user = [shown_name(str(path)) for path in (*runs.named, *runs.folders)], "USER"
    with contextlib.suppress(KeyError, OSError):  # A container's user may have no name.
        user = getpass.getuser()
    print(f"noether watch: {', '.join(what)}")
    print(f"  open      http://127.0.0.1:{port}/{token}/")
    print(f"  tunnel    ssh -N -L {port}:127.0.0.1:{port} {user}@{socket.gethostname()}   then open that address")
    print("  end       Ctrl-C", flush=True)
