"""Attack the ports of a run by garbage, zeros, HTTP requests, many idle connections, or forged hellos.

    python -m tests.faults.strangers --cases 12 [--first 0] [--record FILE]

Each case is a run of two launchers on this machine, started with `--nodes 2`. Every port on which one of its processes
listens is attacked, from before the launchers connect until the run ends. In half of the cases the address of the run
is not the loopback, so the ports are open on every interface. Both launchers must end with exit code 0, and the weights
must be those of an undisturbed run.
"""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from noether.launch.detect.identity import RunIdentity
from noether.runs.folder import RunFolder
from tests.misbehaving import processes_of
from tests.processes import free_port

from .room import REPOSITORY, TINY, final_hashes
from .series import options, run_series

LIMIT_S = 240.0
SETTINGS = ("trainer.max_updates=12", "trainer.precision=float64", "trainer.log_every=1 updates")
MOST_OPEN = 3000
PIPED: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}


WRONG: tuple[dict[str, Any], ...] = (
    *({}, {"host": None}, {"host": "\x1b[2J\nroot"}, {"pid": "x" * 1000}, {"run": "[]"}, {"run": '{"launcher": 1}'}),
    *({"run": "[" * 5000}, *({"ranks": ranks} for ranks in (None, [-1], [10**9], "1", {"1": 1}))),
)


def forged(rng: random.Random) -> bytes:
    """Return a launcher's hello with one wrong or missing entry, perhaps followed by lines of an admitted launcher."""
    launcher, job = rng.choice((("multinode", ""), ("slurm", "7.0")))
    identity = RunIdentity(launcher, 2, 0, "01234567", "cpu", job)
    hello = {"hello": "0" * 32, "run": identity.as_text(), "host": "stranger", "pid": 1, "ranks": [1]}
    said = {key: value for key, value in {**hello, **rng.choice(WRONG)}.items() if value is not None}
    more = rng.choice((b"", b'{"proof": "0"}\n', b'{"proof": null}\n{"report": {}}\n', b'{"failure": {}}\n'))
    return json.dumps(said).encode() + b"\n" + more


ATTACKS: dict[str, Callable[[random.Random], bytes]] = {
    "garbage": lambda rng: rng.randbytes(rng.randint(1, 5000)),
    "zeros": lambda rng: bytes(rng.choice((1, 4, 8, 4096, 1 << 20))),
    "http": lambda rng: b"GET / HTTP/1.1\r\nHost: run\r\n\r\n",
    "idle": lambda rng: b"",
    "forged": forged,
    "gloo": lambda rng: rng.randrange(2**63).to_bytes(8, "little"),  # A gloo peer first sends the number of its pair.
}


def listening_ports(folder: str) -> set[int]:
    """Return the TCP ports on which processes listen that have `folder` in their arguments or environment."""
    inodes = set()
    for pid in processes_of(folder):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


class Stranger(threading.Thread):
    """A thread that attacks every port of a run until `over` is set, and keeps up to `most` connections open."""

    def __init__(self, folder: Path, how: str, seed: int, *, most: int = 200, port: int | None = None) -> None:
        super().__init__(daemon=True)
        self._folder, self._say, self._rng = str(folder), ATTACKS[how], random.Random(seed)
        self._most, self._ports = most, {port} if port else set()
        self.over = threading.Event()
        self.connections = 0

    def run(self) -> None:
        held: list[socket.socket] = []
        looked = 0.0
        while not self.over.is_set():
            if time.monotonic() - looked > 0.05:
                looked = time.monotonic()
                self._ports |= listening_ports(self._folder)
            for port in sorted(self._ports):
                with contextlib.suppress(OSError):
                    held.append(socket.create_connection(("127.0.0.1", port), timeout=0.2))
                    self.connections += 1
                    held[-1].settimeout(0.2)
                    held[-1].sendall(self._say(self._rng))
            while len(held) > self._most:
                held.pop(0).close()
            time.sleep(0.002)
        for connection in held:
            connection.close()


@contextlib.contextmanager
def attacked(folder: Path, how: str, seed: int, most: int, port: int | None = None) -> Iterator[Stranger]:
    stranger = Stranger(folder, how, seed, most=most, port=port)
    stranger.start()
    try:
        yield stranger
    finally:
        stranger.over.set()
        stranger.join(timeout=10)


def own_address() -> str:
    """Return an address of this machine that is not the loopback; without a network, the loopback."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # Only chooses the interface; a UDP socket sends nothing here.
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def start(folder: Path, node: int, port: int, *words: str, host: str = "127.0.0.1") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "noether", "train", "--hp", str(TINY), f"output_path={folder}", "run_id=run"]
    command += ["--nodes", "2", "--node-rank", str(node), "--master-addr", host, f"master_port={port}"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "OF_THE_TEST": str(folder)}
    return subprocess.Popen([*command, *SETTINGS, *words], cwd=REPOSITORY, env=environ, **PIPED)


def finish(processes: list[subprocess.Popen[str]], limit_s: float = LIMIT_S) -> list[str]:
    """Wait for the launchers, kill any launcher that does not end in time, and return the output of each."""
    deadline = time.monotonic() + limit_s
    said = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        said.append(out + err)
    return said


def undisturbed(folder: Path) -> dict[str, str]:
    """Train a run that is not attacked; return the SHA-256 of the files of its last checkpoint."""
    port = free_port()
    processes = [start(folder, node, port) for node in (0, 1)]
    said = finish(processes)
    assert [process.returncode for process in processes] == [0, 0], said
    return final_hashes(RunFolder(folder / "run"))


def play(folder: Path, how: str, seed: int, most: int, apart_s: float, host: str = "127.0.0.1") -> dict[str, Any]:
    """Train under attack; node 1 starts after `apart_s` seconds and 50 connections of the attacker."""
    folder.mkdir(parents=True)
    port, began = free_port(), time.monotonic()
    with attacked(folder, how, seed, most, port) as stranger:
        processes = [start(folder, 0, port, host=host)]
        while time.monotonic() - began < apart_s or (stranger.connections <= 50 and processes[0].poll() is None):
            time.sleep(0.01)
        processes.append(start(folder, 1, port, host=host))
        said = finish(processes)
    codes = [process.returncode for process in processes]
    row = {"how": how, "seed": seed, "most": most, "apart_s": round(apart_s, 1), "host": host, "codes": codes}
    row |= {"connections": stranger.connections, "seconds": round(time.monotonic() - began, 1)}
    if codes == [0, 0]:
        row["hashes"] = final_hashes(RunFolder(folder / "run"))
    else:
        row["said"] = said
    return row


def main() -> int:
    given = options(__doc__, 2 * len(ATTACKS)).parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        expected = undisturbed(Path(temporary) / "calm")

        def run_case(seed: int) -> tuple[str, list[str]]:
            rng = random.Random(seed)
            how = list(ATTACKS)[seed % len(ATTACKS)]
            most, apart_s = rng.choice((50, 400, MOST_OPEN)), rng.uniform(0, 10)
            row = play(Path(temporary) / str(seed), how, seed, most, apart_s, rng.choice(("127.0.0.1", own_address())))
            held = row.pop("hashes", None) == expected
            return json.dumps(row), [] if held else ["different weights, or an exit code other than 0"]

        return run_series(given, run_case, summary="attacks, {failed} that made a difference")


if __name__ == "__main__":
    sys.exit(main())
