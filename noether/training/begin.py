"""Begin a run: start the fork server before this process imports everything else that it needs."""

from noether.common.errors import RequestError
from noether.config.schema import RunConfig
from noether.launch.plan import plan_run
from noether.launch.processes.spawner import warm_up
from noether.launch.start import Start


def check_flags(config: RunConfig, reset: bool, tensorboard: bool) -> None:
    """Refuse --reset if the run has no name or `resume` is set; refuse --tb if the run writes no event files."""
    if tensorboard and not config.tracker.tensorboard:
        raise RequestError("tb-needs-event-files", "--tb needs event files", seen="--tb and tracker.tensorboard=false",
                           expected="a run that writes event files, which is the default",
                           fix="--tb tracker.tensorboard=true")  # fmt: skip
    if reset and config.resume is not None:
        raise RequestError("resume-and-reset", "a run is either resumed or started over",
                           seen=f"--reset and resume={config.resume}", expected="either --reset or resume",
                           fix="--reset resume=null      (or leave out --reset)")  # fmt: skip
    if reset and config.run_id is None:
        raise RequestError("reset-unnamed", "--reset needs the name of a run", seen="run_id is not set",
                           expected="the name of the run to start over", fix="--reset run_id=NAME")  # fmt: skip


def check_switches(*, multirun: bool, dry_run: bool, reset: bool, tb: bool, json: bool) -> None:
    """Refuse switches of `noether train` that cannot be combined."""
    if json and (multirun or not dry_run):
        raise RequestError("json-needs-dry-run", "--json needs --dry-run", seen="train --json",
                           expected="--dry-run; else read the metrics in a run's result.json or NAME.sweep.json",
                           fix="noether train --dry-run --json")  # fmt: skip
    if multirun and (reset or tb):
        raise RequestError("not-with-a-sweep", "--reset and --tb do not work with a sweep",
                           seen="train -m" + " --reset" * reset + " --tb" * tb,
                           expected="a sweep without them; noether tensorboard serves several runs",
                           fix="noether train -m …      (without them, and with another run_id)")  # fmt: skip


def train_here(config: RunConfig, start: Start, *, reset: bool = False, tensorboard: bool = False) -> int:
    """Train on the workers for which this process is responsible; return the exit code of the run.

    start: the record of how far the launch has come. reset: start the run of this name over, and keep its old folder
    under a new name. tensorboard: serve the run's events to this machine only (the loopback interface) during training.
    """
    plan = plan_run(config)
    start.placement = plan.placement
    if len(plan.placement.workers) > 1:
        warm_up()  # The fork server imports torch while this process shows the plan and prepares the data.
    from noether.training.start import start_run

    return start_run(config, plan, start, reset=reset, tensorboard=tensorboard)
