"""Run any training script; place, start, watch and end its ranks as `noether train` does with its own.

Any script that runs under torchrun works. Each rank has the variables that torchrun sets, and behaves like a separate
program. When the script calls `torch.distributed.init_process_group()`, the store that it needs is already served.
"""

import atexit
import builtins
import multiprocessing.forkserver
import multiprocessing.process
import os
import pkgutil
import re
import runpy
import shlex
import signal
import socket
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from noether.common.errors import ExitCode, RequestError
from noether.common.processes import JOB_STOP_SIGNAL
from noether.common.suggest import nearest
from noether.config.groups import LAUNCH_SETTINGS
from noether.launch.detect.placement import Placement
from noether.launch.processes.context import RunInfo, WorkerContext
from noether.launch.processes.spawner import warm_up
from noether.launch.processes.worker import flush_output, run_exit_handlers

if TYPE_CHECKING:  # A rank imports this module, but needs none of the code that places it.
    from noether.config.schema import RunConfig

NOWHERE = Path(os.devnull)
"""The log folder of a script's run. It cannot hold files: the ranks write to the console only."""


@dataclass(frozen=True)
class OwnScript:
    """A user's script and its arguments, `words`. With `is_module=True`, `name` is a module, as for `python -m`."""

    name: str
    words: tuple[str, ...] = ()
    is_module: bool = False

    def check(self) -> None:
        """Raise RequestError if the script does not exist on this machine or is not written in Python."""
        path, near, seen = Path(self.name), "train.py", f"{self.name or 'no script'} in {Path.cwd()}"
        if self.is_module:
            package = self.name.partition(".")[0]
            if PathFinder.find_spec(package, [os.getcwd()]) or find_spec(package):
                return
        elif (path / "__main__.py").is_file():
            return
        elif path.is_file():
            with path.open("rb") as file:
                first = file.read(4096)
            is_text = b"\0" not in first and not re.match(rb"#!(?!.*python)", first)
            if (is_text or zipfile.is_zipfile(path)) and path.suffix not in (".sh", ".ipynb"):
                return
            seen += ", which is not Python"
        elif path.name in ("python", "python3", "torchrun"):
            near = next((word for word in self.words if word.endswith(".py")), near)
        elif found := nearest(path.name, [one.name for one in path.parent.glob("*.py")]):
            near = str(path.with_name(found))
        raise RequestError("no-python-script", f"there is no Python script {self.name}".rstrip(), seen=seen,
                           expected="noether run SCRIPT.py …, or noether run -m MODULE …",
                           fix=f"noether run {shlex.quote(near)} …")  # fmt: skip

    def run(self) -> None:
        """Run the script as `python` would: as the module `__main__`, which other modules can import by that name."""
        main = sys.modules["__main__"] = ModuleType("__main__")
        sys.argv, path = [self.name, *self.words], os.path.realpath("." if self.is_module else self.name)
        is_file = pkgutil.get_importer(path) is None  # Otherwise the path is a folder or a zip.
        # The script's folder replaces the folder of noether's own program.
        sys.path[: not sys.flags.safe_path] = [os.path.dirname(path) if is_file else path]
        if is_file:
            main.__dict__.update(__file__=os.path.abspath(self.name), __builtins__=builtins)
            exec(compile(Path(path).read_bytes(), str(main.__file__), "exec", dont_inherit=True), main.__dict__)
        else:
            run_main: Any = vars(runpy)["_run_module_as_main"]  # The interpreter itself calls it.
            run_main(self.name if self.is_module else "__main__", alter_argv=self.is_module)


def place_script(config: "RunConfig") -> Placement:
    """Return the placement of a script's ranks. RequestError: the placement is refused, as for `noether train`."""
    from noether.launch.plan import HOST_CHECKS, place

    placement = place(config, os.environ)
    for name in ("processes", "timeout", "interface", "start method"):
        HOST_CHECKS[name](config, placement)
    return replace(placement, reasons={**placement.reasons, "device of a rank": mask_of(placement)[1]})


