"""The first moments of a run, in which the fork server starts before this process imports what else it needs."""

from noether.config.schema import RunConfig
from noether.planning.plan import plan_run
from noether.workers.spawner import warm_up


def train_here(config: RunConfig, *, reset: bool = False, tensorboard: bool = False) -> int:
    """Trains on the workers that this process answers for, and returns the exit code of the run.

    `reset` starts the run of this name over and keeps its folder aside; `tensorboard` serves its events beside it, on
    this machine's loopback.
    """
    plan = plan_run(config)
    if len(plan.placement.workers) > 1:
        warm_up()  # It imports torch while this process imports, shows the plan and looks after the data.
    from noether.training.start import start_run

    return start_run(config, plan, reset=reset, tensorboard=tensorboard)
