"""Training under docker: in a mounted folder, cut off from the host, stopped and resumed, over two containers."""

import json

import pytest
from conftest import final_hashes
from sharing import in_every_push

from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder

pytest.importorskip("docker")
from images.containers_of_tests import owners, tiny

pytestmark = pytest.mark.slow

LONG = ("trainer.max_updates=100000", "trainer.checkpoint_every=null", "trainer.evaluate_every=null")


def test_a_run_in_a_mounted_folder_is_the_caller_s_and_is_resumed(containers, work, user) -> None:
    """With a read-only root, no network, no home, no entry in the password file and a PYTHONPATH that breaks torch."""
    (work / "evil").mkdir()
    (work / "evil" / "torch.py").write_text("raise SystemExit('the PYTHONPATH of the host was used')\n")
    alone = {
        "work": work,
        "user": f"{user}:{user}",
        "read_only": True,
        "network_mode": "none",
        "environment": {"PYTHONPATH": "/work/evil"},
        "cap_drop": ["ALL"],
    }
    first = containers.run(*tiny("cars", "trainer.max_updates=4"), **alone)
    assert first.code == 0, first.out + first.err
    folder = RunFolder(work / "runs" / "cars")
    assert list_checkpoints(folder.checkpoints)[-1].updates == 4
    assert owners(folder.path) == {user}
    again = containers.run(*tiny("cars", "resume=auto", "trainer.max_updates=8"), **alone)
    assert again.code == 0, again.out + again.err
    assert "resumed cars after update 4" in again.out
    last = list_checkpoints(folder.checkpoints)[-1]
    assert (last.updates, last.damage()) == (8, None)
    environment = json.loads(folder.environment.read_text())
    labels = containers.client.images.get(containers.image).attrs["Config"]["Labels"]
    for found in (environment, last.meta()["provenance"]):
        assert found["lock_sha256"] == labels["noether.lock.sha256"]
        assert found["git_revision"] == labels["org.opencontainers.image.revision"]
        assert found["image"]["flavour"] == labels["noether.flavour"]


def _two(containers, work, user, name: str, *overrides: str) -> list:
    network = containers.private_network()
    return [
        containers.start(
            *tiny(name, "nodes=2", f"node_rank={rank}", "master_addr=node0", "master_port=29500", *overrides),
            work=work,
            user=f"{user}:{user}",
            network=network.name,
            name=f"{network.name}-{rank}",
            hostname=f"node{rank}",
            networking_config={network.name: containers.client.api.create_endpoint_config(aliases=[f"node{rank}"])},
            environment={"OMP_NUM_THREADS": "1"},
        )
        for rank in (0, 1)
    ]


@pytest.mark.nightly
def test_two_containers_train_one_job_are_stopped_and_go_on_bit_for_bit(containers, work, user) -> None:
    """`docker stop` of one container stops the job: the ranks agree, save, and leave with 75."""
    updates = ("trainer.max_updates=600", "trainer.checkpoint_every=null", "trainer.evaluate_every=null")
    whole = [containers.wait(node) for node in _two(containers, work, user, "whole", *updates)]
    assert [node.code for node in whole] == [0, 0], whole
    assert json.loads((work / "runs/whole/result.json").read_text())["world_size"] == 2

    nodes = _two(containers, work, user, "cut", *updates)
    containers.wait_for_output(nodes[0], "\nupdate ")
    nodes[1].stop(timeout=60)
    cut = [containers.wait(node, 60) for node in nodes]
    assert [node.code for node in cut] == [75, 75], cut
    folder = RunFolder(work / "runs" / "cut")
    (checkpoint,) = list_checkpoints(folder.checkpoints)
    assert 0 < checkpoint.updates < 600
    assert checkpoint.damage() is None

    resumed = [containers.wait(node) for node in _two(containers, work, user, "cut", "resume=auto", *updates)]
    assert [node.code for node in resumed] == [0, 0], resumed
    assert f"resumed cut after update {checkpoint.updates}" in resumed[0].out
    assert final_hashes(folder) == final_hashes(RunFolder(work / "runs" / "whole"))


@pytest.mark.parametrize("number", in_every_push(("SIGTERM", "SIGUSR1"), "SIGTERM"))
def test_a_signal_reaches_the_trainer_through_tini(number: str, containers, work, user) -> None:
    container = containers.start(*tiny("signalled", *LONG), work=work, user=f"{user}:{user}")
    containers.wait_for_output(container, "\nupdate ")
    container.kill(number)
    ended = containers.wait(container, 60)
    assert ended.code == 75, ended.out + ended.err
    (checkpoint,) = list_checkpoints(work / "runs" / "signalled" / "checkpoints")
    assert checkpoint.damage() is None


def test_docker_s_own_shared_memory_is_too_small_for_loader_workers(containers, work, user) -> None:
    """64 MiB: torch's workers would die of "Bus error" somewhere in the first epoch."""
    options = {"work": work, "user": f"{user}:{user}"}
    refused = containers.run(*tiny("small", "num_workers=2"), **options)
    assert refused.code == 2, refused.out
    assert "64 MiB" in refused.err
    assert "--shm-size=" in refused.err
    assert "--ipc=host" in refused.err
    assert not (work / "runs").exists()
    trained = containers.run(*tiny("large", "num_workers=2"), shm_size="1g", **options)
    assert trained.code == 0, trained.out + trained.err


@pytest.mark.parametrize(
    ("limit", "words", "code", "said"),
    [
        pytest.param({"pids_limit": 12}, ("devices=2",), 2, "may have 12 of them", id="too-few-processes"),
        pytest.param({"nano_cpus": 500_000_000}, (), 0, "a quota of 0.5", id="half-a-cpu"),
    ],
)
def test_limits_of_a_container_are_read(limit: dict, words: tuple[str, ...], code: int, said: str, containers) -> None:
    done = containers.run("plan", *words, **limit)
    assert done.code == code, done.out + done.err
    assert said in done.out + done.err
    assert "Traceback" not in done.err


def test_a_folder_that_cannot_be_written_offers_no_mount_of_the_host(containers, tmp_path) -> None:
    done = containers.run(*tiny("odd", train=("train",)), work=tmp_path / "odd")
    assert done.code != 0
    assert "--user" in done.err
    assert "-v /" not in done.err
