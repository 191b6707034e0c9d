"""The image on this machine's GPUs; a GPU is there if a container that asks for all of them sees one.

NOETHER_REQUIRE_GPU=1, for a GPU runner, makes a failure of what is skipped elsewhere.
"""

import json
import os

import pytest

from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder

docker = pytest.importorskip("docker")
from images.containers_of_tests import tiny  # noqa: E402

pytestmark = pytest.mark.slow

PROBE = "import torch; print(torch.cuda.device_count())"


@pytest.fixture
def gpu_options(containers, work, user) -> dict:
    """The options of a container that has every GPU."""
    options = {
        "device_requests": [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])],
        "work": work,
        "user": f"{user}:{user}",
        "ipc_mode": "host",
    }
    try:
        seen = containers.run("-c", PROBE, entrypoint=["/opt/venv/bin/python3", "-I"], **options)
        obstacle = (
            "" if seen.out.strip().isdigit() and int(seen.out) else f"a container sees no GPU: {seen.out}{seen.err}"
        )
    except docker.errors.APIError as error:
        obstacle = f"no GPU for containers: {error.explanation}"
    if obstacle:
        (pytest.fail if os.environ.get("NOETHER_REQUIRE_GPU") == "1" else pytest.skip)(obstacle)
    return options


def on_gpu(name: str, *overrides: str) -> list[str]:
    return tiny(name, "accelerator=gpu", *overrides)


CASES = {
    "one-update-on-one-gpu": ("devices=1", "trainer.max_updates=1"),
    "nccl-ranks-on-every-gpu": ("devices=null", "trainer.effective_batch_size=8", "trainer.max_updates=2"),
    "bf16": ("devices=1", "trainer.precision=bf16", "trainer.max_updates=2"),
    "torch-compile": ("devices=1", "trainer.compile=true", "trainer.max_updates=2"),
}


@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES.keys())
def test_it_trains(overrides, containers, gpu_options, work) -> None:
    done = containers.run(*on_gpu("gpu", *overrides), limit_s=600, **gpu_options)
    assert done.code == 0, done.out + done.err
    found = json.loads(RunFolder(work / "runs" / "gpu").environment.read_text())
    assert found["driver"]
    assert found["nccl"]


def test_it_goes_on(containers, gpu_options, work) -> None:
    for updates in (2, 4):
        words = on_gpu("again", "devices=1", "resume=auto", f"trainer.max_updates={updates}")
        done = containers.run(*words, limit_s=300, **gpu_options)
        assert done.code == 0, done.out + done.err
    last = list_checkpoints(work / "runs" / "again" / "checkpoints")[-1]
    assert (last.updates, last.damage()) == (4, None)
