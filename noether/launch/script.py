"""Runs any training script: its ranks are placed, started, watched and ended as those of `noether train` are.

A script that runs under torchrun runs here: each rank has RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK,
MASTER_ADDR and MASTER_PORT, and `torch.distributed.init_process_group()` connects to a store that is served already.
"""

import atexit
import os
import re
import runpy
import shlex
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noether.common.errors import ExitCode, RequestError
from noether.launch.detect.placement import Placement
from noether.launch.detect.process_facts import read_process_facts
from noether.launch.processes.context import WorkerContext
from noether.launch.processes.spawner import warm_up

if TYPE_CHECKING:  # A rank imports this module, and needs nothing of what places it.
    from noether.config.schema import RunConfig

RUN = "noether.launch.script.run_rank"
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Tells torch's env:// that somebody serves the store at MASTER_PORT, so that rank 0 does not."""


@dataclass(frozen=True)
class OwnScript:
    """A script of the user's or, if `is_module`, a module as `python -m` takes it, with its own words."""

    name: str
    words: tuple[str, ...] = ()
    is_module: bool = False

    def check(self) -> None:
        """RequestError: there is no such script here."""
        if self.is_module:
            with suppress(ImportError, ValueError):
                if find_spec(self.name.partition(".")[0]) is not None:
                    return
        elif Path(self.name).is_file() or Path(self.name, "__main__.py").is_file():
            return
        raise RequestError("no-such-script", f"there is no {'module' if self.is_module else 'script'} {self.name}",
                           seen=f"{self.name} in {Path.cwd()}", expected="a Python file, or -m MODULE",
                           fix="noether run train.py …")  # fmt: skip


def place_script(config: "RunConfig") -> Placement:
    """Return which ranks of a script are started here, and why. RequestError: as for `noether train`."""
    from noether.launch.detect.driver import nvml_gpus
    from noether.launch.detect.resolve import resolve_placement
    from noether.launch.plan import HOST_CHECKS, launch_request

    facts, driver = read_process_facts(), partial(nvml_gpus, config.distributed.driver_timeout_s)
    placement = resolve_placement(launch_request(config), os.environ, socket.gethostname(), driver, facts)
    for name in ("processes", "timeout", "interface", "start method"):
        HOST_CHECKS[name](config, placement)
    return replace(placement, reasons={**placement.reasons, "device of a rank": mask_of(placement)[1]})


def mask_of(placement: Placement) -> tuple[dict[str, str], str]:
    """Return the variables that make cuda:LOCAL_RANK the device of each rank here, and why.

    A script takes the device of its LOCAL_RANK. That is its own where the ranks of this host have its first devices in
    turn. Where this process chose others of those that it sees, the mask names them; where each process of a launcher
    sees a device of its own (`--gpus-per-task`), LOCAL_RANK must be 0 in all of them.
    """
    workers = placement.workers
    if workers[0].device.kind != "cuda":
        return {}, "CUDA_VISIBLE_DEVICES stays as it is: the ranks compute on no GPU"
    if all(worker.device.index == worker.local_rank for worker in workers):
        return {}, "CUDA_VISIBLE_DEVICES stays as it is: the device of a rank is that of its LOCAL_RANK"
    if len(workers) == placement.local_world_size:
        chosen = ",".join(worker.device.name or str(worker.device.index) for worker in workers)
        return {"CUDA_VISIBLE_DEVICES": chosen}, f"CUDA_VISIBLE_DEVICES={chosen}: cuda:LOCAL_RANK is a rank's device"
    index = str(workers[0].device.index)
    return {"LOCAL_RANK": index}, f"LOCAL_RANK={index} in each process: it sees its own device alone"


LAUNCH_SETTINGS = ("accelerator", "devices", "nodes", "node_rank", "master_addr", "master_port", "distributed", "slurm")
"""The settings that a script has: where it runs, not what it does."""


