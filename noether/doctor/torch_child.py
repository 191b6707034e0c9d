"""A child of the doctor's that has torch: it answers each line of JSON on standard input with one on standard output.

The doctor starts one for each rank and kills it if an answer takes too long. `TorchSteps` is what it can be asked.
"""

import json
import os
from functools import cache
from typing import Any

from noether.launch.processes.backend_errors import consequence_of
from noether.launch.processes.death_signal import die_with_parent


@cache
def _steps() -> Any:
    from noether.doctor.torch_steps import TorchSteps

    return TorchSteps()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs the requested step and returns its answer; any exception, of the import too, becomes an "error"."""
    try:
        found: dict[str, Any] = getattr(_steps(), f"on_{request['do']}")(request)
        return found
    except BaseException as error:  # A broken library may raise anything, SystemExit included.
        words = str(error).strip().splitlines()
        seen = f"{type(error).__name__}: {words[0][:300] if words else ''}"
        return {"error": seen, "follows": consequence_of(error)[0]}


if __name__ == "__main__":
    die_with_parent()
    # Libraries write to descriptor 1 (NCCL_DEBUG=INFO does), so the answers use a descriptor of their own. What a
    # library starts inherits neither: the doctor sees the end of this process when both are closed.
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for line in requests:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
    os._exit(0)
