"""Test folders for series of disturbed runs: start runs and commands, and compare with an undisturbed run."""

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

os.environ["OMP_NUM_THREADS"] = "1"  # Set before torch is imported: a fork of a process with threads may hang.

from noether.checkpoints.format import list_checkpoints
from noether.config.compose import dump_config, load_config
from noether.config.schema import RunConfig
from noether.runs.folder import RunFolder
from noether.runs.records import read_metrics
from tests.processes import free_port

from . import victim

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "tests" / "tiny.yaml"
SETTINGS = (
    "trainer.max_updates=8",
    "trainer.effective_batch_size=8",  # Divisible by each rank count of the harnesses but 3.
    "trainer.checkpoint_every=2 updates",
    "trainer.keep_checkpoints=2",
    "trainer.log_every=1 updates",
    "trainer.ema_decay=0.9",
    "optimizer.learning_rate=1e-2",
    "resume=auto",
)
# The keys of a row whose values differ between identical runs.
MEASURED = (
    "time", "samples_per_second", "memory_mib", "host_memory_mib", "cpu_cores", "device_use", "time_use", "slowest",
    "seconds",
)  # fmt: skip
LIMIT_S = 120.0


@dataclass(frozen=True)
class Undisturbed:
    """An undisturbed run: its last checkpoint's SHA-256, its rows, duration, and number of operations on its folder."""

    hashes: dict[str, str]
    rows: list[dict]
    seconds: float
    operations: int


@dataclass(frozen=True)
class Blow:
    """A disturbance of process `target`: it dies before `operation`, or gets a signal `moment` seconds after its start.

    The attribute `number` is the signal's number, and `times` counts how often it is sent.
    """

    target: int
    operation: int | None = None
    moment: float = 0.0
    number: int = signal.SIGKILL
    times: int = 1

    def __str__(self) -> str:
        where = f"operation {self.operation}" if self.operation else f"{self.moment:.2f} s"
        name = signal.Signals(self.number).name + (" twice" if self.times > 1 else "")
        return f"{name} to process {self.target} at {where}"


class Room:
    """The test folder of a series, with its data, runs and logs."""

    def __init__(self, folder: Path, *more: str, settings: Path = TINY) -> None:
        self.folder = folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "NOETHER_"))}
        self.environ = {**inherited, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(REPOSITORY)}
        self.config = load_config((*SETTINGS, *more, f"output_path={folder}"), settings)
        self.settings = folder / "settings.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        self.settings.write_text(dump_config(self.config))

    def run_folder(self, name: str) -> RunFolder:
        return RunFolder(self.folder / name)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def config_of(self, name: str, **changes) -> RunConfig:
        return self.config.model_copy(update={"run_id": name, **changes})

    def start(self, name: str, ranks: int, blow: Blow | None = None, count: Path | None = None) -> list[victim.Victim]:
        """Start a run with a process per rank, each started as a node of its own."""
        meeting = {"nodes": ranks, "master_addr": "127.0.0.1", "master_port": free_port()} if ranks > 1 else {}
        victims = []
        for rank in range(ranks):
            own = {**meeting, "node_rank": rank} if ranks > 1 else {}
            own |= self.batch_of(ranks)
            die_at = blow.operation if blow is not None and blow.target == rank else None
            log = self.log(name if rank == 0 else f"{name}-{rank}")
            counted = count if rank == 0 else None
            victims.append(victim.start(self.config_of(name, **own), log, self.environ, die_at=die_at, count=counted))
        return victims

    def batch_of(self, ranks: int) -> dict[str, Any]:
        """Return settings that make the batch divisible by the number of ranks; empty if the default batch is."""
        if self.config.trainer.effective_batch_size % ranks == 0:
            return {}
        return {"trainer": self.config.trainer.model_copy(update={"effective_batch_size": 2 * ranks})}

    def undisturbed(self, ranks: int) -> Undisturbed:
        count = self.folder / f"operations-{ranks}"
        for attempt in ("warm", "calm"):  # Only the second run is measured: the first also generates the data.
            started = time.monotonic()
            codes = [one.wait(LIMIT_S) for one in self.start(f"{attempt}-{ranks}", ranks, count=count)]
            seconds = time.monotonic() - started
            assert codes == [0] * ranks, (codes, self.log(f"{attempt}-{ranks}").read_text())
        folder = self.run_folder(f"calm-{ranks}")
        return Undisturbed(final_hashes(folder), history(folder), seconds, int(count.read_text()))


class CalmRoom(Room):
    """A test folder with an undisturbed run of one rank; it imports a run's modules once, instead of in each fork."""

    def __init__(self, folder: Path, *more: str) -> None:
        super().__init__(folder, *more)
        import_what_is_used(["train", "--hp", str(self.settings), "run_id=first"], self.log("first"), self.environ)
        self.calm = self.undisturbed(1)


def final_hashes(folder: RunFolder) -> dict[str, str]:
    """Return the SHA-256 of each file of the last checkpoint, except meta.json, which contains the run's name."""
    last = list_checkpoints(folder.checkpoints)[-1]
    assert last.damage() is None
    files = sorted(path for path in last.path.iterdir() if path.name != "meta.json")
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in files} | {"updates": str(last.updates)}


def history(folder: RunFolder) -> list[dict]:
    """Return the rows of training and evaluation, without the keys in MEASURED."""
    rows = [row for row in read_metrics(folder.metrics) if row["kind"] in ("training", "evaluation")]
    return [{key: value for key, value in row.items() if key not in MEASURED} for row in rows]


def ended(one: victim.Victim, seconds: float) -> int:
    code = one.wait(seconds)
    return one.end() if code is None else code


NO_TRACEBACK = "Traceback (most recent call last)"


def run_command(arguments: Sequence[str], log: Path, environ: Mapping[str, str], limit_s: float = 120) -> int:
    """Run `noether ARGUMENTS` in a fork, with its output appended to `log`; return its exit code, -1 if it is late."""

    def act() -> None:
        from noether.cli.entry import main

        main(arguments)

    started = victim.fork(act, log, environ)
    code = started.wait(limit_s)
    if code is None:
        started.end()
        with log.open("a") as file:
            file.write(f"{NO_TRACEBACK}? It has not ended within {limit_s:g} s: {' '.join(arguments)}\n")
        return -1
    return code


def import_what_is_used(arguments: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
    """Run a command in a fork, then import the same modules in this process, so that later forks need not."""
    listed = log.with_suffix(".modules")

    def act() -> None:
        from noether.cli import entry

        def leave(code: int) -> NoReturn:
            listed.write_text("\n".join(sys.modules))
            os._exit(code)

        entry._leave = leave
        entry.main(arguments)

    code = victim.fork(act, log, environ).wait(300)
    assert code == 0, log.read_text()
    for name in listed.read_text().splitlines():
        with contextlib.suppress(Exception):
            importlib.import_module(name)
