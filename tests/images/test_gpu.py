"""The image on a simulated GPU, and on this machine's GPUs if a container can see a GPU.

With NOETHER_REQUIRE_GPU=1, which a runner with a GPU sets, the tests fail where they would otherwise be skipped.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import REPOSITORY
from processes import GPU, lacking

from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder

docker = pytest.importorskip("docker")
from images.containers_of_tests import tiny  # noqa: E402

pytestmark = pytest.mark.slow

# The image has no pytest. The pytest of this machine is pure Python, so it can be mounted.
SPECS = [find_spec(name) for name in ("pytest", "_pytest", "py", "pluggy", "iniconfig")]
PYTEST = [Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin) for spec in SPECS]
PROBE = "import torch; print(torch.cuda.device_count())"


@pytest.mark.nightly
def test_an_update_traced_on_a_gpu_that_does_not_exist(containers, work, own) -> None:
    """In an image with CUDA, tests/gpu/test_fake_gpu.py passes; in one without, all skipped tests give one reason."""
    mounts = {path: path.name for path in PYTEST} | {REPOSITORY / "tests" / "gpu": "tests/gpu"}
    containers.run(
        *("-m", "pytest", "--quiet", "-p", "no:cacheprovider", "--rootdir=/more", "--junitxml=/work/results.xml"),
        "/more/tests/gpu/test_fake_gpu.py",
        entrypoint=["/opt/venv/bin/python3"],
        environment={"PYTHONPATH": "/more", "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": "/work/cache"},
        volumes={str(path): {"bind": f"/more/{inside}", "mode": "ro"} for path, inside in mounts.items()},
        limit_s=900,
        code=0,
        **own,
    )
    cases = list(ElementTree.parse(work / "results.xml").iter("testcase"))
    reasons = {skipped.attrib["message"] for case in cases for skipped in case.iter("skipped")}
    flavour = containers.client.images.get(containers.image).labels["noether.flavour"]
    assert len(cases) > 30
    assert len(reasons) == (flavour == "cpu"), reasons


@pytest.fixture
def gpu_options(containers, own) -> dict:
    """Return the options of a container that can use every GPU."""
    gpus = docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])
    options = {"device_requests": [gpus], "ipc_mode": "host", **own}
    try:
        seen = containers.run("-c", PROBE, entrypoint=["/opt/venv/bin/python3", "-I"], **options)
        has_any = seen.out.strip().isdigit() and int(seen.out)
        obstacle = "" if has_any else f"a container sees no GPU: {seen.out}{seen.err}"
    except docker.errors.APIError as error:
        obstacle = f"no GPU for containers: {error.explanation}"
    if obstacle:
        lacking(obstacle, GPU)
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
    containers.run(*on_gpu("gpu", *overrides), limit_s=600, **gpu_options, code=0)
    found = json.loads(RunFolder(work / "runs" / "gpu").environment.read_text())
    assert found["driver"]
    assert found["nccl"]


def test_it_goes_on(containers, gpu_options, work) -> None:
    for updates in (2, 4):
        words = on_gpu("again", "devices=1", "resume=auto", f"trainer.max_updates={updates}")
        containers.run(*words, limit_s=300, **gpu_options, code=0)
    last = list_checkpoints(work / "runs" / "again" / "checkpoints")[-1]
    assert (last.updates, last.damage()) == (4, None)
