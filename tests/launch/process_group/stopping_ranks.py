"""Ranks that only pass boundaries, until they agree to stop: what tests of the agreement start."""

import json
import os
import signal
import time
from pathlib import Path

from noether.launch.process_group.group import joined_group
from noether.launch.process_group.stop import AgreedStop, StopAgreed
from noether.launch.processes.context import WorkerContext


def pass_boundaries(context: WorkerContext, payload: tuple[str, dict[str, float | int]]) -> int:
    """Every rank notes the boundary at which it stopped, and why; rank 1 signals itself at boundary `signalled_at`.

    seconds: an update's; slower_rank_s: what rank 1 adds to each. checked: inside an evaluation.
    apart: nothing keeps the ranks in step.
    """
    folder, plan = payload
    rank, boundary, reason = context.worker.rank, 0, 0
    stop = AgreedStop()
    with stop.listening(), joined_group(context) as group:
        stop.join(group)
        while not reason and boundary < 1000:
            boundary += 1
            time.sleep(plan["seconds"] + rank * plan.get("slower_rank_s", 0))
            if not plan.get("apart"):
                group.barrier()  # Gradients keep ranks in step.
            if rank == 1 and boundary == plan["signalled_at"]:
                os.kill(os.getpid(), signal.SIGUSR1)
            try:
                if plan.get("checked"):
                    stop.check()
                else:
                    reason = stop.agreed()
            except StopAgreed as agreed:
                reason = agreed.reason
        stop.finish()
    (Path(folder) / f"rank-{rank}.json").write_text(json.dumps({"boundary": boundary, "reason": reason}))
    return 0
