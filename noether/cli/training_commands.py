"""The commands of training: init, train and plan."""

import json as json_module

from noether.errors import ExitCode, RequestError


def init(name: str, *, dry_run: bool = False) -> int:
    """Write a project of your own: data set, model, task, settings, a test, a job script and a Dockerfile.

    The project trains and passes its test without changes; then replace the example with your own problem.

    Args:
        name: the folder to make; its last part names the project
        dry_run: list the files and write nothing
    """
    from noether.project.create import create_here

    return create_here(name, dry_run=dry_run)


def train(
    *overrides: str,
    hp: str | None = None,
    multirun: bool = False,
    dry_run: bool = False,
    reset: bool = False,
    tb: bool = False,
    json: bool = False,
) -> int:
    """Train on the devices of this machine or job, and write a report.

    With no argument: UPT on the built-in flow data, on every visible device of this machine.

    Args:
        overrides: settings and groups, as Hydra writes them: trainer.max_epochs=3 model=upt ~key
        hp: a YAML file with settings, from anywhere (also as the first word: noether train my.yaml)
        multirun: (or -m) train a run for each value of seed=1,2,3 in turn, then print mean and standard deviation
        dry_run: build everything, run one update and one evaluation batch, and keep nothing
        reset: start the run named by run_id over; its old folder is kept as RUN.replaced-1
        tb: serve TensorBoard during the run, on this machine's loopback address, and print the address
        json: with --dry-run: print the result as one JSON object
    """
    if json and (multirun or not dry_run):
        raise RequestError(
            "json-needs-dry-run",
            "--json needs --dry-run",
            seen="train --json",
            expected="the metrics of a run are in its result.json, those of a sweep in NAME.sweep.json",
            fix="noether train --dry-run --json",
        )
    if multirun:
        from noether.sweep import sweep_here

        if reset or tb:
            raise RequestError(
                "not-with-a-sweep",
                "--reset and --tb do not work with a sweep",
                seen="train -m" + " --reset" * reset + " --tb" * tb,
                expected="a sweep without them; noether tensorboard serves several runs",
                fix="noether train -m …      (without them, and with another run_id)",
            )
        return sweep_here(overrides, hp, dry_run=dry_run)
    from noether.checkpoints.own_settings import load_run_config
    from noether.training.begin import check_flags, train_here
    from noether.training.refusing import other_hosts_told

    with other_hosts_told() as start:
        config = start.config = load_run_config(overrides, hp)
        check_flags(config, reset, tb and not dry_run)
        if dry_run:
            from noether.training.start import dry_run_here

            return dry_run_here(config, start, as_json=json, reset=reset)
        return train_here(config, start, reset=reset, tensorboard=tb)


def settings(*overrides: str, hp: str | None = None, json: bool = False) -> int:
    """Show every setting of a run before it starts, and where each comes from.

    The command line, a file of settings, a file of a group such as model=upt, or the default.

    Args:
        overrides: settings and groups, as for train
    """
    import shlex

    from noether.checkpoints.own_settings import on_own_settings
    from noether.config.explain import as_override
    from noether.config.origins import settings_with_origins

    found = settings_with_origins(*on_own_settings(overrides, hp))
    if json:
        print(json_module.dumps({one.name: {"value": one.value, "origin": one.origin} for one in found}, indent=2))
        return ExitCode.DONE
    lines = [(shlex.quote(f"{one.name}={as_override(one.value)}"), one.origin) for one in found]
    widest = min(60, max(len(line) for line, _ in lines))
    for line, origin in lines:
        print(f"{line:<{widest}}   {origin}")
    return ExitCode.DONE


def plan(
    *overrides: str,
    hp: str | None = None,
    multirun: bool = False,
    visible_devices: str | None = None,
    json: bool = False,
) -> int:
    """Show what train would do here, and why. Nothing is started.

    One row per rank: where it runs, on which device, with which share of a batch.

    Args:
        overrides: settings and groups, as for train
        multirun: (or -m) plan a run for each value of seed=1,2,3
        visible_devices: plan for a machine with these devices instead: 0,1,2,3
    """
    from noether.checkpoints.own_settings import load_run_config
    from noether.planning.plan import plan_run, render_plan

    runs = {"": overrides}
    if multirun:
        from noether.sweep import plan_sweep

        runs = {
            f"{run.folder.path}   {' '.join(run.differs)}": run.words for run in plan_sweep(overrides, hp, "plan")[1]
        }
    plans = []
    for words in runs.values():
        config = load_run_config(words, hp)
        plans.append(plan_run(config, visible_devices=visible_devices))
        if visible_devices is None:
            from noether.training.preflight import check_as_train_does

            check_as_train_does(config, plans[-1])
    if json:
        found = [plan.as_dict() for plan in plans]
        print(json_module.dumps(found if multirun else found[0], indent=2))
        return ExitCode.DONE
    from noether.common.console import Console

    console = Console(None, speaks=True)
    for name, plan in zip(runs, plans, strict=True):
        console.say(*([f"run    {name}"] if multirun else []), *render_plan(plan, every_reason=not multirun), sep="\n")
    return ExitCode.DONE