def run_here(words: Sequence[str], module: str | None, *, dry_run: bool) -> int:
    """Run a script on the ranks that this process answers for, and return the exit code of the run.

    `words` are settings of the launch, then "--", the script and its own words; those of a `module` follow alone.
    `dry_run` shows where the ranks would be.

    RequestError: no such script, a setting that is none of the launch, or as for `noether train`.
    """
    from noether.common.console import Console
    from noether.config.compose import load_config
    from noether.config.distributed import with_environment
    from noether.launch.plan import render_placement, run_info
    from noether.launch.processes.run import run_placement
    from noether.launch.start import other_hosts_told

    with other_hosts_told() as start:
        overrides, script = read_words(words, module)
        config = start.config = load_config(overrides, None)
        placement = start.placement = place_script(config)
        if dry_run:
            Console(None, speaks=True).say(*render_placement(placement, placement.reasons), sep="\n")
            return ExitCode.DONE
        if len(placement.workers) > 1:
            warm_up()
        limits = with_environment(config.distributed, os.environ)
        info = run_info(config, placement, os.environ, (script.name, *script.words))
        info = replace(info, distributed=limits, logs_stay=False, own_logs=False)
        start.hold_ports(placement, info)
        with tempfile.TemporaryDirectory(prefix="noether-run-") as scratch:
            payload = script, mask_of(placement)[0]
            code = run_placement(placement, RUN, payload, Path(scratch), info, start.ports)
        start.has_ranks = True
    return code


def read_words(words: Sequence[str], module: str | None) -> tuple[list[str], OwnScript]:
    """Return the settings of the launch, and the script. RequestError: as for `run_here`."""
    place = [*words, "--"].index("--")
    overrides, (name, *own) = list(words[:place]), [*([module] if module else []), *words[place + 1 :]] or [""]
    script = OwnScript(name, tuple(own), module is not None)
    script.check()
    for word in overrides:
        if re.split(r"[.=]", word.lstrip("+~"))[0] not in LAUNCH_SETTINGS:
            raise RequestError("not-of-a-launch", f"{word} is no setting of a launch", seen=word,
                               expected=", ".join(LAUNCH_SETTINGS),
                               fix=f"noether run {shlex.join([name, word])}      (the script's own)")  # fmt: skip
    return overrides, script


_here: WorkerContext | None = None


def here() -> WorkerContext | None:
    """Return what this rank was given where `noether run` has started it, else None."""
    return _here


def run_rank(context: WorkerContext, payload: tuple[OwnScript, dict[str, str]]) -> int:
    """Run a script as one rank, and return its exit code."""
    global _here
    script, variables = payload
    _here = context
    os.environ.update(variables)
    store = _meet(context) if context.world_size > 1 else None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = _run(script)
    if store is not None:
        _leave_together(context, store)
    return code


def _meet(context: WorkerContext) -> Any:
    """Meet the other ranks; return the store, which `init_process_group` finds at MASTER_ADDR and MASTER_PORT."""
    from noether.launch.process_group.group import meet

    point, store = meet(context)
    os.environ.update({"MASTER_ADDR": point.address, "MASTER_PORT": str(point.port), AGENT_STORE: "True",
                       "TORCHELASTIC_RESTART_COUNT": str(context.restarts)})  # fmt: skip
    return store


def _leave_together(context: WorkerContext, store: Any) -> None:
    """Keep the store until every rank has ended: rank 0 may be the first."""
    import torch.distributed as dist

    ended = dist.PrefixStore("noether/ended", store)
    if ended.add("count", 1) == context.world_size:
        ended.set("all", "")
    while context.worker.rank == 0:
        with suppress(dist.DistStoreError):
            ended.wait(["all"], timedelta(seconds=5))
            return


def _run(script: OwnScript) -> int:
    sys.argv = [script.name, *script.words]
    try:
        if script.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(script.name, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(script.name).resolve().parent))
            runpy.run_path(script.name, run_name="__main__")
    except SystemExit as left:
        if left.code not in (None, 0, ExitCode.CHECKPOINTED):
            raise SystemExit(left.code) from None
        code = int(left.code or 0)
    else:
        code = int(ExitCode.DONE)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return code
