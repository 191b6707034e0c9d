"""Containers started by a test. They run with a time limit, and are stopped and removed by id."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import pytest
import requests
from conftest import TINY, Finished
from docker.models.containers import Container

TINY_INSIDE = "/tiny.yaml"


@dataclass
class Tracker:
    """Starts containers of one image, and remembers them so that they can be removed."""

    client: docker.DockerClient
    image: str
    started: list[Container] = field(default_factory=list)

    def run(self, *command: str, limit_s: float = 200, code: int | None = None, **options: Any) -> Finished:
        """Run a container until it ends; if `code` is given, check its exit code."""
        ended = self.wait(self.start(*command, **options), limit_s)
        assert code in (None, ended.code), ended.out + ended.err
        return ended

    def start(self, *command: str, **options: Any) -> Container:
        """Start a container. The option `work` is a folder of this machine to mount as its working directory."""
        mounts = {str(TINY): {"bind": TINY_INSIDE, "mode": "ro"}, **options.pop("volumes", {})}
        if work := options.pop("work", None):
            mounts[str(work)] = {"bind": "/work", "mode": "rw"}
        container = self.client.containers.create(self.image, list(command), volumes=mounts, **options)
        self.started.append(container)
        container.start()
        return container

    def wait(self, container: Container, limit_s: float = 200) -> Finished:
        """Wait for a container's end; return its exit code and output. Fail if it prints nothing for `limit_s`.

        A limit on the whole run would depend on the load of the machine.
        """
        said, deadline, code = b"", time.monotonic() + limit_s, None
        while code is None:
            try:
                code = container.wait(timeout=5)["StatusCode"]
            except (requests.exceptions.ReadTimeout, requests.exceptions.ConnectionError):
                now = container.logs()
                if now == said and time.monotonic() > deadline:
                    pytest.fail(f"the container has said nothing new for {limit_s:g} s\n{now.decode()[-3000:]}")
                if now != said:
                    said, deadline = now, time.monotonic() + limit_s
        out, err = (container.logs(stdout=out, stderr=not out).decode(errors="replace") for out in (True, False))
        return Finished(code, out, err)

    def wait_for_output(self, container: Container, text: str, limit_s: float = 150) -> None:
        """Wait until a running container has printed `text`."""
        deadline = time.monotonic() + limit_s
        while text not in (said := container.logs().decode(errors="replace")):
            container.reload()
            assert container.status == "running", f"{container.status} before {text!r}\n{said[-3000:]}"
            assert time.monotonic() < deadline, f"{text!r}: not within {limit_s:g} s\n{said[-3000:]}"
            time.sleep(0.3)

    def remove(self) -> None:
        for container in self.started:
            with contextlib.suppress(docker.errors.NotFound):
                container.remove(force=True)


def tiny(name: str, *overrides: str, train: Sequence[str] = ("train",)) -> list[str]:
    """Return the command of a tiny run with this name, which writes to `runs` in the working directory."""
    return [*train, "--hp", TINY_INSIDE, f"run_id={name}", *overrides]


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in folder.rglob("*")}
