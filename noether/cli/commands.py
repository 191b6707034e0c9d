"""The commands: one method each, called as `noether VERB …`."""

import inspect
import json as json_module
from collections.abc import Callable
from typing import Any

from noether.errors import ExitCode, RequestError

# Only the standard library up here: `noether --help` answers at once, and torch comes in where it is used.


class DataCommands:
    """Inspect, prepare, pack and describe data sets."""

    def inspect(self, cases: str, *, out: str = "cases.yaml", workers: str | None = None) -> int:
        """Look through a folder of simulated cases, and write a draft of the map that prepare takes.

        Groups the files into cases by their names; lists sets, arrays and numbers, with how many cases have each; says
        what is odd. The draft is commented and taken by prepare as it is, or edited.

        Args:
            cases: the folder above the cases
            out: the file to write, which must not exist yet
            workers: processes (default: one for each CPU)
        """
        from noether.data.commands import inspect_here

        return inspect_here(cases, out, workers=workers)

    def prepare(
        self,
        *paths: str,
        map: str | None = None,
        workers: str | None = None,
        skip_broken: bool = False,
        dry_run: bool = False,
    ) -> int:
        """Turn a folder of cases, or a raw archive, into the folder that training reads.

        Each case is checked and appears whole or not at all; what is there and current is kept, so that the same
        command goes on where it stopped. `prepare shapenet_car ARCHIVE OUT` stands for
        `prepare ARCHIVE OUT --map shapenet_car`.

        Args:
            paths: CASES OUT: the folder above the cases (or a raw archive), and the one to make, for dataset_root
            map: a file that inspect wrote, or a ready map: openfoam, ahmedml, drivaerml, drivaernetpp, shapenet_car
            workers: processes (default: one for each CPU)
            skip_broken: leave out the cases that are refused, and name them
            dry_run: count what there is and say what would be made; write nothing
        """
        from noether.data.commands import prepare_here

        return prepare_here(paths, map_name=map, workers=workers, skip_broken=skip_broken, dry_run=dry_run)

    def pack(self, folder: str, *, out: str | None = None) -> int:
        """Pack a prepared folder into the one memory-mapped file that training reads.

        Training does it by itself on first use; this does it beforehand, or for a copy on a node's own disk.

        Args:
            folder: the prepared folder
            out: the folder for the file, which can then be dataset_root by itself (default: the prepared folder)
        """
        from noether.data.commands import pack_here

        return pack_here(folder, out)

    def describe(self, *overrides: str, hp: str | None = None, json: bool = False) -> int:
        """Show what a data set holds: samples, arrays, shapes, ranges and statistics of each split.

        With no argument: the embedded data set, as noether train would use it.

        Args:
            overrides: settings and groups, as for train: dataset=shapenet_car dataset_root=FOLDER
            hp: a YAML file with settings, from anywhere
            json: print one JSON object
        """
        from noether.config.compose import load_config
        from noether.data.commands import describe_here

        return describe_here(load_config(overrides, hp), as_json=json)


