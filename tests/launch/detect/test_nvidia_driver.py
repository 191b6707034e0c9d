"""Plan, train and doctor agree in each state of the NVIDIA driver, simulated by a stub of its library."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import REPOSITORY
from processes import find_program

HERE = Path(__file__).parent
EIGHT = [str(index) for index in range(8)]
Answer = list[str] | str
SITUATIONS: dict[str, tuple[str, str | None, Answer, str, str]] = {
    # id: the stub's state, CUDA_VISIBLE_DEVICES, the devices or the refusal's code, the doctor's level and words
    "eight-gpus": ("healthy", None, EIGHT, "ok", "8 GPUs without errors"),
    "two-of-them": ("healthy", "5,1", ["5", "1"], "ok", "8 GPUs"),
    "mig": ("mig", None, ["MIG-000003e8-1111-2222-3333-444444444444"], "ok", "2 GPUs"),
    "mig-by-index": ("mig", "0,1", ["MIG-000003e8-1111-2222-3333-444444444444"], "ok", "2 GPUs"),
    "mig-by-uuid-of-its-gpu": ("mig", "GPU-00000001", ["MIG-000003f2-1111-2222-3333-444444444444"], "ok", "2 GPUs"),
    "a-lost-gpu": ("lost", None, "gpu-lost", "error", "GPU 3 does not answer"),
    "a-lost-gpu-left-out": ("lost", "0,1", ["0", "1"], "error", "GPU 3 does not answer"),
    "a-lost-gpu-asked-for": ("lost", "2,3", "gpu-lost", "error", "GPU 3 does not answer"),
    "memory-errors": ("ecc", None, EIGHT, "error", "GPU 5: 2 uncorrected memory errors"),
    "gpus-of-other-jobs": ("not-ours", None, ["0", "1"], "ok", "2 GPUs"),
    "mismatch": ("mismatch", None, "driver-mismatch", "error", "NVML/RM version mismatch"),
    "unknown-error": ("unknown", None, "driver-fails", "error", "Unknown Error"),
    "not-loaded": ("not-loaded", None, [""], "warning", "Driver Not Loaded"),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stub of the driver's library; return its folder."""
    compiler = find_program("gcc", "gcc libc6-dev")
    folder = tmp_path_factory.mktemp("nvml")
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", "libnvidia-ml.so.1", str(HERE / "nvml_stub.c")]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    return folder


def ask(library: Path, folder: Path, *states: tuple[str, str | None]) -> list[dict[str, Any]]:
    """Return the results of plan, train and doctor for each pair (state of the stub, CUDA_VISIBLE_DEVICES)."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "SLURM_"))}
    environ |= {"LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, str(HERE / "nvml_answers.py"), *map(json.dumps, states)],
        env=environ, cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(states), done.stderr
    return told


@pytest.fixture(scope="module")
def told(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    states = [situation[:2] for situation in SITUATIONS.values()]
    return dict(zip(SITUATIONS, ask(library, tmp_path_factory.mktemp("asked"), *states), strict=True))


def check(told: dict[str, Any], expected: Answer, level: str, words: str) -> None:
    assert max(told["seconds"].values()) < 20, told["seconds"]
    for command in ("plan", "train"):
        answer = told[command]
        assert answer.get("devices", answer.get("code")) == expected, command
    assert [found for found in told["doctor"] if found[0] == level and words in found[1]], told["doctor"]
    if level == "ok":
        assert {found[0] for found in told["doctor"]} == {"ok"}


def test_a_driver_that_hangs_is_not_waited_for(library: Path, tmp_path: Path) -> None:
    """Each command waits only for the time limit in the settings: two seconds here, a minute by default."""
    told = ask(library, tmp_path, ("hang", None))[0]
    check(told, "driver-hangs", "error", "no answer within 2 s")
    assert told["seconds"]["plan"] >= 2


@pytest.mark.parametrize("situation", SITUATIONS)
def test_plan_train_and_doctor_give_one_answer(situation: str, told: dict[str, dict[str, Any]]) -> None:
    check(told[situation], *SITUATIONS[situation][2:])


CPU_TORCH = pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch is built with CUDA")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        pytest.param("healthy", ["[torch-without-cuda]", "accelerator=cpu"], marks=CPU_TORCH, id="torch without CUDA"),
        pytest.param("lost", ["export CUDA_VISIBLE_DEVICES=0,1,2,4,5,6,7 "], id="a lost GPU, which is left out"),
    ],
)
def test_a_refused_plan_shows_its_line(state: str, words: list[str], library: Path, tmp_path: Path) -> None:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_STUB": state, "PYTHONPATH": str(REPOSITORY)}
    plan = [sys.executable, "-m", "noether", "plan"]
    refused = subprocess.run(plan, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
    assert all(text in refused.stderr for text in words)
