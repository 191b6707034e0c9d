"""The Indexed Job of examples/kubernetes is valid and safe, and trains on two pods with separate networks."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY, TINY
from faults.hosts import Host, two_hosts
from processes import wait_for

from noether.checkpoints.format import list_checkpoints
from noether.common.errors import ExitCode
from noether.config.distributed import DistributedConfig
from noether.runs.folder import RunFolder
from noether.runs.records import read_metrics

FOLDER = REPOSITORY / "examples" / "kubernetes"
DOCUMENTS = {one["kind"]: one for one in yaml.safe_load_all((FOLDER / "indexed-job.yaml").read_text())}
JOB = DOCUMENTS["Job"]
(QUEUED,) = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["patches"]
POD = JOB["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
ADDRESSES = ("10.244.7.10", "10.244.7.11")
START_S, END_S = 120, 90


def queued() -> dict[str, Any]:
    """Return the Job with its patch for Kueue, as `kubectl kustomize` applies it."""
    job = deepcopy(JOB)
    assert QUEUED["target"] == {"kind": "Job", "name": job["metadata"]["name"]}
    for one in yaml.safe_load(QUEUED["patch"]):
        _, section, key = one["path"].split("/")
        assert (one["op"], key in job[section]) == ("add", False)
        job[section][key] = one["value"]
    return job


@pytest.mark.parametrize("version", ["1.31", "1.34"])
@pytest.mark.parametrize("document", [*DOCUMENTS.values(), queued()], ids=[*DOCUMENTS, "Job in a queue"])
def test_each_document_is_what_kubernetes_takes(document: dict[str, Any], version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(document, version, strict=True)


def test_a_job_that_never_comes_to_its_end_is_ended_and_one_that_has_goes() -> None:
    spec, (toleration,) = JOB["spec"], POD["tolerations"]
    assert spec["activeDeadlineSeconds"] > 3600 > DistributedConfig().init_timeout_s
    assert spec["ttlSecondsAfterFinished"] >= 3600, "users need time to read the logs"
    assert toleration["key"] in CONTAINER["resources"]["limits"]


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
    assert POD["restartPolicy"] == "Never", "podFailurePolicy allows no other value"
    rules = JOB["spec"]["podFailurePolicy"]["rules"]
    actions = {code: rule["action"] for rule in rules for code in rule.get("onExitCodes", {}).get("values", ())}
    assert actions == {ExitCode.REQUEST: "FailJob", ExitCode.LATE: "Ignore", ExitCode.CHECKPOINTED: "Ignore"}
    assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} == {CONTAINER["name"]}


def test_the_user_is_the_image_s_own() -> None:
    (user,) = {line.split()[1] for line in (REPOSITORY / "Dockerfile").read_text().splitlines() if "USER " in line[:5]}
    asked = POD["securityContext"]
    assert user == f"{asked['runAsUser']}:{asked['runAsGroup']}"
    assert asked["fsGroup"] == asked["runAsGroup"]
    assert asked["runAsNonRoot"]


class Pod(Host):
    """A host with its own network, and the /etc/hosts that kubelet writes there."""

    def __init__(self, index: int, volume: Path, environ: dict[str, str]) -> None:
        variables = {"JOB_COMPLETION_INDEX": f"{index}", "PYTHONPATH": f"{REPOSITORY}"}
        super().__init__(f"{JOB['metadata']['name']}-{index}", {**environ, **variables}, "--net", "--mount")
        self.volume, self.log, hosts = volume, volume / f"log-{index}", volume / f"hosts-{index}"
        names = [f"{JOB['metadata']['name']}-{one}" for one in range(len(ADDRESSES))]
        full = [f"{name}.{POD['subdomain']}.default.svc.cluster.local" for name in names]
        # As the cluster's name server would, the file gives the other pods' addresses, but only for their full names.
        lines = [f"{ADDRESSES[one]}\t{full[one]}\t{names[one] if one == index else ''}" for one in range(len(names))]
        hosts.write_text("\n".join(["127.0.0.1\tlocalhost", *lines, ""]))
        self.run("mount", "--bind", str(hosts), "/etc/hosts")

    def train(self, *more: str) -> "subprocess.Popen[bytes]":
        """Start the pod's program with the manifest's arguments, on the CPU and with a tiny model."""
        words = [word.replace("/runs", str(self.volume)) for word in CONTAINER["args"]]
        tiny = ["--hp", str(TINY), "devices=null", *more]
        return self.start(self.inside(sys.executable, "-m", "noether", words[0], *tiny, *words[1:]), self.log)


@pytest.fixture
def pods(environ, tmp_path: Path) -> Iterator[list[Pod]]:
    with two_hosts(lambda index: Pod(index, tmp_path, environ), ADDRESSES) as pods:
        yield pods


def ended(pods: list[Pod], limit_s: float) -> tuple[list[int], list[str]]:
    return [pod.started[-1].wait(limit_s) for pod in pods], [pod.log.read_text() for pod in pods]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_pods_wait_in_vain_train_stop_at_an_eviction_and_go_on(pods: list[Pod], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "cars")
    for pod in pods:  # Only this pod runs: the other one has no node yet.
        pod.train("distributed.init_timeout_s=3")
        codes, said = ended([pod], START_S)
        assert codes == [ExitCode.LATE], said
    started = [pod.train("trainer.max_updates=100000") for pod in pods]

    def trains() -> bool:
        return run.metrics.exists() and len(read_metrics(run.metrics)) > 1

    wait_for("the first updates", lambda: trains() or any(one.poll() is not None for one in started), START_S)
    started[1].send_signal(signal.SIGTERM)  # One pod is evicted; the other stops with it.
    codes, said = ended(pods, END_S)
    assert codes == [ExitCode.CHECKPOINTED] * 2, said
    plan = json.loads(run.plan.read_text())
    assert (plan["launcher"], plan["world_size"], plan["nodes"]) == ("kubernetes", 2, ["cars-0", "cars-1"])
    assert plan["endpoint"]["host"] == "cars-0.cars.default.svc.cluster.local"
    saved = list_checkpoints(run.checkpoints)[-1].updates
    for pod in reversed(pods):  # New pods start, the one with the last index first.
        pod.train(f"trainer.max_updates={saved + 3}")
    codes, said = ended(pods, START_S)
    assert codes == [ExitCode.DONE] * 2, said
    assert list_checkpoints(run.checkpoints)[-1].updates == saved + 3
    assert f"after update {saved}" in said[0]
