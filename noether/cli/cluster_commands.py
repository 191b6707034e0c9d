"""The commands of machines, jobs and shells: doctor, submit, lint and completion."""

from typing import Any

from noether.errors import ExitCode


def doctor(*overrides: str, hp: str | None = None, json: bool = False, timeout: str | None = None) -> int:
    """Find out what is wrong with this machine, job or image, and the line that fixes it.

    Started alone, it checks this machine; under srun, torchrun or mpirun, every rank takes part and rank 0 reports.
    It trains nothing, and ends within a minute even if something hangs.

    Args:
        overrides: settings and groups of the run to check for, as for train
        timeout: time limit in seconds (default: 50)
    """
    from noether.doctor.examine import doctor_here, read_seconds

    def load() -> Any:
        from noether.checkpoints.own_settings import load_run_config

        return load_run_config(overrides, hp)

    return doctor_here(load, read_seconds(timeout), json)


def submit(
    *overrides: str,
    hp: str | None = None,
    multirun: bool = False,
    print: bool = False,
    dry_run: bool = False,
) -> int:
    """Submit a training job to Slurm, with the settings in the slurm section. A requeued job continues its run.

    The configuration is checked here, so a mistake is reported at once and never waits in the queue.

    Args:
        overrides: settings and groups, as for train: slurm.nodes=2 slurm.gpus_per_node=4
        multirun: (or -m) one job array with a run for each value of seed=1,2,3
        print: write the job script to standard output, for noether submit --print … | sbatch
        dry_run: show the plan and the script; submit nothing
    """
    from noether.slurm.submit import submit_here

    return submit_here(overrides, hp, multirun=multirun, to_print=print, dry_run=dry_run)


def lint(
    *scripts: str,
    hp: str | None = None,
    fix: bool = False,
    json: bool = False,
    format: str = "text",
    rules: bool = False,
    slurm: str | None = None,
) -> int:
    """Check a job script before it is submitted.

    Takes any script for sbatch, a folder that submitit wrote, or a README. Exit code 0: no errors (there may be
    warnings); 1: errors; 2: a file could not be read.

    Args:
        scripts: files, folders, and overrides of the configuration: job.sbatch trainer.effective_batch_size=64
        hp: a YAML file with settings: also check that the job's ranks can share its batch
        fix: write the certain fixes into a copy beside each script: job.fixed.sbatch
        json: short for --format json
        format: text, json, github (annotations) or sarif (code scanning)
        rules: list the rules; check nothing
        slurm: the cluster's version of Slurm, such as 23.02: also report what only some versions do
    """
    from noether.lint.command import list_rules, run_lint

    if rules:
        return list_rules()
    from noether.cli.commands import read_train_line

    return run_lint(scripts, hp, fix, "json" if json else format, read_train_line, slurm)


def completion(shell: str) -> int:
    """Print the script that lets a shell complete commands, flags, settings, groups, runs and files.

    bash: source <(noether completion bash) in ~/.bashrc; zsh likewise in ~/.zshrc, after compinit; fish:
    noether completion fish > ~/.config/fish/completions/noether.fish

    Args:
        shell: bash, zsh or fish
    """
    from noether.cli.completing import shell_script

    print(shell_script(shell), end="")
    return ExitCode.DONE
