"""Limits which environment variables a configuration may read with `${oc.env:NAME}`.

Otherwise a settings file from somebody else could copy any secret in the environment into the run's names and files.
OmegaConf's own resolver is replaced by one that accepts only the variables listed here.
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
    """Makes `${oc.env:NAME}` read only the listed variables, and refuse others with a clear error."""
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
