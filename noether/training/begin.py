"""The first moments of a run, in which the fork server starts before this process imports what else it needs."""

from noether.common.errors import RequestError
from noether.config.schema import RunConfig
from noether.launch.plan import plan_run
from noether.launch.processes.spawner import warm_up
from noether.launch.start import Start


def check_flags(config: RunConfig, reset: bool, tensorboard: bool) -> None:
    """Refuses to start a run over that has no name or is to be resumed, and to serve events that nobody writes."""
    if tensorboard and not config.tracker.tensorboard:
        raise RequestError("tb-needs-event-files", "--tb needs event files", seen="--tb and tracker.tensorboard=false",
                           expected="a run that writes them, which is the default",
                           fix="--tb tracker.tensorboard=true")  # fmt: skip
    if reset and config.resume is not None:
        raise RequestError("resume-and-reset", "a run is either resumed or started over",
                           seen=f"--reset and resume={config.resume}", expected="one of the two",
                           fix="--reset resume=null      (or leave out --reset)")  # fmt: skip
    if reset and config.run_id is None:
        raise RequestError("reset-unnamed", "--reset needs to know which run", seen="run_id is not set",
                           expected="the name of the run that is started over", fix="--reset run_id=NAME")  # fmt: skip


def check_switches(*, multirun: bool, dry_run: bool, reset: bool, tb: bool, json: bool) -> None:
    """Refuse switches of `noether train` that do not go together."""
    if json and (multirun or not dry_run):
        raise RequestError("json-needs-dry-run", "--json needs --dry-run", seen="train --json",
                           expected="the metrics of a run are in its result.json, those of a sweep in NAME.sweep.json",
                           fix="noether train --dry-run --json")  # fmt: skip
    if multirun and (reset or tb):
        raise RequestError("not-with-a-sweep", "--reset and --tb do not work with a sweep",
                           seen="train -m" + " --reset" * reset + " --tb" * tb,
                           expected="a sweep without them; noether tensorboard serves several runs",
                           fix="noether train -m …      (without them, and with another run_id)")  # fmt: skip


def train_here(config: RunConfig, start: Start, *, reset: bool = False, tensorboard: bool = False) -> int:
    """Trains on the workers that this process answers for, and returns the exit code of the run.

    `start` learns how far it has come. `reset` starts the run of this name over and keeps its folder aside;
    `tensorboard` serves its events beside it, on this machine's loopback.
    """
    plan = plan_run(config)
    start.placement = plan.placement
    if len(plan.placement.workers) > 1:
        warm_up()  # It imports torch while this process imports, shows the plan and looks after the data.
    from noether.training.start import start_run

    return start_run(config, plan, start, reset=reset, tensorboard=tensorboard)
