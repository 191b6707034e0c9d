"""GPUs that were granted and do not answer are refused, with the line for this container; nothing else is."""

import placing
import pytest
from slurm_steps import step

from noether.common.errors import ExitCode, RequestError
from noether.launch.detect.devices import granted_gpus
from noether.launch.detect.placement import LaunchRequest
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts

(STEP,) = step([1])
SIF = {"APPTAINER_CONTAINER": "/images/noether.sif"}
APPTAINER, DOCKER = ProcessFacts(container="apptainer"), ProcessFacts(container="docker")
GPU_HOST_SEEN_FROM_DOCKER = ProcessFacts(container="docker", nvidia_kernel=True)


def place(environ: dict[str, str], facts: ProcessFacts, accelerator: str = "auto"):
    return placing.place(environ, LaunchRequest(accelerator), False, facts=facts)


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
    with pytest.raises(RequestError) as caught:
        place(environ, facts)
    assert caught.value.exit_code == ExitCode.REQUEST
    assert seen in caught.value.seen
    assert fix in caught.value.fix
    assert "accelerator=cpu" in caught.value.fix
    assert place(environ, facts, "cpu").workers[0].device.kind == "cpu"


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
    assert place(environ, facts).workers[0].device.kind == "cpu"


def test_a_gpu_that_is_asked_for_in_a_container_names_the_container_s_option() -> None:
    with pytest.raises(RequestError) as caught:
        place({**STEP, **SIF}, APPTAINER, "gpu")
    assert "apptainer exec --nv noether.sif" in caught.value.fix
