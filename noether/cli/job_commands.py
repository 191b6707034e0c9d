"""The commands other than training, evaluation and data: existing runs, jobs, the machine, the shell, and help."""

from noether import __version__


def checkpoints(
    run: str, *, verify: bool = False, prune: bool = False, keep: str | None = None,
    yes: bool = False, json: bool = False,
) -> int:  # fmt: skip
    """List a run's checkpoints, verify them, or remove old ones.

    Args:
        verify: read every file and compare its SHA-256 with the recorded one
        prune: show the checkpoints to remove; --yes removes them. The best one and at least one intact one are kept
        keep: how many of the newest intact checkpoints --prune keeps (default: the run's keep_checkpoints)
        yes: with --prune: remove the checkpoints
    """
    from noether.checkpoints.table import checkpoints_here

    return checkpoints_here(run, verify=verify, prune=prune, keep=keep, yes=yes, as_json=json)


def report(run: str) -> int:
    """Write a run's report.html again, from the files in the run's folder."""
    from noether.runs.report.page import report_here

    return report_here(run)


def tensorboard(*runs: str, port: str | None = None) -> int:
    """Show the curves of runs in TensorBoard, at a loopback address of this machine, until Ctrl-C.

    Args:
        port: the port of 127.0.0.1 to listen on (default: the first free one from 6006; 0: any free one)
    """
    from noether.training.tensorboard_page import serve_here

    return serve_here(runs, port)


def status(*, output_path: str = "runs", json: bool = False) -> int:
    """Show the state of the runs in a folder: waiting, running, done, stopped, failed, lost.

    Args:
        output_path: the folder that holds the run folders
    """
    from noether.runs.overview import show_status

    return show_status(output_path, as_json=json)


def logs(run: str, *, rank: str | None = None, follow: bool = False) -> int:
    """Print the output of a run's job and of its ranks.

    Args:
        rank: print only this rank's log
        follow: keep printing until the run has ended
    """
    from noether.runs.logs import show_logs

    return show_logs(run, rank=rank, follow=follow)


def watch(*runs: str, port: str | None = None) -> int:
    """Show runs on a local page that updates itself, or compare several: curves, time, ranks, logs, pictures.

    The page changes nothing, and only this machine can open it. Runs on other machines are read from their folders
    on a shared file system. Ctrl-C ends the page, not the runs.

    Args:
        port: the port of 127.0.0.1 to listen on (default: 8642, or any free port if 8642 is taken)
    """
    from noether.watch.serve import watch_here

    return watch_here(runs, port)


def cancel(run: str) -> int:
    """Stop a run on this machine or in a Slurm job. The run is saved first, and its job is not requeued."""
    from noether.runs.cancel import cancel_run

    return cancel_run(run)


def doctor(*overrides: str, hp: str | None = None, json: bool = False, timeout: str | None = None) -> int:
    """Find out what is wrong with this machine, job or image, and print how to fix it.

    Without a launcher, it checks this machine. Under srun, torchrun or mpirun, every rank takes part and rank 0
    reports. It trains nothing, and by default ends within a minute even if something hangs.

    Args:
        overrides: settings and groups of the run that is planned here, as for train
        timeout: time limit in seconds (default: 50)
    """
    from noether.doctor.examine import doctor_here, read_seconds

    return doctor_here(overrides, hp, read_seconds(timeout), json)


def submit(
    *overrides: str, hp: str | None = None, multirun: bool = False, print: bool = False, dry_run: bool = False
) -> int:
    """Submit a training job to Slurm, with the settings in the slurm section. A requeued job continues its run.

    The configuration is checked before the job is submitted, so a mistake is reported at once.

    Args:
        overrides: settings and groups, as for train: slurm.nodes=2 slurm.gpus_per_node=4 (noether help slurm)
        multirun: submit one job array with a run for each value of a list such as seed=1,2,3
        print: write the job script to standard output, for noether submit --print … | sbatch
        dry_run: show the plan and the script; submit nothing
    """
    from noether.jobs.submit import submit_here

    return submit_here(overrides, hp, multirun=multirun, to_print=print, dry_run=dry_run)


def lint(
    *scripts: str, hp: str | None = None, fix: bool = False, json: bool = False, format: str = "text",
    rules: bool = False, slurm: str | None = None, site: str | None = None, advice: bool = False,
) -> int:  # fmt: skip
    """Check a job script before you submit it: slurm-lint, extended to understand noether train and noether run.

    Checks any script for sbatch, a folder that submitit wrote, or a README. Exit code 0: no errors (there may be
    warnings); 1: errors; 2: a file could not be read.

    Args:
        scripts: files, folders, and overrides of the configuration: job.sbatch trainer.effective_batch_size=64
        hp: a YAML file with settings: also check that the batch can be divided over the job's ranks
        fix: write a copy beside each script, with the safe fixes made: job.fixed.sbatch
        json: short for --format json
        format: text, json, github (annotations) or sarif (code scanning)
        rules: list the rules; check nothing
        slurm: the cluster's version of Slurm, such as 23.02: also report faults that only some versions have
        site: a file with the site's partitions, required options and version of Slurm (slurm-lint's README)
        advice: also show advice: lines that work but could be better
    """
    from noether.jobs.lint import RULES, lint
    from slurm_lint.command import list_rules

    if rules:
        return list_rules(RULES)
    from noether.cli.binding import read_train_line

    style = "json" if json else format
    return lint(scripts, hp, read_train_line, fix=fix, style=style, slurm=slurm, site=site, advice=advice)


def completion(shell: str) -> None:
    """Print the script that lets a shell complete commands, flags, settings, groups, runs and files.

    bash: source <(noether completion bash) in ~/.bashrc; zsh likewise in ~/.zshrc, after compinit; fish:
    noether completion fish > ~/.config/fish/completions/noether.fish

    Args:
        shell: bash, zsh or fish
    """
    from noether.cli.completing import shell_script

    print(shell_script(shell), end="")


def help(name: str) -> None:
    """Describe a command, a section of settings with all its kinds, or one setting.

    Args:
        name: train, model, or trainer.max_epochs
    """
    from noether.cli.settings_help import SECTION_NAMES, section_help, setting_help

    section = name.removesuffix(".kind")
    print(section_help(section) if section in SECTION_NAMES else setting_help(name))


def version() -> None:
    """Print the version."""
    print(f"noether {__version__}")
