"""The commands of runs that exist: their checkpoints, reports, states, logs, and their end."""

from noether.errors import ExitCode


def checkpoints(
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
        verify: read every file and compare its SHA-256
        prune: show which would be removed; --yes removes them. The best one and at least one intact one are kept
        keep: how many of the newest intact checkpoints --prune keeps (default: the run's keep_checkpoints)
        yes: with --prune: remove them
    """
    from noether.checkpoints.command import checkpoints_here

    return checkpoints_here(run, verify=verify, prune=prune, keep=keep, yes=yes, as_json=json)


def report(run: str) -> int:
    """Write a run's report.html again from the files in its folder."""
    from noether.runs.folder import existing_run, refusals_told

    folder = existing_run(run)
    from noether.report.page import write_report

    with refusals_told(folder.path, elsewhere=folder.as_copy("report")):
        print(write_report(folder))
    return ExitCode.DONE


def tensorboard(*runs: str, port: str | None = None) -> int:
    """Serve the curves of runs by TensorBoard, on this machine's loopback address, until Ctrl-C.

    Args:
        runs: run folders, or folders that hold run folders (default: runs)
        port: the port of 127.0.0.1 to listen on (default: the first free one from 6006; 0: any free one)
    """
    from noether.training.tensorboard_page import serve_here

    return serve_here(runs, port)


def status(*, output_path: str = "runs", json: bool = False) -> int:
    """Show the state of the runs in a folder: waiting, running, done, stopped, failed, lost.

    Args:
        output_path: the folder that holds the run folders
    """
    from noether.runs.status import show_status

    return show_status(output_path, as_json=json)


def logs(run: str, *, rank: str | None = None, follow: bool = False) -> int:
    """Print the output of a run's job and ranks.

    Args:
        rank: print only this rank's log
        follow: (or -f) keep printing until the run has ended
    """
    from noether.runs.logs import show_logs

    return show_logs(run, rank=rank, follow=follow)


def watch(*runs: str, port: str | None = None) -> int:
    """Show runs on a local page that follows them: curves, time, ranks, logs, pictures; several compared.

    The page only reads, and only this machine can open it; runs on other machines are followed through their
    folders. Ctrl-C ends the page, not the runs.

    Args:
        runs: run folders, or folders that hold run folders (default: runs)
        port: the port of 127.0.0.1 to listen on (default: 8642, or any free one if that is taken)
    """
    from noether.watch.serve import watch_here

    return watch_here(runs, port)


def cancel(run: str) -> int:
    """Stop a run, on this machine or in its Slurm job. Everything is saved; the job is not requeued."""
    from noether.runs.cancel import cancel_run

    return cancel_run(run)
