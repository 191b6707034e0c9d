"""The Indexed Job of examples/kubernetes: valid, safe, and run as two pods, each with a network of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from conftest import REPOSITORY, TINY
from processes import lacking

from launch.slurm.conftest import wait_for
from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder
from noether.runs.records import read_metrics

FOLDER = REPOSITORY / "examples" / "kubernetes"
DOCUMENTS = {one["kind"]: one for one in yaml.safe_load_all((FOLDER / "indexed-job.yaml").read_text())}
JOB = DOCUMENTS["Job"]
POD = JOB["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
ADDRESSES = ("10.244.7.10", "10.244.7.11")
START_S, END_S = 120, 90


@pytest.mark.parametrize("version", ["1.31", "1.34"])
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_each_document_is_what_kubernetes_takes(kind: str, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(DOCUMENTS[kind], version, strict=True)


def test_the_pods_find_each_other_by_the_service() -> None:
    service, policy = DOCUMENTS["Service"], DOCUMENTS["NetworkPolicy"]["spec"]
    label = {"batch.kubernetes.io/job-name": JOB["metadata"]["name"]}
    assert POD["subdomain"] == service["metadata"]["name"]
    assert (service["spec"]["clusterIP"], service["spec"]["selector"]) == ("None", label)
    assert service["spec"]["publishNotReadyAddresses"]
    assert policy["podSelector"]["matchLabels"] == label
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": label}}]}]
    count = JOB["spec"]["completions"]
    assert JOB["spec"]["parallelism"] == count
    assert f"nodes={count}" in CONTAINER["args"]


def test_exit_codes_mean_what_they_say() -> None:
    assert POD["restartPolicy"] == "Never", "podFailurePolicy takes no other"
    rules = JOB["spec"]["podFailurePolicy"]["rules"]
    actions = {code: rule["action"] for rule in rules for code in rule.get("onExitCodes", {}).get("values", ())}
    assert actions == {2: "FailJob", 75: "Ignore"}
    assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} == {CONTAINER["name"]}


def test_the_user_is_the_image_s_own() -> None:
    (user,) = {line.split()[1] for line in (REPOSITORY / "Dockerfile").read_text().splitlines() if "USER " in line[:5]}
    asked = POD["securityContext"]
    assert user == f"{asked['runAsUser']}:{asked['runAsGroup']}"
    assert asked["fsGroup"] == asked["runAsGroup"]
    assert asked["runAsNonRoot"]


class Pods:
    """Two network namespaces with a cable between them; each has a host name and /etc/hosts as kubelet writes them."""

    def __init__(self, volume: Path) -> None:
        self.volume = volume
        self.names = [f"noether-{os.getpid()}-{index}" for index in range(2)]
        self.started: list[subprocess.Popen[str]] = []

    def open(self) -> None:
        """Make the namespaces."""
        ends = [f"pod{index}-{os.getpid() % 100000}" for index in range(2)]
        for name in self.names:
            call("ip", "netns", "add", name)
        call("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        job, service = JOB["metadata"]["name"], POD["subdomain"]
        full = [f"{job}-{index}.{service}.default.svc.cluster.local" for index in range(2)]
        for index, (name, end) in enumerate(zip(self.names, ends, strict=True)):
            call("ip", "link", "set", end, "netns", name, "name", "eth0")
            for words in (["link", "set", "lo", "up"], ["address", "add", f"{ADDRESSES[index]}/24", "dev", "eth0"],
                          ["link", "set", "eth0", "up"]):  # fmt: skip
                call("ip", "-n", name, *words)
            other = 1 - index
            hosts = Path("/etc/netns") / name / "hosts"  # ip-netns(8): mounted over /etc/hosts.
            hosts.parent.mkdir(parents=True)
            hosts.write_text(
                f"127.0.0.1\tlocalhost\n{ADDRESSES[index]}\t{full[index]}\t{job}-{index}\n"
                f"{ADDRESSES[other]}\t{full[other]}\n"  # What the cluster's name server says of the Service.
            )

    def start(self, index: int, *more: str) -> subprocess.Popen[str]:
        """Start a pod's program, as the manifest has it, on the CPU and with a tiny model."""
        words = [word.replace("/runs", str(self.volume)) for word in CONTAINER["args"]]
        tiny = ["--hp", str(TINY), "devices=null", *more]
        variables = {"OMP_NUM_THREADS": "1", "JOB_COMPLETION_INDEX": f"{index}", "PYTHONPATH": f"{REPOSITORY}"}
        script = f'hostname {JOB["metadata"]["name"]}-{index} && exec "$@"'
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[index], "unshare", "--uts", "sh", "-c", script, "sh",
             sys.executable, "-m", "noether", words[0], *tiny, *words[1:]],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def close(self) -> None:
        """End what runs, and remove the namespaces."""
        for process in self.started:
            process.kill()
            process.communicate()
        for name in self.names:
            with suppress(subprocess.CalledProcessError):
                call("ip", "netns", "delete", name)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    if os.geteuid() or shutil.which("ip") is None:
        lacking("network namespaces need root and iproute2")
    made = Pods(tmp_path)
    try:
        made.open()
        yield made
    finally:
        made.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_pods_train_stop_at_an_eviction_and_go_on(pods: Pods, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "cars")
    started = [pods.start(index, "trainer.max_updates=100000") for index in (0, 1)]

    def trains() -> bool:
        return run.metrics.exists() and len(read_metrics(run.metrics)) > 1

    wait_for("the first updates", lambda: trains() or any(one.poll() is not None for one in started), START_S)
    started[1].send_signal(signal.SIGTERM)  # One pod is evicted; the other stops with it.
    said = [one.communicate(timeout=END_S)[0] for one in started]
    assert [one.returncode for one in started] == [75, 75], said
    plan = json.loads(run.plan.read_text())
    assert (plan["launcher"], plan["world_size"], plan["nodes"]) == ("kubernetes", 2, ["cars-0", "cars-1"])
    assert plan["endpoint"]["host"] == "cars-0.cars.default.svc.cluster.local"
    saved = list_checkpoints(run.checkpoints)[-1].updates
    # New pods, the last one first.
    again = [pods.start(index, f"trainer.max_updates={saved + 3}") for index in (1, 0)]
    said = [one.communicate(timeout=START_S)[0] for one in again]
    assert [one.returncode for one in again] == [0, 0], said
    assert list_checkpoints(run.checkpoints)[-1].updates == saved + 3
    assert f"after update {saved}" in said[1]


def test_a_pod_without_nodes_is_refused_before_anything_is_written(noether, tmp_path: Path) -> None:
    told = noether("train", "--hp", str(TINY), f"output_path={tmp_path}", "run_id=cars", JOB_COMPLETION_INDEX="1")
    assert told.code == 2
    assert "completions: N" in told.err
    assert not list(tmp_path.iterdir())