def mask_of(placement: Placement) -> tuple[str | None, str]:
    """Return the value of CUDA_VISIBLE_DEVICES for all ranks here, or None to leave it unchanged; and the reason.

    A script uses `cuda:LOCAL_RANK`. If each rank's device index equals its local rank, this is already the rank's own
    device. Otherwise the mask lists the devices of this process's ranks, and LOCAL_RANK is the index in that list.
    """
    workers = placement.workers
    if workers[0].device.kind != "cuda":
        return None, "CUDA_VISIBLE_DEVICES stays as it is: the ranks compute on no GPU"
    if all(worker.device.index == worker.local_rank for worker in workers):
        return None, "CUDA_VISIBLE_DEVICES stays as it is: the device of a rank is that of its LOCAL_RANK"
    mask = ",".join(worker.device.name or str(worker.device.index) for worker in workers)
    here = "" if len(workers) == placement.local_world_size else ", which counts the ranks of one process"
    return mask, f"CUDA_VISIBLE_DEVICES={mask}: the device of a rank is that of its LOCAL_RANK{here}"


def rank_variables(placement: Placement, info: RunInfo) -> dict[int, dict[str, str]]:
    """Return, for each rank of this process, the variables that it gets in addition to those of every worker.

    torchrun sets the same variables. Without TORCHELASTIC_RUN_ID, Lightning and others would start more ranks.
    """
    mask, nodes = mask_of(placement)[0], len(placement.nodes)
    masked = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    restarts, world = str(placement.restarts), str(placement.world_size)
    variables = {
        "GROUP_RANK": str(placement.node_rank), "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_NAME": "default", "ROLE_WORLD_SIZE": world, "TORCHELASTIC_RUN_ID": info.identity.digest,
        "TORCHELASTIC_RESTART_COUNT": restarts, "TORCHELASTIC_MAX_RESTARTS": restarts,
    }  # fmt: skip
    return {
        worker.rank: variables | masked | {
            "ROLE_RANK": str(worker.rank), "LOCAL_RANK": str(worker.local_rank if mask is None else place)
        } for place, worker in enumerate(placement.workers)
    }  # fmt: skip


def run_here(words: Sequence[str], module: str | None, *, dry_run: bool) -> int:
    """Run a script on the ranks of this process, and return the exit code of the run.

    `words` are launch settings, then "--", the script and its arguments. If `module` is given, only the module's
    arguments follow "--". With `dry_run=True`, print the placement of the ranks and start nothing.

    RequestError: there is no such script, a setting does not concern the launch, or `noether train` would refuse too.
    """
    from noether.common.console import Console
    from noether.config.compose import load_config
    from noether.config.distributed import with_environment
    from noether.launch.plan import render_placement, run_info
    from noether.launch.processes.run import run_placement
    from noether.launch.start import refusals_broadcast

    with refusals_broadcast() as start:
        overrides, script = read_words(words, module)
        config = start.config = load_config(overrides, None)
        placement = start.placement = place_script(config)
        if dry_run:
            Console(None, speaks=True).say(*render_placement(placement), sep="\n")
            return ExitCode.DONE
        for warning in placement.warnings if placement.workers[0].rank == 0 else ():
            print(f"noether: warning: {warning.replace('noether train', 'noether run')}", file=sys.stderr)
        if len(placement.workers) > 1:
            warm_up()
        limits = with_environment(config.distributed, os.environ)
        info = run_info(config, placement, os.environ, (script.name, *script.words))
        info = replace(info, distributed=limits, logs_stay=False, is_script=True)
        start.hold_ports(placement, info)
        payload = script, rank_variables(placement, info)
        code = run_placement(placement, "noether.launch.script.run_rank", payload, NOWHERE, info, start.ports)
        start.has_ranks = True
    if placement.world_size == 1:
        run_exit_handlers()
    return code


