"""What the workflows promise of runners, each other, the Makefile and registries; and how workers share the tests."""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY
from processes import CLUSTER, IMAGES, PACKAGES, lacking, run_to_end
from sharing import EVERYWHERE, MACHINES

WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (REPOSITORY / ".github" / "workflows").glob("*.yml")
}


def awaited(jobs: dict[str, Any], name: str) -> set[str]:
    """Returns every job that one waits for."""
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
        assert asked.pop("--first", seen.get(kind, 0)) == seen.get(kind, 0), "each case once"
        seen[kind] = seen.get(kind, 0) + sum(asked.values())
    assert seen == whole


@pytest.mark.parametrize("beginning", [*MACHINES, *EVERYWHERE])
def test_every_beginning_is_of_tests_that_exist(beginning: str) -> None:
    path, _, function = beginning.partition("[")[0].partition("::")
    assert (REPOSITORY / path).exists()
    assert not function or f"def {function}" in (REPOSITORY / path).read_text()


TESTING = re.compile(r"\.?ci/(run|smoke)|make (?!faults)")


def commands(job: dict[str, Any], matrix: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Returns the commands of a job that run tests, each with its own variables."""
    steps = [step for step in job.get("steps", ()) if TESTING.match(step.get("run", ""))]
    values = {f"${{{{ matrix.{name} }}}}": value for name, value in matrix.items()}
    return [(one["run"], {name: values.get(text, text) for name, text in one.get("env", {}).items()}) for one in steps]


JOBS = {
    " ".join([workflow, name, *matrix.values()]): (job, found)
    for workflow, parts in WORKFLOWS.items()
    for name, job in parts["jobs"].items()
    for key, values in job.get("strategy", {}).get("matrix", {"": [""]}).items()
    for matrix in [{key: value} if key else {} for value in values]
    if (found := commands(job, matrix))
}
"""Each job that runs tests, with every value of its matrix."""
IN_DOCKER = (
    *("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service"),
    *("net_raw", "sys_chroot", "mknod", "audit_write", "setfcap"),
)
"""Capabilities of root in a container that is not privileged ("Runtime privilege", docs.docker.com)."""
NEEDY = [f"tests/{name}" for name in ("images", "faults/test_harness.py", "launch/slurm", "launch/kubernetes")]
MAKE = """#!/bin/sh
/usr/bin/make --dry-run --no-print-directory WORKERS=0 "$@" | sed -n 's|[^ =]*/pytest|python3 -m pytest|p' | sh -e
"""


def as_runner(job: dict[str, Any]) -> list[str]:
    """Returns the words that make what runs a job of root: root of a container, or a user without capabilities.

    That user may read what is root's: a checkout and a Python are the runner's own there.
    """
    if "--privileged" in str(job.get("container")):
        return []
    user = [] if "container" in job else ["--reuid=65534", "--regid=65534", "--clear-groups"]
    for kept in (IN_DOCKER,) if "container" in job else (("dac_read_search",), ()):
        sets = ",".join(["-all", *(f"+{name}" for name in kept)])
        ambient = [f"--inh-caps={sets}", f"--ambient-caps={sets}"] if user else ["--inh-caps=-all"]
        words = ["setpriv", *user, *ambient, f"--bounding-set={sets}"]
        if subprocess.run([*words, "true"], capture_output=True).returncode == 0:
            return words
    return lacking("no setpriv, or none that may take capabilities away")


class Engine(BaseHTTPRequestHandler):
    """A container engine that has every image, and makes no container."""

    def do_GET(self) -> None:
        status = 404 if "/containers/" in self.path else 201 if "/tag" in self.path else 200
        said = {"ApiVersion": "1.44", "Id": "sha256:0", "Config": {"Labels": {}}, "message": "no containers here"}
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a runner with an engine; its `make` runs pytest alone, and nothing is installed."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in (("make", MAKE), ("apt-get", "#!/bin/sh\n")):
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    tmp_path.chmod(0o777)
    for above in [one for one in tmp_path.parents if one.is_relative_to(tempfile.gettempdir())]:
        above.chmod(0o711)  # The session and pytest keep their folders to their own user.
    with ThreadingUnixStreamServer(str(tmp_path / "engine"), Engine) as engine:
        (tmp_path / "engine").chmod(0o777)
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        yield {
            "PATH": f"{programs}:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            **{"CI": "true", "GITHUB_ACTIONS": "true", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
            **{"DOCKER_HOST": f"unix://{tmp_path}/engine", "PYTHONDONTWRITEBYTECODE": "1"},
        }
        engine.shutdown()


@pytest.mark.parametrize(
    ("user", "ci", "required"),
    [("0", "true", {PACKAGES, CLUSTER, IMAGES}), ("0", "", {PACKAGES}), ("1001", "true", set())],
    ids=["a machine of CI's own", "a container without rights", "an ordinary user"],
)
def test_what_ci_run_requires_is_what_the_machine_brings(runner, tmp_path: Path, user, ci, required) -> None:
    for name, script in (("make", "env"), ("id", f"echo {user}")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    done = run_to_end([str(REPOSITORY / ".ci" / "run")], runner | {"CI": ci})
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"^(NOETHER_\w+)=1$", done.stdout, re.MULTILINE)) == required
    assert done.stdout.count("PATH=") == 3, "lint, test, test-machines"


def test_what_needs_a_machine_runs_every_night_and_nothing_is_required_by_ci_alone() -> None:
    job, ((_, variables),) = JOBS["nightly tests test-machines"]
    assert {PACKAGES, CLUSTER, IMAGES} <= set(variables)
    assert "--privileged" in job["container"]["options"]
    readers = [path for path in (REPOSITORY / "tests").rglob("*.py") if 'environ.get("CI' in path.read_text()]
    assert readers == [Path(__file__)]


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_no_job_fails_for_what_its_runner_lacks(name: str, runner: dict[str, str]) -> None:
    """Runs its commands as far as each test's fixtures, which decide; what is skipped is printed (`pytest -s`).

    In a container, those tests that decide by capabilities. A privileged one would start a cluster, and collects alone.
    """
    (job, found), words = JOBS[name], []
    if os.geteuid() == 0:
        words = as_runner(job)
    elif "container" in job:
        lacking("only root can be root of a container")
    options = ["-qrsfE", "-p", "no:cacheprovider", "--setup-only" if words or os.geteuid() else "--collect-only"]
    if "container" in job:
        options += NEEDY
    else:
        runner |= {"NOETHER_IMAGE": "noether:cpu", "NOETHER_SIF": "noether.sif"}

    def run(command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*words, "bash", "-e", "-c", command], cwd=REPOSITORY, env={**runner, **variables},
            capture_output=True, text=True, timeout=300)  # fmt: skip

    assert run("command -v make").stdout.startswith(runner["HOME"]), "the true one would install"
    failed: list[str] = []
    for command, variables in found:
        done = run(command, PYTEST_ADDOPTS=" ".join(options), PYTHONPATH=str(REPOSITORY), **variables)
        shown = re.findall(r"^(?:SKIPPED|ERROR|FAILED) .*", done.stdout, re.MULTILINE)
        print(f"\n{name}: {command}: {done.stdout.splitlines()[-1:]}", *shown, sep="\n")
        ended = [line for line in shown if not line.startswith("SKIPPED")]
        assert ended or done.returncode == 0, done.stdout + done.stderr
        failed += [line for line in ended if "NOETHER_REQUIRE_GPU" not in line]  # What gpu.yml's runner has.
    assert not failed
