"""The commands of the program, each in a fork of a process that has imported torch and started no thread."""

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from .victim import fork

NO_TRACEBACK = "Traceback (most recent call last)"


def run_command(arguments: Sequence[str], log: Path, environ: Mapping[str, str], limit_s: float = 120) -> int:
    """Runs `noether ARGUMENTS` to its end, as the console script does; returns its exit code."""

    def act() -> None:
        from noether.cli.entry import main

        main(arguments)

    victim = fork(act, log, environ)
    code = victim.wait(limit_s)
    if code is None:
        victim.end()
        with log.open("a") as file:
            file.write(f"{NO_TRACEBACK}? It has not ended within {limit_s:g} s: {' '.join(arguments)}\n")
        return -1
    return code


def import_what_is_used(arguments: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
    """Runs a command in a fork and imports here what it has imported there, so that later forks need not."""
    listed = log.with_suffix(".modules")

    def act() -> None:
        from noether.cli import entry

        def leave(code: int) -> NoReturn:
            listed.write_text("\n".join(sys.modules))
            os._exit(code)

        entry._leave = leave
        entry.main(arguments)

    code = fork(act, log, environ).wait(300)
    assert code == 0, log.read_text()
    for name in listed.read_text().splitlines():
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def wait_for(true: Callable[[], object], limit_s: float) -> bool:
    """Waits until something holds; returns whether it does."""
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