def read_words(words: Sequence[str], module: str | None) -> tuple[list[str], OwnScript]:
    """Split `words` (see `run_here`) into the launch settings and the script. RequestError: one of them is invalid."""
    place = [*words, "--"].index("--")
    overrides, (name, *own) = list(words[:place]), [*([module] if module else []), *words[place + 1 :]] or [""]
    script = OwnScript(name, tuple(own), module is not None)
    script.check()
    refuse_others(overrides, name)
    return overrides, script


def refuse_others(overrides: Sequence[str], name: str) -> None:
    """Raise RequestError if a setting before the script's name does not concern the launch."""
    for word in overrides:
        if re.split(r"[.=]", word.lstrip("+~"))[0] not in LAUNCH_SETTINGS:
            raise RequestError("not-of-a-launch", f"{word} is not a launch setting", seen=word,
                               expected=", ".join(LAUNCH_SETTINGS),
                               fix=f"noether run {shlex.join([name, word])}      (if the script reads it)")  # fmt: skip


_here: WorkerContext | None = None


def here() -> WorkerContext | None:
    """Return the context of this process if `noether run` started it as a rank, else None."""
    return _here


def run_rank(context: WorkerContext, payload: tuple[OwnScript, dict[int, dict[str, str]]]) -> int:
    """Run a script as one rank; return its exit code, 0 or 75. SystemExit: the script exited with any other code."""
    global _here
    script, variables = payload
    _here = context
    os.environ.update(variables[context.worker.rank])
    if context.world_size > 1:
        _forget_parent()
        _meet(context)
    elif os.environ["MASTER_PORT"] == "0":
        with socket.create_server(("", 0)) as free:
            os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # A shell script's `&` starts a process that ignores SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Every process of a job gets this signal before the time limit. A script can handle the signal to save its state.
    signal.signal(signal.Signals[f"SIG{JOB_STOP_SIGNAL}"], signal.SIG_IGN)
    try:
        script.run()
    except SystemExit as left:
        code = 0 if left.code is None else left.code & 0xFF if isinstance(left.code, int) else left.code
        if code not in (ExitCode.DONE, ExitCode.CHECKPOINTED):
            raise SystemExit(code) from None  # `from None` leaves out the chained traceback.
        return int(code)
    return ExitCode.DONE


def _forget_parent() -> None:
    """Make this forked process behave like a new program, with new random seeds and a free choice of start method."""
    for name in {"torch.random", "numpy.random"} & {*sys.modules}:
        sys.modules[name].seed()
    multiprocessing.set_start_method(None, force=True)
    multiprocessing.current_process().name, vars(multiprocessing.process)["_parent_process"] = "MainProcess", None
    server: Any = multiprocessing.forkserver
    server._forkserver = own = server.ForkServer()
    for name in ("ensure_running", "get_inherited_fds", "connect_to_new_process", "set_forkserver_preload"):
        setattr(server, name, getattr(own, name))


def _meet(context: WorkerContext) -> None:
    """Meet the other ranks, and set MASTER_ADDR and MASTER_PORT so that `init_process_group` finds their store."""
    from noether.launch.process_group.group import meet
    from noether.launch.process_group.torch_internals import keep_destroyed_groups, keep_groups_apart

    keep_groups_apart()
    keep_destroyed_groups()
    point, store = meet(context)
    # If rank 0 ended immediately, its store would end before the other ranks could connect to it.
    store.set(f"noether/here/{context.worker.rank}", "")
    if context.worker.rank == 0:
        others = [f"noether/here/{rank}" for rank in range(1, context.world_size)]
        store.wait(others, timedelta(seconds=context.run_info.distributed.init_timeout_s))
    os.environ |= {"MASTER_ADDR": point.address, "MASTER_PORT": str(point.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    if context.worker.rank == 0:
        atexit.register(_outlive_others, context, store)  # The script's own exit handlers run before this one.


def _outlive_others(context: WorkerContext, store: Any) -> None:
    """Keep the store, which rank 0 serves, until every other rank has ended."""
    flush_output()
    context.parent.wait_for_others()