class Commands:
    """noether: one training program for every machine."""

    def train(
        self,
        *overrides: str,
        hp: str | None = None,
        multirun: bool = False,
        dry_run: bool = False,
        json: bool = False,
    ) -> int:
        """Train on the devices of this machine or job, and write a report.

        With no argument: UPT on the embedded flow data, on every visible device of this machine.

        Args:
            overrides: settings and groups, as Hydra writes them: trainer.max_epochs=3 model=upt ~key
            hp: a YAML file with settings, from anywhere (also as the first word: noether train my.yaml)
            multirun: (or -m) a run for each value of seed=1,2,3, one after another, then their mean and spread
            dry_run: build everything, make one update and one evaluation batch, leave nothing behind
            json: print the dry run as one JSON object
        """
        from noether.config.compose import load_config
        from noether.training.start import dry_run_here, train_here

        if json and (multirun or not dry_run):
            raise RequestError(
                "--json belongs to a dry run",
                seen="train --json",
                expected="the figures of a run are in its result.json, those of a sweep in NAME.sweep.json",
                fix="noether train --dry-run --json",
            )
        if multirun:
            from noether.sweep import sweep_here

            return sweep_here(overrides, hp, dry_run=dry_run)
        config = load_config(overrides, hp)
        return dry_run_here(config, as_json=json) if dry_run else train_here(config)

    def plan(
        self, *overrides: str, hp: str | None = None, visible_devices: str | None = None, json: bool = False
    ) -> int:
        """Show what train would do here, and why. Nothing is started.

        One row per rank: where it runs, on which device, with which share of a batch.

        Args:
            overrides: settings and groups, as for train
            hp: a YAML file with settings, from anywhere
            visible_devices: plan for a machine that has these devices instead: 0,1,2,3
            json: print one JSON object
        """
        from noether.config.compose import load_config
        from noether.planning.plan import plan_run, render_plan

        config = load_config(overrides, hp)
        plan = plan_run(config, visible_devices=visible_devices)
        if visible_devices is None:
            from noether.training.preflight import check_as_train_does

            check_as_train_does(config, plan)
        if json:
            print(json_module.dumps(plan.as_dict(), indent=2))
        else:
            from noether.common.console import Console

            Console(None, speaks=True).say(*render_plan(plan), sep="\n")
        return ExitCode.DONE

    def evaluate(
        self,
        run: str,
        *,
        split: str = "test",
        weights: str | None = None,
        checkpoint: str | None = None,
        vtk: bool = False,
        json: bool = False,
        trust: bool = False,
    ) -> int:
        """Evaluate a run again: any split, any weights, any checkpoint.

        Args:
            run: the run's folder: runs/NAME
            split: test, validation or train
            weights: ema or raw (default: the averaged weights if the run has them)
            checkpoint: best, latest or a name such as update-000001234 (default: best)
            vtk: also write the best, the median and the worst cases as files that ParaView opens
            json: print the figures as one JSON object
            trust: run the code that the settings of somebody else's run name
        """
        from noether.evaluation.start import evaluate_here
        from noether.runs.folder import existing_run
        from noether.runs.trust import check_trust

        check_trust(existing_run(run), trust)

        return evaluate_here(run, split=split, weights=weights, checkpoint=checkpoint, as_json=json, vtk=vtk)

    def predict(
        self,
        run: str,
        *,
        mesh: str = "",
        out: str = "prediction.vtu",
        volume: str | None = None,
        truth: str | None = None,
        scale: str = "1",
        chunk: str = "16384",
        set: str = "",
        weights: str | None = None,
        checkpoint: str | None = None,
        trust: bool = False,
    ) -> int:
        """Predict the fields on a mesh or on points of your own, at any resolution.

        Positions are in m and in the axes of the training data; scaling comes from the checkpoint.

        Args:
            run: the run's folder: runs/NAME
            mesh: the surface: .stl, .vtk, .vtu, .ply, .obj, or points as .npy (N, 3)
            out: the file to write: .vtu, .vtk or .vtp, which ParaView opens and --mesh reads
            volume: also predict at these points in the air, into OUT_volume: .npy (N, 3) or a mesh's points
            truth: true values at the mesh's points, .npy: truth and error are written too
            scale: multiplies all positions: 0.001 for a mesh in mm
            chunk: points predicted at once, which bounds memory and changes nothing
            set: parameters of the case, such as wind_speed=32, several apart by commas
            weights: ema or raw (default: the averaged weights if the run has them)
            checkpoint: best, latest or a name such as update-000001234 (default: best)
            trust: run the code that the settings of somebody else's run name
        """
        from noether.evaluation.start import predict_here
        from noether.runs.folder import existing_run
        from noether.runs.trust import check_trust

        check_trust(existing_run(run), trust)

        if not mesh:
            raise RequestError(
                "--mesh is needed", expected="a mesh or points", fix=f"noether predict {run} --mesh FILE"
            )
        return predict_here(
            run, mesh=mesh, out=out, volume=volume, truth=truth, scale=scale, chunk=chunk, set=set,
            weights=weights, checkpoint=checkpoint,
        )  # fmt: skip

    def export(
        self,
        run: str,
        out: str,
        *,
        weights: str | None = None,
        checkpoint: str | None = None,
        weights_only: bool = False,
        overwrite: bool = False,
        trust: bool = False,
    ) -> int:
        """Export a run's model: safetensors and JSON, and a torch.export program checked against the model.

        Args:
            run: the run's folder: runs/NAME
            out: the folder to make; noether.evaluation.exported.load_exported reads it
            weights: ema or raw (default: the averaged weights if the run has them)
            checkpoint: best, latest or a name such as update-000001234 (default: best)
            weights_only: leave out the program, for models that torch.export cannot write
            overwrite: replace an export that is in the folder already
            trust: run the code that the settings of somebody else's run name
        """
        from noether.evaluation.start import export_here
        from noether.runs.folder import existing_run
        from noether.runs.trust import check_trust

        check_trust(existing_run(run), trust)

        return export_here(
            run, out, program=not weights_only, overwrite=overwrite, weights=weights, checkpoint=checkpoint
        )

    data = DataCommands

    def checkpoints(
        self,
        run: str,
        *,
        verify: bool = False,
        prune: bool = False,
        keep: str | None = None,
        yes: bool = False,
        json: bool = False,
    ) -> int:
        """List a run's checkpoints, read them back, or remove old ones.

        Args:
            run: the run's folder: runs/NAME
            verify: read every file and compare its SHA-256
            prune: show which would go; with --yes remove them. The best one, and the only good one, stay
            keep: newest intact checkpoints that prune leaves (default: the run's keep_checkpoints)
            yes: do it
            json: print one JSON object
        """
        from noether.checkpoints.command import checkpoints_here

        return checkpoints_here(run, verify=verify, prune=prune, keep=keep, yes=yes, as_json=json)

    def report(self, run: str) -> int:
        """Write a run's report.html again from the files in its folder.

        Args:
            run: the run's folder: runs/NAME
        """
        from noether.runs.folder import existing_run, refusals_told

        folder = existing_run(run)
        from noether.report import write_report

        with refusals_told(folder.path):
            print(write_report(folder))
        return ExitCode.DONE

    def doctor(self, *overrides: str, hp: str | None = None, json: bool = False, timeout: str | None = None) -> int:
        """Find out what is wrong with this machine, job or image, and the line that fixes it.

        Alone it looks at this machine; under srun, torchrun or mpirun every rank takes part and rank 0 reports.
        It starts no training and ends within a minute, whatever hangs.

        Args:
            overrides: settings and groups, as for train: the run to examine for
            hp: a YAML file with settings, from anywhere
            json: print one JSON object
            timeout: seconds that it may take (default: 50)
        """
        from noether.doctor.examine import doctor_here, read_seconds

        def load() -> Any:
            from noether.config.compose import load_config

            return load_config(overrides, hp)

        return doctor_here(load, read_seconds(timeout), json)

    def submit(
        self,
        *overrides: str,
        hp: str | None = None,
        multirun: bool = False,
        print: bool = False,
        script: bool = False,
        dry_run: bool = False,
    ) -> int:
        """Submit a training job to Slurm, as the slurm section says. A requeued job continues its run.

        The configuration is checked here, so a mistake is reported at once and never waits in the queue.

        Args:
            overrides: settings and groups, as for train: slurm.nodes=2 slurm.gpus_per_node=4
            hp: a YAML file with settings, from anywhere
            multirun: (or -m) one job array with a run for each value of seed=1,2,3
            print: write the job script to standard output, for noether submit --print … | sbatch
            script: submit that script also where submitit is installed
            dry_run: show the plan and the script, submit nothing
        """
        from noether.slurm.submit import submit_here

        return submit_here(overrides, hp, multirun=multirun, to_print=print, script=script, dry_run=dry_run)

    def status(self, *, output_path: str = "runs", json: bool = False) -> int:
        """Show the state of the runs in a folder: waiting, running, stopped, done.

        Args:
            output_path: the folder that holds the run folders
            json: print one JSON object
        """
        from noether.runs.status import show_status

        return show_status(output_path, as_json=json)

    def logs(self, run: str, *, rank: str | None = None, follow: bool = False) -> int:
        """Print the output of a run: of its job and of its ranks.

        Args:
            run: the run's folder: runs/NAME
            rank: the log of this rank only
            follow: (or -f) keep printing until the run has ended
        """
        from noether.runs.logs import show_logs

        return show_logs(run, rank=rank, follow=follow)

    def watch(self, *runs: str, port: str | None = None) -> int:
        """Show runs on a local page that follows them: curves, time, ranks, logs, pictures; several compared.

        The page only reads, and only this machine can open it; runs on other machines are followed through their
        folders. Ctrl-C ends the page, not the runs.

        Args:
            runs: run folders, or folders that hold run folders (default: runs)
            port: the port of 127.0.0.1 to listen at (default: 8642, or any free one where it is taken)
        """
        from noether.watch.serve import watch_here

        return watch_here(runs, port)

    def cancel(self, run: str) -> int:
        """Stop a run, on this machine or in its Slurm job. Everything is saved; the job is not queued again.

        Args:
            run: the run's folder: runs/NAME
        """
        from noether.runs.cancel import cancel_run

        return cancel_run(run)

    def lint(
        self,
        *scripts: str,
        hp: str | None = None,
        fix: bool = False,
        json: bool = False,
        format: str = "text",
        rules: bool = False,
    ) -> int:
        """Check a job script before it is submitted.

        Any script for sbatch, a folder of submitit's, or a README. Exit code 1: errors; 0: none, or warnings alone;
        2: a file could not be read.

        Args:
            scripts: files, folders, and overrides of the configuration: job.sbatch trainer.effective_batch_size=64
            hp: a YAML file with settings, whose batch the job's ranks are to share
            fix: write what cannot be wrong into a script beside each: job.fixed.sbatch
            json: short for --format json
            format: text, json, github (annotations) or sarif (code scanning)
            rules: list the rules instead
        """
        from noether.lint.command import list_rules, run_lint

        if rules:
            return list_rules()
        from noether.cli.train_lines import OwnTrainLines

        return run_lint(scripts, hp, fix, "json" if json else format, OwnTrainLines())


ALONE = ("evaluate", "predict", "export", "report", "data inspect", "data prepare", "data pack")
"""Commands that run in one process and write files: several tasks of a launcher would write the same files."""


def verbs() -> dict[str, Callable[..., Any]]:
    """Returns the commands by what is typed: one word, or the name of a group and a word ("data prepare")."""
    found: dict[str, Callable[..., Any]] = {}
    for name, member in vars(Commands).items():
        if inspect.isclass(member):
            found |= {f"{name} {verb}": getattr(member(), verb) for verb in vars(member) if not verb.startswith("_")}
        elif not name.startswith("_"):
            found[name] = getattr(Commands(), name)
    return found


def doors() -> dict[str, str]:
    """Returns the names under which the image installs the program, each with the command that it runs."""
    words = dict.fromkeys(verb.partition(" ")[0] for verb in verbs())
    return {word: word for word in words} | {"noether-train": "train", "noether-train-submit-job": "submit"}


def groups() -> dict[str, type]:
    """Returns the groups of commands by name."""
    return {name: member for name, member in vars(Commands).items() if inspect.isclass(member)}
