"""The commands that train, that use a trained model, and that handle data sets."""


def init(name: str, *, dry_run: bool = False) -> int:
    """Write a project to start from: data set, model, task, settings, a test, a job script and a Dockerfile.

    The project trains and passes its test without changes. Then replace the example with your own problem.

    Args:
        name: the folder to create; the last part of its path is the project's name
        dry_run: list the files and write nothing
    """
    from noether.project.create import create_here

    return create_here(name, dry_run=dry_run)


def train(
    *overrides: str, hp: str | None = None, multirun: bool = False, dry_run: bool = False,
    reset: bool = False, tb: bool = False, json: bool = False,
) -> int:  # fmt: skip
    """Train on the devices of this machine or job, and write a report.

    Without arguments, it trains UPT on the built-in flow data, on every visible device of this machine.

    Args:
        overrides: settings and groups, as Hydra writes them: trainer.max_epochs=3 model=upt ~key
        multirun: train one run after another, one for each value of seed=1,2,3; print mean and standard deviation
        dry_run: build everything, run one update and one evaluation batch, and keep nothing
        reset: start the run named by run_id over; its old folder is kept as RUN.replaced-1
        tb: show TensorBoard during the run, at a loopback address of this machine, and print the address
        json: with --dry-run: print the result as one JSON object
    """
    from noether.training.begin import check_flags, check_switches, train_here

    check_switches(multirun=multirun, dry_run=dry_run, reset=reset, tb=tb, json=json)
    if multirun:
        from noether.training.sweep import sweep_here

        return sweep_here(overrides, hp, dry_run=dry_run)
    from noether.checkpoints.run_settings import load_run_config
    from noether.launch.start import refusals_broadcast

    with refusals_broadcast() as start:
        config = start.config = load_run_config(overrides, hp)
        check_flags(config, reset, tb and not dry_run)
        if dry_run:
            from noether.training.start import dry_run_here

            return dry_run_here(config, start, as_json=json, reset=reset)
        return train_here(config, start, reset=reset, tensorboard=tb)


def run(
    *overrides: str, module: str | None = None, submit: bool = False, print: bool = False, dry_run: bool = False
) -> int:
    """Run any unchanged training script on the devices of this machine or job: noether run train.py --lr 0.1

    Its ranks are placed, watched and ended like those of train. Each rank gets the variables that torchrun sets.
    noether plan run … means noether run --dry-run …, and noether submit run … means noether run --submit …

    Args:
        overrides: settings of the launch (--devices 0,1), then the script, then the script's own words
        module: run a module instead of a script, as python -m does; the module's own words follow
        submit: submit the script to Slurm with the settings in the slurm section; exit code 75 requeues the job
        print: with --submit: write the job script to standard output
        dry_run: show where the ranks would run, and why; with --submit also the job script; start nothing
    """
    from noether.common.process_defaults import restore_python_path

    restore_python_path()
    if submit:
        from noether.jobs.submit import submit_here

        return submit_here(overrides, script=True, module=module, to_print=print, dry_run=dry_run)
    from noether.launch.script import run_here

    return run_here(overrides, module, dry_run=dry_run)


def settings(*overrides: str, hp: str | None = None, json: bool = False) -> int:
    """Show every setting of a run before it starts, and its origin: the command line, a file, or the default."""
    from noether.checkpoints.run_settings import show_settings

    return show_settings(overrides, hp, as_json=json)


def plan(
    *overrides: str, hp: str | None = None, multirun: bool = False, visible_devices: str | None = None,
    json: bool = False,
) -> int:  # fmt: skip
    """Show what train would do here, and why. Nothing is started.

    Prints one row per rank: its host, its device, and its share of a batch.

    Args:
        multirun: plan a run for each value of a list such as seed=1,2,3
        visible_devices: plan for a machine with other devices than this one: 0,1,2,3
    """
    from noether.training.sweep import plan_here

    return plan_here(overrides, hp, multirun=multirun, visible_devices=visible_devices, as_json=json)


def evaluate(
    run: str, *, split: str = "test", weights: str | None = None, checkpoint: str | None = None,
    vtk: bool = False, json: bool = False, trust: bool = False,
) -> int:  # fmt: skip
    """Evaluate a run again, on any split, with any weights, from any checkpoint.

    Args:
        split: test (also for result.json and the report), validation or train
        vtk: also write the best, the median and the worst cases as files that ParaView opens
    """
    from noether.checkpoints.run_settings import WantedModel
    from noether.training.evaluate_command import evaluate_here

    return evaluate_here(WantedModel(run, checkpoint, weights, trust), split, as_json=json, vtk=vtk)


