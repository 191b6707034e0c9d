"""The workflows fit their runners, each other, the Makefile and registries; workers share the tests as intended."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY
from processes import CLUSTER, IMAGES, PACKAGES, lacking, lay, run_to_end
from sharing import EVERYWHERE, MACHINES

WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (REPOSITORY / ".github" / "workflows").glob("*.yml")
}


def awaited(jobs: dict[str, Any], name: str) -> set[str]:
    """Return every job that the named job waits for, directly or not."""
    needs = jobs[name].get("needs", [])
    direct = {needs} if isinstance(needs, str) else set(needs)
    return direct.union(*(awaited(jobs, each) for each in direct))


@pytest.mark.parametrize("name", [name for name in WORKFLOWS["release"]["jobs"] if name != "tests"])
def test_nothing_is_published_before_the_tests(name: str) -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert jobs["tests"]["uses"] == "$/.github/workflows/cpu.yml"
    assert "tests" in awaited(jobs, name)


def test_an_owner_with_capitals_has_a_valid_image_name() -> None:
    for job in WORKFLOWS["release"]["jobs"].values():
        steps = [str(step) for step in job.get("steps", ())]
        uses = [number for number, step in enumerate(steps) if "$IMAGE" in step or "env.IMAGE" in step]
        sets = [number for number, step in enumerate(steps) if "${GITHUB_REPOSITORY,,}" in step]
        assert not uses or sets[0] < uses[0]
        assert not any("github.repository }}" in step for step in steps)


def test_the_nightly_parts_are_all_of_make_faults() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    whole = {kind: int(count) for kind, count in re.findall(r"-m tests\.faults\.(\w+) --\w+ (\d+)", makefile)}
    seen: dict[str, int] = {}
    for part in WORKFLOWS["nightly"]["jobs"]["faults"]["strategy"]["matrix"]["part"]:
        kind, *words = part.split()
        asked = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        assert asked.pop("--first", seen.get(kind, 0)) == seen.get(kind, 0), "the jobs must cover each case once"
        seen[kind] = seen.get(kind, 0) + sum(asked.values())
    assert seen == whole


@pytest.mark.parametrize("beginning", [*MACHINES, *EVERYWHERE])
def test_every_beginning_is_of_tests_that_exist(beginning: str) -> None:
    path, _, function = beginning.partition("[")[0].partition("::")
    assert (REPOSITORY / path).exists()
    assert not function or f"def {function}" in (REPOSITORY / path).read_text()


TESTING = re.compile(r"\.?ci/(run|smoke)|make (?!faults)")
JOBS = {
    f"{workflow} {name}": job
    for workflow, parts in WORKFLOWS.items()
    for name, job in parts["jobs"].items()
    if any(TESTING.match(step.get("run", "")) for step in job.get("steps", ()))
}
NEEDY = [f"tests/{name}" for name in ("images", "faults/test_harness.py", "launch/slurm", "launch/kubernetes")]
MAKE = (
    '/usr/bin/make --dry-run --no-print-directory WORKERS=0 "$@"'
    " | sed -n 's|[^ =]*/pytest|python3 -m pytest|p' | sh -e"
)


def as_runner(job: dict[str, Any]) -> list[str]:
    """Return the command prefix with which root becomes the job's user: a container's root or an ordinary user.

    If possible, the ordinary user may read root's files, because on a runner it owns the checkout and Python.
    """
    if "--privileged" in str(job.get("container")):
        return []
    if "container" in job:
        return ["setpriv", "--bounding-set=-sys_admin,-net_admin", "--inh-caps=-all"]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    reads = [f"--{of}=-all,+dac_read_search" for of in ("inh-caps", "ambient-caps", "bounding-set")]
    can = subprocess.run([*user, *reads, "true"], capture_output=True).returncode == 0
    return [*user, *(reads if can else ["--inh-caps=-all", "--bounding-set=-all"])]


@pytest.fixture
def runner(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Return a function that runs a command as a job does, with more programs and variables, but installs nothing."""

    def run(command: str, programs: dict[str, str], words: Sequence[str] = (), **variables: str) -> Any:
        lay(tmp_path / "bin", {name: f"#!/bin/sh\n{script}\n" for name, script in programs.items()})
        tmp_path.chmod(0o777)
        for path in (*(tmp_path / "bin").iterdir(), *tmp_path.parents):
            if path.stat().st_mode & 0o111 != 0o111:  # pytest's folders are closed to others.
                path.chmod(path.stat().st_mode | 0o111)
        path = f"{tmp_path}/bin:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        own = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "CI": "true", "GITHUB_ACTIONS": "true"}
        # The real make must not run, because it would install packages into this environment.
        script = f'[ "$(command -v make)" = "$HOME/bin/make" ] || exit 99; {command}'
        return run_to_end([*words, "bash", "-ec", script], {"PATH": path, **own, **variables}, limit_s=300)

    return run


