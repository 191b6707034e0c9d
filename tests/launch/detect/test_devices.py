"""Devices are counted, chosen by valid names and reported; invalid names are refused."""

import pytest
from placing import place, step

from noether.common.cpus import UsableCpus, read_cpus
from noether.common.errors import ExitCode
from noether.launch.detect.devices import choose_devices, find_devices, granted_gpus
from noether.launch.detect.driver import Gpu, nvml_gpus
from noether.launch.detect.placement import Device, DeviceInventory, LaunchRequest
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts
from tests.refusal import refusal, refusal_with

A, B, C = "GPU-8932f937-d72c", "GPU-8932aaaa-0000", "GPU-1f2e3d4c-b5a6"
MIG_1, MIG_2 = "MIG-c6d4f1ef-42e4-5de3", "MIG-d9a47cfb-d1f2-d08c"
FOUR = [Gpu(0, A), Gpu(1, B), Gpu(2, C), Gpu(3, "GPU-77777777-7777")]
DIVIDED = [Gpu(0, A, (MIG_1, MIG_2)), Gpu(1, B)]


def untouchable() -> list[Gpu] | None:
    """Fail the test: this driver must not be queried."""
    raise AssertionError("the driver was asked")


def found(mask: str | None, gpus: list[Gpu] | None, accelerator: str = "auto", system: str = "Linux-x86_64"):
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    return find_devices(LaunchRequest(accelerator), environ, lambda: gpus, system=system)


@pytest.mark.parametrize(
    ("mask", "gpus", "names"),
    [
        pytest.param(None, FOUR, ["0", "1", "2", "3"], id="no mask"),
        pytest.param("2,3", FOUR, ["2", "3"], id="CUDA_VISIBLE_DEVICES=2,3 is read"),
        pytest.param("3,0", FOUR, ["3", "0"], id="the mask's order, not the driver's"),
        pytest.param(f"{C},{A}", FOUR, [C, A], id="UUIDs are accepted"),
        pytest.param(A.upper().replace("GPU", "gpu"), FOUR, [A.upper().replace("GPU", "gpu")], id="UUID case"),
        pytest.param(MIG_2, DIVIDED, [MIG_2], id="a MIG id is no number"),
        pytest.param("MIG-d9", DIVIDED, ["MIG-d9"], id="MIG id cut where still unique"),
        pytest.param(None, DIVIDED, [MIG_1], id="CUDA shows one MIG instance, and no GPU beside it"),
    ],
)
def test_visible_cuda_devices(mask: str | None, gpus: list[Gpu], names: list[str]) -> None:
    inventory = found(mask, gpus)
    assert inventory.kind == "cuda"
    assert [device.name for device in inventory.devices] == names
    # torch numbers the devices from 0 within the mask.
    assert [str(device) for device in inventory.devices] == [f"cuda:{i}" for i in range(len(names))]
    assert (mask is None) or inventory.evidence == f"CUDA_VISIBLE_DEVICES={mask}"


@pytest.mark.parametrize(
    ("mask", "gpus", "words"),
    [
        pytest.param("0,7", FOUR, ["7 names no device of this machine", "0 GPU-8932f937"], id="out of range"),
        pytest.param("2,3", FOUR[:2], ["2 names no device"], id="the host's numbers inside a container"),
        pytest.param("0,0", FOUR, ["names 0 twice"], id="twice"),
        pytest.param("0,1", [Gpu(0, "", fault="lost"), Gpu(1, "", fault="lost")], ["0, 1 of 2"], id="both are lost"),
        pytest.param("GPU-8932", FOUR, ["GPU-8932 names 2 devices"], id="cut too far"),
        pytest.param(f"0,{C}", FOUR, ["mixes indices, UUIDs"], id="mixed"),
        pytest.param("0,-1,1", FOUR, ["names '-1'"], id="CUDA would cut at -1"),
        pytest.param("0,,1", FOUR, ["names ''"], id="empty entry"),
        pytest.param("MIG-ffff", DIVIDED, ["names no device"], id="no such MIG instance"),
        pytest.param(f"{MIG_1},{MIG_2}", DIVIDED, ["several MIG", "=MIG-c6d4f1ef"], id="CUDA shows one MIG"),
    ],
)
def test_a_mask_that_cuda_would_cut_is_refused(mask: str, gpus: list[Gpu], words: list[str]) -> None:
    with refusal_with(*words) as caught:
        found(mask, gpus)
    assert f"CUDA_VISIBLE_DEVICES={mask}" in caught.value.seen