def predict(
    run: str, *runs: str, mesh: str = "", out: str = "prediction.vtu", volume: str | None = None,
    truth: str | None = None, interval: str | None = None, scale: str | None = None, axes: str = "files",
    chunk: str = "16384", set: str = "", weights: str | None = None, checkpoint: str | None = None, trust: bool = False,
) -> int:  # fmt: skip
    """Predict the fields on a mesh or on points of your own, at any resolution.

    The mesh must use the axes and the unit of length of the training files, unless --axes and --scale state others.
    The fields are written in the axes of the mesh, which keeps its unit. Scaling comes from the checkpoint. For
    several runs, the mean is written, with the runs' spread and an interval calibrated on the validation split.

    Args:
        runs: further runs on the same data; a folder of runs, or a sweep, adds all its runs
        interval: percentage of a new case that the interval should cover, or none (default: 90 for several runs)
        volume: a file of points in the air, .npy (N, 3) or a mesh: predict there too, and write OUT_volume
        truth: true values at the mesh's points, as .npy; they and the prediction's error are then written too
    """
    from noether.checkpoints.run_settings import WantedModel
    from noether.physics.predict.shape_request import predict_here, typed_shape
    from noether.physics.uncertainty.ensemble_members import named_runs

    wanted = [WantedModel(one, checkpoint, weights, trust) for one in named_runs((run, *runs))]
    command = f"noether predict {' '.join(one.run for one in wanted)}"
    shape = typed_shape(mesh, out, scale, axes, chunk, set, command=command)
    return predict_here(wanted, shape, volume=volume, truth=truth, interval=interval)


def sensitivity(
    run: str, *, mesh: str = "", of: str = "", out: str = "sensitivity.vtu",
    scale: str | None = None, axes: str = "files", chunk: str = "16384", set: str = "",
    weights: str | None = None, checkpoint: str | None = None, trust: bool = False,
) -> int:  # fmt: skip
    """Show what changes an output: its gradient at every surface point and with respect to every parameter.

    At each point of the mesh, the file has the gradient per m, and the gain of the output if 1 m² of the surface there
    moves outwards by 1 m. Neighbours, nearest points and the reference area are kept constant.

    Args:
        of: drag_coefficient or another coefficient or output (default: the only one); "mean FIELD", "max FIELD"
    """
    from noether.checkpoints.run_settings import WantedModel
    from noether.physics.predict.shape_request import sensitivity_here, typed_shape

    shape = typed_shape(mesh, out, scale, axes, chunk, set, command=f"noether sensitivity {run}")
    return sensitivity_here(WantedModel(run, checkpoint, weights, trust), shape, of)


def export(
    run: str, out: str, *, weights: str | None = None, checkpoint: str | None = None,
    weights_only: bool = False, overwrite: bool = False, trust: bool = False,
) -> int:  # fmt: skip
    """Export a run's model as safetensors and JSON, with a torch.export program that is checked against the model.

    Args:
        out: the folder to create; noether.physics.export.exported_model.load_exported reads it
        weights_only: leave out the program, for models that torch.export cannot export
        overwrite: replace an export that is already in the folder
    """
    from noether.checkpoints.run_settings import WantedModel
    from noether.physics.export.command import export_here

    wanted = WantedModel(run, checkpoint, weights, trust)
    return export_here(wanted, out, program=not weights_only, overwrite=overwrite)


def inspect(cases: str, *, out: str = "cases.yaml", workers: str | None = None) -> int:
    """Look through a folder of simulated cases, and write a draft of the map that prepare reads.

    Groups the files into cases by name; counts the cases that have each set, array and number; points out
    irregularities. You can pass the commented draft to prepare as it is, or edit it first.

    Args:
        cases: the folder that contains the cases
        out: the file to write, which must not exist yet
    """
    from noether.physics.cases.commands import inspect_here

    return inspect_here(cases, out, workers=workers)


def prepare(
    *paths: str, map: str | None = None, workers: str | None = None, skip_broken: bool = False, dry_run: bool = False
) -> int:
    """Convert a folder of cases, or an archive of such a folder, into the folder that training reads.

    Each case is checked, and appears in the output only when it is complete. Complete cases that are up to date are
    kept, so the same command continues after an interruption. `prepare shapenet_car ARCHIVE OUT` is short for
    `prepare ARCHIVE OUT --map shapenet_car`.

    Args:
        paths: CASES OUT: the folder that contains the cases (or its archive), and the folder to create (dataset_root)
        map: a file that inspect wrote, or a ready map: openfoam, ahmedml, drivaerml, drivaernetpp, shapenet_car
        skip_broken: leave out the cases that are refused, and name them
        dry_run: count the cases and show what would be prepared; write nothing
    """
    from noether.physics.cases.commands import prepare_here

    return prepare_here(paths, map_name=map, workers=workers, skip_broken=skip_broken, dry_run=dry_run)


def describe(*overrides: str, hp: str | None = None, json: bool = False) -> int:
    """Show what a data set contains: the samples, arrays, shapes, ranges and statistics of each split.

    Without arguments, it describes the built-in data set, as noether train would use it.

    Args:
        overrides: settings and groups, as for train: dataset=shapenet_car dataset_root=FOLDER
    """
    from noether.config.compose import load_config
    from noether.physics.cases.commands import describe_here

    return describe_here(load_config(overrides, hp), as_json=json)
