"""`noether logs RUN`: print the logs of a run's job and ranks, and follow them."""

import re
import time
from pathlib import Path

from noether.common.errors import ExitCode, RequestError
from noether.common.safe_open import is_plain, open_plain
from noether.common.sanitize import shown_log, shown_name
from noether.runs.folder import RunFolder
from noether.runs.overview import RUNNING, WAITING, find_run, queue_of, run_state
from noether.runs.records import read_record

POLL_S = 0.5
STATE_POLL_S = 5.0
MOST_AT_ONCE = 2**26
_NAME, _OUTPUT = re.compile(r"rank-([0-9]{1,9})\.log"), re.compile(r"[0-9]+(_[0-9]+)?\.out")


def show_logs(run: str, *, rank: str | None = None, follow: bool = False) -> int:
    """Print a run's logs, each under its path; with `follow`, keep printing new output until the run ends."""
    folder = find_run(run)
    offsets: dict[Path, int] = {}
    if not follow and not log_files(folder, rank):
        state = run_state(folder, queue_of(folder))
        is_over = state.state not in (RUNNING, WAITING) and any(folder.logs.glob("rank-*.error.json"))
        raise RequestError(
            "no-logs-yet",
            f"{folder.path} has written nothing yet",
            seen=f"{state.state}: {state.why}",
            expected="a run that has started",
            fix=f"cat {folder.logs}/rank-*.error.json      (shows why the run ended)"
            if is_over
            else f"noether logs {folder.path} -f      (waits for output)",
        )
    shown: Path | None = None
    asked = 0.0
    while True:
        going_on = follow
        if follow and time.monotonic() - asked >= STATE_POLL_S:
            going_on = run_state(folder, queue_of(folder)).state in (RUNNING, WAITING)
            asked = time.monotonic()
        for path in log_files(folder, rank):
            while content := _read_on(path, offsets.get(path, 0)):
                offsets[path] = offsets.get(path, 0) + len(content)
                if path != shown:
                    print(f"{'' if shown is None else chr(10)}==> {shown_name(str(path))} <==")
                print(shown_log(content.decode(errors="replace")), end="", flush=True)
                shown = path
        if not going_on:
            return ExitCode.DONE
        time.sleep(POLL_S)


def log_text(folder: RunFolder) -> str:
    """Return the output of the run's job or, without one, the log of its rank 0; "" if there is neither."""
    return "".join(shown_log(_read_on(path, 0).decode(errors="replace")) for path in log_files(folder, None))


def log_files(folder: RunFolder, rank: str | None) -> list[Path]:
    """Return a list with the file to show, if it exists: the log of `rank`; for None, the job's output or rank 0's log.

    RequestError: other ranks have logs, but this rank has none.
    """
    if rank is not None:
        ranks = list(map(str, rank_logs(folder)))
        if ranks and rank not in ranks:
            raise RequestError("no-log-of-rank", f"no log of rank {rank}",
                               seen=f"logs of {', '.join(ranks)} in {folder.logs}", expected="one of these ranks",
                               fix=f"--rank {ranks[0]}")  # fmt: skip
        path = folder.logs / f"rank-{rank}.log"
        return [path] if is_plain(path) else []
    return [path for path in [*_job_output(folder), folder.logs / "rank-0.log"] if is_plain(path)][:1]


def _job_output(folder: RunFolder) -> list[Path]:
    """Return the job's output file, if its name is one that `submit` gives and its owner also wrote job.json.

    The checks are needed because another user's job.json could name any file that this user may read.
    """
    record = read_record(folder.job)
    output, job = (Path(str(record.get(name))) for name in ("output", "job"))
    is_own = _OUTPUT.fullmatch(output.name) and output.stem == str(job) and is_plain(output)
    return [output] if is_own and output.lstat().st_uid == folder.job.lstat().st_uid else []


def rank_logs(folder: RunFolder) -> dict[int, Path]:
    """Return the existing log files by rank."""
    found = ((_NAME.fullmatch(path.name), path) for path in folder.logs.glob("rank-*.log"))
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def _read_on(path: Path, offset: int) -> bytes:
    with open_plain(path) as file:
        file.seek(offset)
        return file.read(MOST_AT_ONCE)
