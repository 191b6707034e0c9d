"""Kill runs at any moment, repeatedly, and show that they end as if nothing had happened.

    python -m tests.faults.kill --cases 200 [--first 0] [--jobs 2] [--ranks 1,2,3,4,8] [--keep FOLDER]

Each seed is a run that is disturbed one to three times and then completed, always with `resume=auto`. Afterwards, its
last checkpoint must have the same bits as an undisturbed run's, and its history the same rows. A seed draws:

- the victim: the only process; one of several ranks, each started as a node; all ranks at once (a power cut); the
  launcher of several ranks on one host; one of the launchers of two hosts;
- the method: SIGKILL right before the n-th operation on the run folder (open, piece of a file, fsync, rename, removal);
  SIGKILL at a random moment; SIGTERM at a random moment, once or twice within milliseconds, so that the run saves.

In the last start of a run with several ranks, one rank is paused for a while.

A kill before an operation is exactly repeatable; the effect of a random moment depends on the machine's speed.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from noether.common.errors import ExitCode
from noether.config.compose import dump_config
from noether.runs.lease import read_attempts
from tests.processes import free_port

from . import victim
from .room import LIMIT_S, REPOSITORY, Blow, Room, Undisturbed, ended, final_hashes, history
from .series import options, run_series

MEETING_S = 60.0


def draw_blow(rng: random.Random, ranks: int, calm: Undisturbed) -> Blow:
    how = rng.choice(("operation", "operation", "moment", "moment", "signal"))
    moment = rng.uniform(0, calm.seconds)
    if how == "operation":
        # Always rank 0, because the other ranks access the folder only at the start.
        return Blow(0, operation=rng.randint(1, calm.operations))
    if how == "signal":
        return Blow(rng.randrange(ranks), moment=moment, number=signal.SIGTERM, times=rng.choice((1, 2)))
    return Blow(rng.randrange(ranks), moment=moment)


def strike(victims: list[victim.Victim], blow: Blow, everybody: bool) -> list[int]:
    """Disturb a run and end all of its processes; return their exit codes."""
    if blow.operation is None:
        struck = victims if everybody else [victims[blow.target]]
        if victims[blow.target].wait(blow.moment) is None:
            for _ in range(blow.times):
                for one in struck:
                    one.kill(blow.number)
                time.sleep(0.01)
    else:
        victims[blow.target].wait(LIMIT_S)
    if len(victims) > 1 and blow.number == signal.SIGKILL:
        time.sleep(0.2)  # Let the other ranks notice the loss, because their reaction must do no harm either.
        return [ended(one, 0) for one in victims]
    return [ended(one, LIMIT_S) for one in victims]


def delay(victims: list[victim.Victim], rng: random.Random, calm: Undisturbed) -> str:
    """Pause one rank for a moment, as a frozen file system would; return a description."""
    rank, moment, length = rng.randrange(len(victims)), rng.uniform(0, calm.seconds), rng.uniform(0.2, 2.0)
    if victims[rank].wait(moment) is None:
        victims[rank].kill(signal.SIGSTOP)
        time.sleep(length)
        victims[rank].kill(signal.SIGCONT)
    return f"process {rank} paused for {length:.2f} s at {moment:.2f} s"


def strike_launcher(room: Room, name: str, blow: Blow, ranks: int, hosts: int) -> list[int]:
    """Start a launcher on each host, signal one, and return their exit codes; fail if a process of the run survives."""
    files = [room.folder / f"{name}-host{host}.yaml" for host in range(hosts)]
    meeting: dict[str, Any] = {}
    if hosts > 1:
        # A launcher waits this long if the other launcher is killed before they have connected.
        limits = room.config.distributed.model_copy(update={"init_timeout_s": MEETING_S})
        meeting = {"nodes": hosts, "master_addr": "127.0.0.1", "master_port": free_port(), "distributed": limits}
    processes = []
    for host, file in enumerate(files):
        own = {**meeting, "node_rank": host} if hosts > 1 else {}
        file.write_text(dump_config(room.config_of(name, devices=str(ranks // hosts), **own, **room.batch_of(ranks))))
        command = [sys.executable, "-m", "noether", "train", "--hp", str(file)]
        with room.log(name if host == 0 else f"{name}-{host}").open("a") as log:
            processes.append(
                subprocess.Popen(
                    command, cwd=REPOSITORY, env=room.environ, stdout=log, stderr=log, start_new_session=True
                )
            )
    struck = processes[blow.target]
    try:
        try:
            struck.wait(blow.moment)
        except subprocess.TimeoutExpired:
            for _ in range(blow.times):
                struck.send_signal(blow.number)
                time.sleep(0.01)
        codes = [process.wait(LIMIT_S) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    deadline = time.monotonic() + 10
    names = [str(file) for file in files]
    while left := [pid for pid in os.listdir("/proc") if pid.isdigit() and any(n in command_of(pid) for n in names)]:
        assert time.monotonic() < deadline, f"processes of the run are still alive: {left}"
        time.sleep(0.05)
    return codes


def command_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def draw_ranks(seed: int, who: str, known: Collection[int]) -> tuple[int, int]:
    """Draw the number of ranks and the number of hosts; only the victim `launcher` uses the latter."""
    rng = random.Random(f"ranks {seed}")
    several = [ranks for ranks in known if ranks > 1]
    if who == "alone" or not several:
        return 1, 1
    ranks = rng.choice(several)
    # One host may run at most two ranks per core; two hosts run the same number of ranks each.
    hosts = 2 if ranks > 2 * (os.cpu_count() or 1) or (ranks % 2 == 0 and rng.random() < 0.5) else 1
    return ranks, hosts


def run_seed(room: Room, seed: int, calm: dict[int, Undisturbed]) -> str:
    """Disturb a run as the seed draws, complete it, and assert that the results agree; return a description."""
    rng = random.Random(seed)
    who = rng.choice(("alone", "alone", "rank", "node", "launcher"))
    ranks, hosts = draw_ranks(seed, who, calm)
    name, told = f"seed-{seed}", []
    for _ in range(rng.randint(1, 3)):
        blow = draw_blow(rng, ranks, calm[ranks])
        if who == "launcher":
            # A launcher needs some seconds to start, before which a kill tests little.
            moment = rng.uniform(1, 3 + calm[ranks].seconds)
            blow = Blow(rng.randrange(hosts), moment=moment, number=blow.number, times=blow.times)
            codes = strike_launcher(room, name, blow, ranks, hosts)
        else:
            codes = strike(room.start(name, ranks, blow), blow, everybody=who == "node")
        told.append(f"{blow} → {','.join(map(str, codes))}")
        allowed = {0, -blow.number, ExitCode.CHECKPOINTED}
        # SIGTERM kills a process that has no handler yet. With several ranks, a rank that lost its peer may also fail.
        assert ranks > 1 or set(codes) <= allowed, f"{told}\n{room.log(name).read_text()}"
    victims = room.start(name, ranks)
    if ranks > 1:
        told.append(delay(victims, rng, calm[ranks]))
    codes = [one.wait(LIMIT_S) for one in victims]
    folder = room.run_folder(name)
    told.insert(0, f"{who} of {ranks} ranks" + (f" on {hosts} hosts" if who == "launcher" else ""))
    story = "; ".join(told)
    assert codes == [0] * ranks, f"{story}\nthe last start ended with {codes}\n{room.log(name).read_text()}"
    assert final_hashes(folder) == calm[ranks].hashes, f"{story}\nthe checkpoint differs from the undisturbed run's"
    assert history(folder) == calm[ranks].rows, f"{story}\nthe history differs from the undisturbed run's"
    assert not list(folder.checkpoints.glob(".*")), f"{story}\ntemporary files remain"
    starts = read_attempts(folder)
    assert [row.number for row in starts] == sorted({row.number for row in starts}), story
    return story


def main() -> int:
    parser = options(__doc__, 200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument("--keep", type=Path, default=None, help="keep the runs in this folder")
    parser.add_argument("--ranks", default="1,2,3,4,8", help="rank counts, including 1, separated by commas")
    given = parser.parse_args()
    import noether.training.start  # noqa: F401
    import noether.training.train  # noqa: F401  Imported once here, instead of in every fork.

    with tempfile.TemporaryDirectory(prefix="kill-") as scratch:
        room = Room(given.keep or Path(scratch))
        calm = {int(ranks): room.undisturbed(int(ranks)) for ranks in given.ranks.split(",")}
        for ranks, one in calm.items():
            print(f"undisturbed on {ranks} rank(s): {one.seconds:.1f} s, {one.operations} operations", flush=True)

        def run_case(seed: int) -> tuple[str, list[str]]:
            story = run_seed(room, seed, calm)
            if given.keep is None:
                shutil.rmtree(room.run_folder(f"seed-{seed}").path)
            return story, []

        return run_series(given, run_case, summary="kills, {failed} differences or tracebacks", jobs=given.jobs)


if __name__ == "__main__":
    sys.exit(main())
