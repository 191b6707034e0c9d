"""Print the results of plan, of the start of train and of the doctor in several states of the NVIDIA driver.

test_nvidia_driver.py starts this program with the stub of NVML in place of the library. Each argument is a JSON pair: a
state of the stub, and CUDA_VISIBLE_DEVICES or null. For each argument, a forked process prints a line of JSON.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from noether.cli.model_commands import train
from noether.common.errors import RequestError
from noether.config.compose import load_config
from noether.doctor.gpu_checks import check_gpu_health
from noether.doctor.host_checks import check_driver
from noether.doctor.host_facts import gather_facts
from noether.launch.plan import plan_run
from noether.training import begin

LIMIT_S = 2.0
LIMIT = f"distributed.driver_timeout_s={LIMIT_S}"


def answer(ask: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"devices": ask()}
    except RequestError as error:
        return {"code": error.code, "seen": error.seen, "fix": error.fix}


def planned() -> list[str]:
    return [worker.device.name for worker in plan_run(load_config([LIMIT])).placement.workers]


def started() -> list[str]:
    """Run `train` until it would start its ranks; return the names of the ranks' devices."""
    names: list[str] = []

    def stop(config: Any, *_: Any, **__: Any) -> int:
        names.extend(worker.device.name for worker in plan_run(config).placement.workers)
        return 0

    begin.train_here = stop  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        train(f"output_path={folder}", LIMIT)
    return names


def examined() -> list[list[str]]:
    facts = gather_facts([("output", str(Path.cwd()), "output_path")], LIMIT_S)
    doctor = [check_driver(facts, {"cuda": "13.0"}), *check_gpu_health(facts)]
    return [[found.level, found.seen, found.fix] for found in doctor]


def answers() -> dict[str, Any]:
    told: dict[str, Any] = {"seconds": {}}
    for command, ask in (("plan", lambda: answer(planned)), ("train", lambda: answer(started)), ("doctor", examined)):
        before = time.monotonic()
        told[command] = ask()
        told["seconds"][command] = time.monotonic() - before
    return told


for state, mask in map(json.loads, sys.argv[1:]):
    if pid := os.fork():
        os.waitpid(pid, 0)
        continue
    os.environ |= {"NVML_STUB": state} if mask is None else {"NVML_STUB": state, "CUDA_VISIBLE_DEVICES": mask}
    print(json.dumps(answers()), flush=True)
    os._exit(0)
