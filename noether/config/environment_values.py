"""Which variables of the environment a configuration may read with `${oc.env:NAME}`.

A file of settings from somebody else would otherwise write any secret of this environment into the names and files of a
run. The resolver is OmegaConf's own; it is replaced by one that knows a list.
"""

import os
from typing import Any

from omegaconf import OmegaConf

from noether.errors import RequestError

ALLOWED = (
    "USER", "LOGNAME", "HOME", "HOSTNAME", "PWD", "TMPDIR", "SCRATCH", "WORK", "DATA", "PROJECT",
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PBS_JOBID", "PBS_JOBNAME", "LSB_JOBID", "LSB_JOBNAME",
)  # fmt: skip
ALLOWED_PREFIXES = ("SLURM_", "NOETHER_")
NEVER = ("NOETHER_RUN_KEY", "SLURM_JWT")

_MISSING = "_the variable has no default_"


def allow_listed_variables() -> None:
    """Makes `${oc.env:NAME}` read the variables of the list, and refuse others in words."""
    OmegaConf.register_new_resolver("oc.env", _read, replace=True)


def _read(name: str, default: Any = _MISSING) -> Any:
    allowed = (name in ALLOWED or name.startswith(ALLOWED_PREFIXES)) and name not in NEVER
    if not allowed:
        raise RequestError(
            f"a configuration may not read the variable {name}",
            seen=f"${{oc.env:{name}}}",
            expected=f"one of {', '.join(ALLOWED)}, or {', '.join(f'{prefix}…' for prefix in ALLOWED_PREFIXES)}",
            fix=f'the setting on the command line: name="${name}"',
        )
    if name in os.environ:
        return os.environ[name]
    if default == _MISSING:
        raise RequestError(
            f"the variable {name} is not set",
            seen=f"${{oc.env:{name}}}",
            expected="a variable that is set, or a default",
            fix=f"${{oc.env:{name},DEFAULT}}",
        )
    return default
