"""A launcher script without `if __name__ == "__main__"`: a worker that ran the script again would start workers, too.

Arguments: the target, the payload folder, the number of workers, and optionally the module to preload.
"""

import sys
from pathlib import Path

from noether.launch.detect.placement import LaunchRequest
from noether.launch.detect.resolve import resolve_placement
from noether.launch.processes import spawner
from noether.launch.processes.run import run_placement

target, folder, count, *preload = sys.argv[1:]
with open(Path(folder) / "launchers", "a") as launchers:
    launchers.write("one\n")
if preload:
    spawner.PRELOAD = preload[0]
placement = resolve_placement(LaunchRequest("cpu", count), {}, "testbox")
code = run_placement(placement, f"launch_targets.{target}", Path(folder), Path(folder) / "logs")
print("torch" if "torch" in sys.modules else "light")
sys.exit(code)
