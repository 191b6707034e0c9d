"""Jobs that are preempted, out of time, cancelled, requeued or lose their node resume automatically, bit for bit.

    pytest -s tests/launch/slurm/test_requeue.py

prints the updates that each case lost and the seconds that it took to resume. All cases run at once: each mostly waits.
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import REPOSITORY, final_hashes
from sharing import in_every_push

from launch.slurm.conftest import PATH, Slurm, wait_for
from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder
from noether.runs.lease import have_ranks_met, read_attempts
from noether.runs.records import read_metrics

# The first test waits for all jobs: a requeue, the timeout of a lost node and the time limit of a job take minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
OWN = REPOSITORY / "tests" / "faults" / "own"
UPDATES = 60
# A user's script, which requeues the job if the run exits with 75. In the other cases, Slurm requeues the job.
SCRIPT = """\
srun {command}
code=$?
if [ $code = 75 ]; then scontrol requeue $SLURM_JOB_ID; sleep 60; fi
exit $code
"""


@dataclass(frozen=True)
class Case:
    """A job that is disturbed. saves: whether it has the time to save, so that no update is lost."""

    options: tuple[str, ...]
    ranks: int = 1
    saves: bool = True
    pause_s: float = 0.2


CASES = {
    "preempted, GraceTime 0": Case(("-plow", "-wn1"), ranks=2),
    "preempted, GraceTime 20": Case(("-plow20", "-wn2")),
    # Updates are so slow that the job cannot finish within its time limit of a minute.
    "time limit": Case(("-wn3", "-t1"), pause_s=1.0),
    "scancel, submitted again": Case(("-wn3",)),
    "scontrol requeue": Case(("-wn3",)),
    "node lost": Case(("--exclude=n1,n2",), ranks=2, saves=False),
}
NAMES = in_every_push(CASES.keys(), "preempted, GraceTime 0", "node lost")


@dataclass
class Outcome:
    """The outcome of a case. reached: the last update before the disturbance; lost: the number of repeated updates."""

    job: int
    folder: RunFolder
    struck: float = 0.0
    reached: int = 0
    lost: int = 0
    seconds: float = 0.0
    state: str = ""
    output: str = ""


def training_rows(folder: RunFolder) -> list[dict]:
    rows = read_metrics(folder.metrics) if folder.metrics.exists() else []
    return [row for row in rows if row["kind"] == "training"]


class Scene:
    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder

    def submit(self, name: str) -> Outcome:
        case, run_id = CASES[name], name.replace(" ", "-").replace(",", "")
        arguments = ["--hp", str(OWN / "lines.yaml"), f"output_path={self.folder}", f"run_id={run_id}", "resume=auto"]
        command = " ".join([sys.executable, "-m", "noether", "train", *arguments])
        options = (f"-n{case.ranks}", "-N1", "--requeue", "--open-mode=append", *case.options)
        if not any(option.startswith("-t") for option in options):
            options = (*options, "-t10")
        variables = {
            "PATH": f"{Path(sys.executable).parent}:{PATH}",
            "PYTHONPATH": f"{REPOSITORY}:{OWN}",
            "OMP_NUM_THREADS": "1",
            "PAUSE_S": str(case.pause_s),
        }
        job = self.slurm.submit(SCRIPT.format(command=command), *options, **variables)
        return Outcome(job, RunFolder(self.folder / run_id))

    def trains(self, outcome: Outcome) -> bool:
        rows, saved = training_rows(outcome.folder), list_checkpoints(outcome.folder.checkpoints)
        return bool(saved) and len(rows) > saved[-1].updates + 2

    def strike(self, name: str, outcome: Outcome) -> None:
        outcome.struck = time.time()
        if name.startswith("preempted"):
            node = CASES[name].options[1]
            self.slurm.submit("sleep 2", "-phigh", node, "--exclusive", "-t1")
        elif name.startswith("scancel"):
            self.slurm.run("scancel", str(outcome.job))
        elif name.startswith("scontrol requeue"):
            self.slurm.run("scontrol", "requeue", str(outcome.job))
        elif name == "node lost":
            self.slurm.power("kill", "n4")

    def second_start(self, outcome: Outcome) -> bool:
        """Return whether the requeued job has made an update; record the updates lost and the seconds until then."""
        starts = read_attempts(outcome.folder)
        if len(starts) < 2 or not have_ranks_met(outcome.folder, starts[1].number):
            # Count the updates now, because the next attempt will drop the rows of the updates that it repeats.
            outcome.reached = max([outcome.reached, *(row["update"] for row in training_rows(outcome.folder))])
            return False
        again = [row for row in training_rows(outcome.folder) if row["update"] > starts[1].start_update]
        if not again:
            return False
        if not outcome.seconds:
            outcome.lost = max(0, outcome.reached - starts[1].start_update)
            # At a time limit, the job is disturbed when its last update has been saved.
            last = [row["time"] for row in training_rows(outcome.folder) if row["update"] == starts[1].start_update]
            outcome.seconds = again[0]["time"] - (outcome.struck or last[0])
        return True


@pytest.fixture(scope="module")
def names(request) -> list[str]:
    """Return the names of the cases whose tests were selected for this session."""
    return [item.callspec.params["name"] for item in request.session.items if item.path == request.path]


@pytest.fixture(scope="module")
def outcomes(slurm: Slurm, names: list[str], tmp_path_factory) -> Iterator[dict[str, Outcome]]:
    low20 = "PartitionName=low20 Nodes=n[1-4] PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 MaxTime=60"
    slurm.run("scontrol", "create", *low20.split())
    scene = Scene(slurm, tmp_path_factory.mktemp("requeue"))
    found = {}
    if "node lost" in names:
        # This job must start on n4, which will be lost, so n3 is drained in the meantime.
        slurm.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=test")
        found["node lost"] = scene.submit("node lost")
        slurm.wait(found["node lost"].job, until="RUNNING")
        slurm.run("scontrol", "update", "NodeName=n3", "State=RESUME")
    found |= {name: scene.submit(name) for name in names if name not in found}
    waiting, resubmitted = set(names), {}

    def go_on() -> bool:
        for name in sorted(waiting):
            if name == "time limit":
                waiting.discard(name)  # Slurm's time limit disturbs this job.
            elif scene.trains(found[name]):
                scene.strike(name, found[name])
                waiting.discard(name)
        for name, outcome in found.items():
            if name in waiting or outcome.seconds:
                continue
            if name.startswith("scancel") and name not in resubmitted and slurm.state(outcome.job) == "CANCELLED":
                resubmitted[name] = scene.submit(name).job
            scene.second_start(outcome)
        return not waiting and all(outcome.seconds for outcome in found.values())

    def explain() -> str:
        late = {name: one for name, one in found.items() if not one.seconds}
        return "\n".join(f"{name}: {slurm.show(one.job)} {slurm.output(one.job)[-2000:]}" for name, one in late.items())

    wait_for("every case resumed", go_on, 300, explain)
    for name, outcome in found.items():
        outcome.job = resubmitted.get(name, outcome.job)
        outcome.state = slurm.wait(outcome.job, limit_s=150)
        outcome.output = slurm.output(outcome.job)
    print(f"\n\n{'case':<26} {'ranks':>5} {'updates lost':>13} {'seconds to resume':>18}")
    for name, outcome in found.items():
        print(f"{name:<26} {CASES[name].ranks:>5} {outcome.lost:>13} {outcome.seconds:>18.1f}")
    yield found
    if "node lost" in names:
        slurm.power("boot", "n4")


@pytest.fixture(scope="module")
def undisturbed(noether, names: list[str], tmp_path_factory) -> dict[int, dict[str, str]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{REPOSITORY}:{OWN}{os.pathsep}"}
    hashes = {}
    for ranks in sorted({CASES[name].ranks for name in names}):
        words = ["--hp", str(OWN / "lines.yaml"), f"output_path={folder}", f"run_id=on-{ranks}", f"devices={ranks}"]
        noether("train", *words, **variables, code=0)
        hashes[ranks] = final_hashes(RunFolder(folder / f"on-{ranks}"))
    return hashes


@pytest.mark.parametrize("name", NAMES)
def test_the_job_goes_on_by_itself_and_nothing_is_lost(name, outcomes, undisturbed) -> None:
    outcome, case = outcomes[name], CASES[name]
    assert outcome.state == "COMPLETED", outcome.output
    assert list_checkpoints(outcome.folder.checkpoints)[-1].updates == UPDATES
    assert final_hashes(outcome.folder) == undisturbed[case.ranks], "the files differ from those of the undisturbed run"
    assert [row["update"] for row in training_rows(outcome.folder)] == list(range(1, UPDATES + 1))
    starts = read_attempts(outcome.folder)
    assert len(starts) >= 2
    assert starts[-1].outcome == "done"
    if case.saves:
        assert outcome.lost == 0, outcome.output
        assert "everything is saved" in outcome.output or name.startswith("scancel")
    else:
        assert outcome.lost < 10 + 1, "more updates are lost than lie between two checkpoints"
