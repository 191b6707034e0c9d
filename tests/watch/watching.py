"""Start `noether watch` as a user does, and send it requests as a browser would."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conftest import REPOSITORY

LIMIT_S = 60


@dataclass
class Page:
    process: subprocess.Popen[str]
    address: str
    said: str

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    @property
    def path(self) -> str:
        """The path of the address, /TOKEN/."""
        return urlsplit(self.address).path

    def ask(
        self, path: str, method: str = "GET", host: str | None = None, *, raw: bool = False
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request whose path is not normalised. `raw`: do not put the token before the path."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.putrequest(method, path if raw else self.path + path, skip_host=True)
            if host != "":
                connection.putheader("Host", host or f"127.0.0.1:{self.port}")
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        status, _, body = self.ask(path)
        assert status == 200, (path, status, body[:300])
        return json.loads(body)

    def end(self) -> tuple[int, str]:
        """Stop the program as Ctrl-C does; return its exit code and its output since it printed its address."""
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said


@contextmanager
def serve(environ: Mapping[str, str], *arguments: str, cwd: Path = REPOSITORY) -> Iterator[Page]:
    """Start `noether watch` at any free port and yield its page; at the end, kill the process if it still runs."""
    command = [sys.executable, "-m", "noether", "watch", *arguments, "--port", "0"]
    own = {**environ, "PYTHONPATH": str(REPOSITORY)}
    piped: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=cwd, env=own, **piped, start_new_session=True)
    try:
        said = ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"http://127\.0\.0\.1:\d+/\S+/", said)
        assert found, said
        yield Page(process, found[0], said)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
