"""Faults that launchers of training are known for, one test each, by name. Heavier proofs stand in the rooms' tests."""

import contextlib
import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest
from conftest import Finished, final_hashes

from noether.checkpoints.format import list_checkpoints
from noether.data.order import GlobalOrder
from noether.environments.devices import DeviceInventory, read_mask
from noether.environments.driver import Gpu
from noether.environments.endpoint import hold_port
from noether.environments.launch_context import LaunchContext
from noether.environments.placement import Device, Endpoint, LaunchRequest
from noether.environments.rendezvous import derived_port
from noether.environments.slurm.placement import slurm_placement
from noether.errors import RequestError
from noether.runs.folder import RunFolder

CPU = DeviceInventory("cpu", (Device("cpu"),), "2 usable cores", 2)
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS": "4",
    "SLURM_TASKS_PER_NODE": "3,1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
}


def plan(done: Finished) -> dict:
    assert done.code == 0, done.err
    found: dict = json.loads(done.out)
    return found


@pytest.mark.parametrize("mask", ["2,3", "GPU-aa,GPU-bb", "MIG-cc"], ids=["indices", "uuids", "mig"])
def test_fault_1_the_device_mask_is_ignored_or_its_uuids_rejected(mask: str) -> None:
    gpus = [Gpu(0, "GPU-aa"), Gpu(1, "GPU-bb"), Gpu(2, "GPU-dd"), Gpu(3, "GPU-ee", ("MIG-cc",))]
    devices = read_mask(mask, gpus, f"CUDA_VISIBLE_DEVICES={mask}")
    assert [device.name for device in devices] == mask.split(",")
    assert [device.index for device in devices] == list(range(len(devices))), "counted within the mask, as torch does"


@pytest.mark.slow
def test_fault_2_several_cpu_processes_train_different_models(train) -> None:
    """On averaged gradients two ranks must end where one does."""
    proof = ("trainer.precision=float64", "optimizer=sgd", "trainer.max_updates=2")
    one, two = train("one", *proof), train("two", *proof, "devices=2")
    results = [json.loads(folder.result.read_text()) for folder in (one, two)]
    assert [result["world_size"] for result in results] == [1, 2]
    from safetensors.torch import load_file

    first, second = (load_file(list_checkpoints(run.checkpoints)[-1].path / "model.safetensors") for run in (one, two))
    assert max(float((first[key] - second[key]).abs().max()) for key in first) < 1e-10


def test_fault_3_ntasks_without_ntasks_per_node_becomes_silent_duplicates() -> None:
    placement = slurm_placement(LaunchRequest(accelerator="cpu"), LaunchContext(STEP, CPU, "n2"))
    assert placement is not None
    assert (placement.world_size, placement.workers[0].rank, placement.node_rank) == (4, 3, 1)


def test_fault_4_a_bare_batch_script_hangs_for_tasks_that_nobody_starts(noether) -> None:
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    done = noether("train", "accelerator=cpu", timeout=60, **{**batch, "SLURM_PROCID": "0", "SLURM_NODEID": "0"})
    assert done.code == 2
    assert "srun noether train" in done.err


def test_fault_5_one_visible_gpu_for_each_task_is_refused() -> None:
    one = DeviceInventory("cuda", (Device("cuda", 0, "0"),), "CUDA_VISIBLE_DEVICES=0", 8)
    environ = {**STEP, "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_LOCALID": "1"}
    environ |= {"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "2"}
    placement = slurm_placement(LaunchRequest(accelerator="gpu"), LaunchContext(environ, one, "n2"))
    assert placement is not None
    assert [str(worker.device) for worker in placement.workers] == ["cuda:0"]
    assert "peer-to-peer" in placement.warnings[0]


def test_fault_6_the_largest_batch_of_a_device_is_ignored(noether) -> None:
    sizes = ("trainer.effective_batch_size=12", "trainer.max_batch_size=4")
    batch = plan(noether("plan", "--json", "accelerator=cpu", "devices=2", *sizes))["batch"]
    assert batch == {"effective": 12, "per_rank": 6, "micro": batch["micro"], "accumulation_steps": 2}
    assert batch["micro"] <= 4, "of each device, and with no other flag"


@pytest.mark.slow
@pytest.mark.parametrize("heard_by", ["every rank", "rank 1 alone"])
def test_fault_7_ranks_stop_at_different_updates_and_hang(heard_by, start, tmp_path) -> None:
    folder = RunFolder(tmp_path / "run")
    run = start(
        *("train", "--hp", "tests/tiny.yaml", f"output_path={tmp_path}", "run_id=run", "devices=2"),
        *("trainer.max_updates=100000", "trainer.log_every=1 updates", "trainer.checkpoint_every=9999 epochs"),
        "trainer.evaluate_every=9999 epochs",  # An evaluation would keep a checkpoint of the best.
    )
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("update "):
            break
    os.kill(run.pid if heard_by == "every rank" else writer_of(folder.logs / "rank-1.log"), signal.SIGTERM)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 75, out + err
    last = [re.findall(r"^update +(\d+)/", (folder.logs / f"rank-{rank}.log").read_text(), re.M)[-1] for rank in (0, 1)]
    stopped = json.loads(folder.stopped.read_text())
    (checkpoint,) = list_checkpoints(folder.checkpoints)
    assert stopped["reason"] == "SIGTERM"
    assert [int(update) for update in last] == [stopped["update"]] * 2 == [checkpoint.updates] * 2


def writer_of(log: Path) -> int:
    """The process whose standard output is a file."""
    for link in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            if link.readlink() == log:
                return int(link.parts[2])
    raise AssertionError(f"nobody writes {log}")


def test_fault_8_the_order_of_samples_ignores_the_seed_and_is_not_restored() -> None:
    order, again, other = (GlobalOrder(20, 4, seed) for seed in (1, 1, 2))
    whole = [order.global_batch(update) for update in range(10)]
    assert [again.global_batch(update) for update in range(5, 10)] == whole[5:], "resumed at update 5"
    assert other.global_batch(0) != whole[0]


def test_fault_8_checkpoints_are_half_written_and_metrics_come_at_the_end(train) -> None:
    run = train("run", "trainer.max_updates=2", "trainer.log_every=1 updates")
    assert final_hashes(run)
    assert not list(run.checkpoints.glob("*partial*"))
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [row["update"] for row in rows if row["kind"] == "training"] == [1, 2]


def test_fault_9_a_random_port_is_not_held_and_two_steps_of_a_job_collide() -> None:
    assert derived_port(7, 0) != derived_port(7, 1)
    held = hold_port(Endpoint("127.0.0.1", 0))
    try:
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", held.endpoint.port))
        with pytest.raises(RequestError, match="is taken by another program"):
            hold_port(held.endpoint)
    finally:
        held.close()


def test_fault_10_a_wrong_configuration_is_a_traceback(noether) -> None:
    done = noether("train", "trainer.max_updates=soon")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert "trainer.max_updates cannot be soon" in done.err