@pytest.mark.parametrize(
    ("user", "ci", "required"),
    [("0", "true", {PACKAGES, CLUSTER, IMAGES}), ("0", "", {PACKAGES}), ("1001", "true", set())],
)
def test_what_ci_run_requires_is_what_the_machine_brings(runner, user: str, ci: str, required: set[str]) -> None:
    done = runner(".ci/run", {"make": "env", "id": f"echo {user}", "apt-get": ""}, CI=ci)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"^(NOETHER_\w+)=1$", done.stdout, re.MULTILINE)) == required
    assert done.stdout.count("HOME=") == 3, "lint, test, test-machines"


def test_what_needs_a_machine_runs_every_night_and_nothing_is_required_by_ci_alone() -> None:
    assert "make test-machines" in [step.get("run") for step in JOBS["nightly tests"]["steps"]]
    assert {PACKAGES, CLUSTER, IMAGES} <= set(JOBS["nightly tests"]["env"])
    readers = [path for path in (REPOSITORY / "tests").rglob("*.py") if 'environ.get("CI' in path.read_text()]
    assert readers == [Path(__file__)]


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_no_job_fails_for_what_its_runner_lacks(name: str, runner) -> None:
    """Run the job's commands up to each test's fixtures, which skip or fail; print skipped tests (`pytest -s`).

    In a container, run only tests that depend on capabilities. A privileged job would start a cluster: only collect it.
    """
    job, failed = JOBS[name], []
    if os.geteuid() and "container" in job:
        lacking("only root can be root of a container")
    words = as_runner(job) if os.geteuid() == 0 else []
    options = ["-qrsfE", "-p", "no:cacheprovider", "--setup-only" if words or os.geteuid() else "--collect-only"]
    variables = {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", "DOCKER_HOST": "unix:///nowhere"}
    variables |= {} if "container" in job else {"NOETHER_IMAGE": "noether:cpu", "NOETHER_SIF": "noether.sif"}
    variables["PYTEST_ADDOPTS"] = " ".join([*options, *(NEEDY if "container" in job else ())])
    for step in job["steps"]:
        if not TESTING.match(step.get("run", "")):
            continue
        own = variables | job.get("env", {}) | step.get("env", {})
        done = runner(step["run"], {"make": MAKE, "apt-get": ""}, words, **own)
        shown = re.findall(r"^(?:SKIPPED|ERROR|FAILED) .*", done.stdout, re.MULTILINE)
        print(f"\n{name}: {step['run']}: {done.stdout.splitlines()[-1:]}", *shown, sep="\n")
        assert done.returncode == 0 or (shown and done.returncode != 99), done.stdout + done.stderr
        # This machine may lack a docker engine or a GPU that the runner has.
        failed += [line for line in shown if not re.search("^SKIPPED|DockerException|NOETHER_REQUIRE_GPU", line)]
    assert not failed
