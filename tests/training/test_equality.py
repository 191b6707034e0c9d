"""A resumed run warns if conditions have changed so that its results may differ in the last bits."""

import json
import os
import subprocess
import sys

import pytest
from conftest import TINY
from torch import nn

from noether.training.build import differences_of_resume

PLAIN = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))
NORMED = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.1))
HERE = {"threads": 1, "processor": "A", "cpu_capability": "AVX512", "device": "cpu"}
MADE = {"noether": "1", "packages": {"torch": "2.13.0", "numpy": "2", "scipy": "1", "rich": "1"}, "driver": None}
NOW = {"world_size": 2, "micro_batch_size": 4, "conditions": HERE, "provenance": MADE, "sources": {"own": "1"}}


def with_packages(**changed: object) -> dict:
    return {"provenance": MADE | {"packages": MADE["packages"] | changed}}


OTHER_CPU = {"conditions": HERE | {"cpu_capability": "AVX2", "processor": "B"}}
BY_RANK = NOW | {"config": {"trainer": {"across_ranks": "per_rank"}}}
DIFFERENCES = {
    "as-before": (NORMED, {}, ()),
    "ranks": (PLAIN, {"world_size": 4}, ("4 ranks before, 2 now",)),
    "ranks-and-such-layers": (NORMED, {"world_size": 4}, ("4 ranks", "BatchNorm and dropout")),
    "micro-batch": (PLAIN, {"micro_batch_size": 8}, ("micro-batches of 8 before, 4 now",)),
    "micro-batch-and-such-layers": (NORMED, {"micro_batch_size": 8}, ("micro-", "another micro-batch")),
    "threads": (PLAIN, {"conditions": HERE | {"threads": 8}}, ("threads 8 → 1:",)),
    "another-cpu": (PLAIN, OTHER_CPU, ("processor B → A, cpu_capability AVX2 → AVX512:",)),
    "another-torch": (PLAIN, with_packages(torch="2.12.0"), ("torch 2.12.0 → 2.13.0:",)),
    "its-own-code": (PLAIN, {"sources": {"own": "2"}}, ("the source code of own has changed",)),
    "modules-that-only-one-of-them-had": (PLAIN, {"sources": {"other": "2"}}, ()),
    "a-checkpoint-of-before-they-were-kept": (PLAIN, {"sources": None}, ()),
    "a-package-that-computes-nothing": (PLAIN, with_packages(rich="2"), ()),
}


def test_a_loss_of_each_rank_is_said() -> None:
    assert "a loss of each micro-batch" in differences_of_resume(NOW | {"world_size": 4}, BY_RANK, PLAIN)[-1]


@pytest.mark.parametrize(("model", "changes", "found"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_what_differs_is_said(model, changes, found) -> None:
    said = differences_of_resume(NOW | changes, NOW, model)
    assert len(said) == len(found)
    for part, sentence in zip(found, said, strict=True):
        assert part in sentence


def test_a_run_records_them_and_a_start_on_another_cpu_says_so_in_one_line(train, tmp_path) -> None:
    """ATEN_CPU_CAPABILITY simulates another kind of CPU. Torch reads it only once, so a separate process is started."""
    folder = train("moved", "trainer.max_updates=2")
    plan = json.loads(folder.plan.read_text())
    assert plan["conditions"]["threads"] == plan["threads"]["threads"]
    words = ["--hp", str(TINY), f"output_path={tmp_path}", "run_id=moved", "resume=auto", "trainer.max_updates=4"]
    command = [sys.executable, "-m", "noether", "train", *words, "trainer.max_batch_size=2"]
    environ = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    text = " ".join((done.stdout + done.stderr).split())
    capability = plan["conditions"]["cpu_capability"]
    assert f"cpu_capability {capability} → DEFAULT: results may be rounded differently" in text
    assert "micro-batches of 4 before, 2 now" in text
