"""A launcher process for the tests, without `if __name__ == "__main__"`: run again by a worker, it would launch itself.

Arguments: the target, the payload folder, the number of workers, and optionally the module to preload.
"""

import sys
from pathlib import Path

from noether.common.cpus import UsableCpus
from noether.launch.detect.devices import DeviceInventory
from noether.launch.detect.launch_context import LaunchContext
from noether.launch.detect.local import local_placement
from noether.launch.detect.placement import Device, LaunchRequest
from noether.launch.processes import spawner
from noether.launch.processes.run import run_placement

target, folder, count, *preload = sys.argv[1:]
with open(Path(folder) / "launchers", "a") as launchers:
    launchers.write("one\n")
if preload:
    spawner.PRELOAD = preload[0]
inventory = DeviceInventory("cpu", (Device("cpu"),), "8 cores for the test", UsableCpus(tuple(range(8)), 8))
placement = local_placement(LaunchRequest(devices=count), LaunchContext({}, inventory, "testbox"))
code = run_placement(placement, f"launch_targets.{target}", Path(folder), Path(folder) / "logs")
print("torch" if "torch" in sys.modules else "light")
sys.exit(code)
