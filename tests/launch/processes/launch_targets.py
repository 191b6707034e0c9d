"""Functions that the workers of these tests run, called by dotted path in separate processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from noether.common.errors import ExitCode, RequestError
from noether.launch.processes.context import WorkerContext
from noether.launch.processes.death_signal import die_with_parent


def note(folder: Path, context: WorkerContext, **facts: Any) -> None:
    """Write facts about this rank to a file that the test reads; write the file atomically."""
    partial = folder / f"rank-{context.worker.rank}.partial"
    partial.write_text(json.dumps({"pid": os.getpid(), **facts}))
    partial.rename(folder / f"rank-{context.worker.rank}.json")


def sum_ranks(context: WorkerContext, folder: Path) -> int:
    preloaded = "torch" in sys.modules
    import torch

    from noether.launch.process_group.group import joined_group

    with joined_group(context) as group:
        total = group.sum(torch.tensor([context.worker.rank + 1.0]))
    with open(f"/proc/{os.getppid()}/cmdline", "rb") as cmdline:
        parent = cmdline.read().decode()
    note(
        folder,
        context,
        sum=total.item(),
        preloaded=preloaded,
        compiler="torch._dynamo" in sys.modules,
        parent_is_server="forkserver" in parent,
        parent_threads=len(os.listdir(f"/proc/{os.getppid()}/task")),
        cuda_touched=torch.cuda.is_initialized(),
        threads=torch.get_num_threads(),
        environment=dict(os.environ),
        session=os.getsid(0),
    )
    print(f"rank {context.worker.rank} was here")
    return 0


def fail_while_others_reduce(context: WorkerContext, how: str) -> int:
    """Rank 1 ends as `how` says while rank 0 waits for it in a collective."""
    import torch

    from noether.launch.process_group.group import joined_group

    with joined_group(context) as group:
        group.sum(torch.ones(1))
        if context.worker.rank == 1:
            time.sleep(0.1)
            if how == "raise":
                raise ValueError("boom")
            if how == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit(0)
        group.sum(torch.ones(1))
    return 0


# A message of torch, shortened.
WATCHDOG = """[rank{rank}]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective \
operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=5000) ran for 5081 \
milliseconds before timing out.
terminate called after throwing an instance of 'c10::DistBackendError'
"""


def hang_on_gpu(context: WorkerContext, plan: tuple[int, Path]) -> int:
    """One rank hangs in update 3; the other queues its collective and continues, until its watchdog aborts it."""
    hanging, folder = plan
    for update in (1, 2, 3):
        context.parent.begin_update(update)
        if (context.worker.rank, update) == (hanging, 3):
            (folder / "hangs").touch()
            while not (folder / "asked").exists():  # The watchdog makes each rank write a trace.
                time.sleep(0.01)
            time.sleep(0.5)
            (context.run_info.log_folder / f"nccl-trace-rank-{hanging}").touch()
            time.sleep(60)
        with context.parent.waiting("all_reduce of the gradients"):
            pass
    while not (folder / "hangs").exists():
        time.sleep(0.01)
    os.write(2, WATCHDOG.format(rank=context.worker.rank).encode())
    (context.run_info.log_folder / f"nccl-trace-rank-{context.worker.rank}").touch()
    (folder / "asked").touch()
    os.abort()


def leave_early(context: WorkerContext, code: int) -> int:
    """Rank 1 exits while rank 0 is working."""
    works = context.run_info.log_folder / "works"
    if context.worker.rank == 1:
        while not works.exists():
            time.sleep(0.01)
        os._exit(code)
    works.touch()
    time.sleep(60)
    return 0


def refuse(context: WorkerContext, payload: Any) -> int:
    raise RequestError("no-such-model", "no such model", seen="model=upd", expected="upt", fix="model=upt")


def exit_75(context: WorkerContext, payload: Any) -> int:
    return int(ExitCode.CHECKPOINTED)


def raise_here(context: WorkerContext, payload: Any) -> int:
    raise ValueError(f"boom in {os.getpid()}, rank {os.environ['RANK']}")


def start_family(folder: Path, context: WorkerContext) -> None:
    """Start four children: a loader; one without a death signal; one in its own session; and a daemon.

    The child without a death signal keeps its parent's files open. The daemon's direct parent has ended.
    """
    import multiprocessing

    fork = multiprocessing.get_context("fork")
    loader = fork.Process(target=_load_forever, daemon=True)
    loader.start()
    careless = fork.Process(target=time.sleep, args=(600,), daemon=True)
    careless.start()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    code = "import subprocess as s; print(s.Popen(['sleep', '600'], start_new_session=True, stdout=s.DEVNULL).pid)"
    daemon = int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout)
    note(folder, context, loader=loader.pid, careless=careless.pid, stranger=stranger.pid, daemon=daemon)


def _load_forever() -> None:
    die_with_parent()
    time.sleep(600)


def hang_with_family(context: WorkerContext, folder: Path) -> int:
    """Rank 0 starts children, hangs, and ignores SIGTERM and SIGINT; rank 1 fails once rank 0 has started them."""
    if context.worker.rank == 0:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        start_family(folder, context)
        time.sleep(600)
    while not (folder / "rank-0.json").exists():
        time.sleep(0.01)
    raise ValueError("boom")


def die_with_family(context: WorkerContext, folder: Path) -> int:
    """Rank 0 starts children and is killed while they run."""
    if context.worker.rank == 0:
        start_family(folder, context)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    return 0


def finish_with_family(context: WorkerContext, folder: Path) -> int:
    """Rank 0 starts children and exits without ending them."""
    if context.worker.rank == 0:
        start_family(folder, context)
    return 0


def wait_with_family(context: WorkerContext, folder: Path) -> int:
    start_family(folder, context)
    time.sleep(600)
    return 0


def stop_at_boundary(context: WorkerContext, folder: Path) -> int:
    """Record signals. After the first signal, exit with code 75 once the test has created the file `boundary`."""
    received: list[str] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: received.append(signal.Signals(number).name))
    note(folder, context)
    while not (received and (folder / "boundary").exists()):
        time.sleep(0.01)
    (folder / f"received-{context.worker.rank}").write_text(" ".join(received))
    return int(ExitCode.CHECKPOINTED)


def wait_for_signal(context: WorkerContext, folder: Path) -> int:
    """Wait without setting a signal handler."""
    note(folder, context)
    time.sleep(600)
    return 0


def answer(context: WorkerContext, folder: Path) -> int:
    """Record this worker's parent, and whether torch was preloaded."""
    note(folder, context, parent=os.getppid(), preloaded="torch" in sys.modules)
    return 0