@pytest.mark.parametrize(
    ("accelerator", "mask", "gpus", "system", "kind"),
    [
        pytest.param("auto", None, FOUR, "Linux-x86_64", "cuda", id="auto: CUDA first"),
        pytest.param("gpu", "1", FOUR, "Linux-x86_64", "cuda", id="gpu"),
        pytest.param("auto", "", FOUR, "Linux-x86_64", "cpu", id="auto: empty mask"),
        pytest.param("auto", "NoDevFiles", FOUR, "Linux-x86_64", "cpu", id="auto: Slurm's mask of no GPU"),
        pytest.param("auto", None, None, "Linux-x86_64", "cpu", id="auto: no driver"),
        pytest.param("auto", None, [], "Linux-x86_64", "cpu", id="auto: a driver and no GPU"),
        pytest.param("auto", None, None, "Darwin-arm64", "mps", id="auto: Apple silicon"),
        pytest.param("mps", None, None, "Darwin-arm64", "mps", id="mps"),
    ],
)
def test_accelerator(accelerator: str, mask: str | None, gpus: list[Gpu] | None, system: str, kind: str) -> None:
    inventory = found(mask, gpus, accelerator, system)
    assert inventory.kind == kind
    assert kind == "cuda" or inventory.devices == (Device(kind),)
    assert inventory.cpus == read_cpus()
    if accelerator == "auto" and kind == "cpu":
        assert "CUDA_VISIBLE_DEVICES" in inventory.evidence


def test_accelerator_cpu_asks_no_driver() -> None:
    inventory = find_devices(LaunchRequest("cpu"), {"CUDA_VISIBLE_DEVICES": "nonsense"}, untouchable)
    assert inventory.kind == "cpu"


@pytest.mark.parametrize(
    ("accelerator", "mask", "gpus", "system", "words"),
    [
        pytest.param("gpu", None, None, "Linux-x86_64", ["no NVIDIA driver", "accelerator=cpu"], id="driver"),
        pytest.param("gpu", None, [], "Linux-x86_64", ["lists no GPU", "accelerator=cpu"], id="no GPU"),
        pytest.param("auto", "0,1", None, "Linux-x86_64", ["granted", "accelerator=cpu"], id="granted"),
        pytest.param("gpu", None, None, "Darwin-arm64", ["accelerator=mps"], id="Apple silicon has mps"),
        pytest.param("mps", None, None, "Linux-x86_64", ["Linux-x86_64", "accelerator=auto"], id="mps on Linux"),
    ],
)
def test_an_absent_accelerator_is_refused(accelerator: str, mask, gpus, system: str, words: list[str]) -> None:
    with refusal_with(*words):
        found(mask, gpus, accelerator, system)


@pytest.mark.parametrize("override", ["0,1,2,3", "GPU-aa,GPU-bb"])
def test_visible_devices_plans_for_another_machine(override: str) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "9"}
    inventory = find_devices(LaunchRequest(visible_devices=override), environ, untouchable)
    assert [device.name for device in inventory.devices] == override.split(",")
    assert inventory.evidence == f"--visible-devices {override}"


@pytest.mark.parametrize("override", ["0,0", "0,x", "MIG-a,MIG-b"])
def test_visible_devices_is_read_as_strictly_as_a_mask(override: str) -> None:
    with refusal_with("--visible-devices"):
        find_devices(LaunchRequest(visible_devices=override), {}, untouchable)


CORES_8 = UsableCpus(tuple(range(8)), 8)


def masked(*names: str) -> DeviceInventory:
    devices = tuple(Device("cuda", i, name) for i, name in enumerate(names))
    return DeviceInventory("cuda", devices, f"CUDA_VISIBLE_DEVICES={','.join(names)}", CORES_8)


CUDA_4, CUDA_UUIDS = masked("2", "3", "5", "7"), masked(A, B, C)
CPU_2 = DeviceInventory("cpu", (Device("cpu"),), "2 usable cores", UsableCpus((0, 1), 2))
MPS = DeviceInventory("mps", (Device("mps"),), "Apple silicon", CORES_8)


@pytest.mark.parametrize(
    ("inventory", "devices", "indices"),
    [
        pytest.param(CUDA_4, None, [0, 1, 2, 3], id="all"),
        pytest.param(CUDA_4, "2", [0, 1], id="a number"),
        pytest.param(CUDA_4, "0,1", [0, 1], id="a list counts within the mask"),
        pytest.param(CUDA_4, "3, 0", [3, 0], id="the order written"),
        pytest.param(CUDA_UUIDS, f"{C},{A}", [2, 0], id="by UUID"),
        pytest.param(CPU_2, None, [0], id="cpu: one worker"),
        pytest.param(CPU_2, "2", [0, 1], id="cpu: a number of workers"),
        pytest.param(CPU_2, "4", [0, 1, 2, 3], id="cpu: two workers a core"),
        pytest.param(MPS, None, [0], id="mps"),
    ],
)
def test_choose_devices(inventory: DeviceInventory, devices: str | None, indices: list[int]) -> None:
    chosen = choose_devices(inventory, devices)
    assert [device.index for device in chosen] == indices
    assert {device.kind for device in chosen} == {inventory.kind}
    if inventory.kind == "cuda":
        assert all(device in inventory.devices for device in chosen)


