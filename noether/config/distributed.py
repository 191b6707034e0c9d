"""Settings of the time limits for which the ranks of a run wait for each other."""

import math
from collections.abc import Mapping

from pydantic import Field

from noether.common.errors import RequestError
from noether.common.sanitize import shortened
from noether.config.section import Section

TIMEOUT_VARIABLE = "DISTRIBUTED_TIMEOUT_S"


class DistributedConfig(Section):
    """The time limits after which a run reports missing ranks, hosts or devices."""

    init_timeout_s: float = Field(
        600.0, gt=0, description="Seconds for all ranks to join, and for each collective until the first update ends."
    )
    timeout_s: float = Field(
        300.0,
        gt=0,
        description="Seconds a collective may take after the first update; DISTRIBUTED_TIMEOUT_S overrides it.",
    )
    heartbeat_timeout_s: float = Field(
        60.0, gt=0, description="Seconds of silence after which the parent process on another host is considered lost."
    )
    driver_timeout_s: float = Field(
        60.0, gt=0, description="Seconds in which the NVIDIA driver of a host must list its GPUs before the run starts."
    )
    cpu_collectives: bool = Field(
        False, description="On GPUs, also connect the ranks by gloo, for your own code that reduces CPU tensors."
    )


def with_environment(config: DistributedConfig, environ: Mapping[str, str]) -> DistributedConfig:
    """Return the settings, with `timeout_s` from the variable DISTRIBUTED_TIMEOUT_S if it is set.

    RequestError: the variable is not a number of seconds above 0.
    """
    text = shortened(environ.get(TIMEOUT_VARIABLE, ""))
    if not text:
        return config
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        raise RequestError(
            "timeout-variable", f"{TIMEOUT_VARIABLE}={text} is not a number of seconds",
            seen=f"{TIMEOUT_VARIABLE}={text}", expected="seconds, such as 300",
            fix=f"{TIMEOUT_VARIABLE}={config.timeout_s:g}      (or unset {TIMEOUT_VARIABLE})",
        )  # fmt: skip
    return config.model_copy(update={"timeout_s": seconds})