@pytest.mark.parametrize(
    ("inventory", "devices", "words"),
    [
        pytest.param(CUDA_4, "7", ["devices=7 requests more than are visible", "4 visible cuda", "devices=4"], id="7"),
        pytest.param(CUDA_4, "0,7", ["names 7", "0 (2), 1 (3), 2 (5), 3 (7)"], id="a physical number"),
        pytest.param(CUDA_4, "0,0", ["twice"], id="twice"),
        pytest.param(CUDA_UUIDS, f"0,{A}", ["twice"], id="twice, by index and by UUID"),
        pytest.param(CUDA_4, "0", ["chooses no device"], id="none"),
        pytest.param(CUDA_4, "-1", ["chooses no device"], id="-1 does not mean all"),
        pytest.param(CUDA_4, "0,,1", ["chooses no device"], id="a hole in the list"),
        pytest.param(CPU_2, "5", ["5 CPU workers for 2 cores", "1 to 4"], id="cpu: over two a core"),
        pytest.param(CPU_2, "GPU-8932,", ["not a number of CPU workers"], id="cpu: a GPU"),
        pytest.param(MPS, "2", ["1 visible mps device"], id="mps: one device"),
    ],
)
def test_a_choice_that_is_not_here_is_refused(inventory: DeviceInventory, devices: str, words: list[str]) -> None:
    with refusal_with(*words) as caught:
        choose_devices(inventory, devices)
    assert f"devices={devices}" in caught.value.seen


def test_the_real_driver_answers_none_or_uuids() -> None:
    gpus = nvml_gpus()
    assert gpus is None or all(gpu.uuid.startswith("GPU-") for gpu in gpus)


(STEP,) = step([1])
SIF = {"APPTAINER_CONTAINER": "/images/noether.sif"}
APPTAINER, DOCKER = ProcessFacts(container="apptainer"), ProcessFacts(container="docker")
GPU_HOST_SEEN_FROM_DOCKER = ProcessFacts(container="docker", nvidia_kernel=True)


def granted(environ: dict[str, str], facts: ProcessFacts, accelerator: str = "auto"):
    return place(environ, LaunchRequest(accelerator), False, facts=facts)


@pytest.mark.parametrize(
    ("environ", "facts", "seen", "fix"),
    [
        pytest.param({**STEP, **SIF, "SLURM_STEP_GPUS": "0,1"}, APPTAINER, "SLURM_STEP_GPUS=0,1",
                     "srun apptainer exec --nv noether.sif train", id="apptainer in a step, no --nv"),
        pytest.param({**STEP, "SLURM_JOB_GPUS": "0"}, NOTHING_KNOWN, "SLURM_JOB_GPUS=0", "nvidia-smi", id="GPU 0"),
        pytest.param({**SIF, "CUDA_VISIBLE_DEVICES": "0,1"}, APPTAINER, "CUDA_VISIBLE_DEVICES=0,1",
                     "apptainer exec --nv noether.sif", id="apptainer outside of jobs"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "all"}, GPU_HOST_SEEN_FROM_DOCKER, "/proc/driver/nvidia/gpus",
                     "docker run --gpus all", id="docker without --gpus on a machine with GPUs"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "GPU-89"}, ProcessFacts(container="podman"),
                     "NVIDIA_VISIBLE_DEVICES=GPU-89", "podman run --gpus all", id="podman"),
    ],
)  # fmt: skip
def test_granted_gpus_that_do_not_answer_are_refused(environ, facts, seen: str, fix: str) -> None:
    with refusal(seen=seen, fix=fix) as caught:
        granted(environ, facts)
    assert caught.value.exit_code == ExitCode.REQUEST
    assert "accelerator=cpu" in caught.value.fix
    assert granted(environ, facts, "cpu").workers[0].device.kind == "cpu"


@pytest.mark.parametrize(
    ("environ", "facts"),
    [
        pytest.param({}, NOTHING_KNOWN, id="a laptop"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "all"}, DOCKER, id="the image's own ENV on a machine without GPUs"),
        pytest.param({**STEP, "SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, NOTHING_KNOWN,
                     id="a step of none in a job with GPUs"),
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, ProcessFacts(nvidia_kernel=True), id="the user hides them"),
        pytest.param({**STEP, "SLURM_GPUS_ON_NODE": "0"}, NOTHING_KNOWN, id="a number of none"),
        pytest.param({**STEP, "SLURM_STEP_GPUS": "0", "ROCR_VISIBLE_DEVICES": "0"}, NOTHING_KNOWN, id="AMD's variable"),
        pytest.param({**STEP, "SLURM_STEP_GPUS": "0"}, ProcessFacts(amd_driver=True), id="AMD's driver"),
    ],
)  # fmt: skip
def test_nothing_else_is_refused(environ, facts) -> None:
    assert granted_gpus(environ, facts) == ""
    assert granted(environ, facts).workers[0].device.kind == "cpu"


def test_a_gpu_that_is_asked_for_in_a_container_names_the_container_s_option() -> None:
    with refusal(fix="apptainer exec --nv noether.sif"):
        granted({**STEP, **SIF}, APPTAINER, "gpu")
