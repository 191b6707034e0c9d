"""Test that the data solve the heat equation, and that a short training run learns to predict them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from my_project.data import LENGTH, MODES, POSITIONS, TIME, Rods, temperatures
from my_project.model import Perceptron
from my_project.task import Cooling

PROJECT = Path(__file__).resolve().parent.parent


def test_the_temperatures_solve_the_heat_equation() -> None:
    amplitudes, diffusivity = np.full((1, len(MODES)), 0.5), np.array([[1e-4]])
    before, now, after = (temperatures(amplitudes, diffusivity, time)[0] for time in (299.0, 300.0, 301.0))
    spacing = POSITIONS[1] - POSITIONS[0]
    curvature = (now[2:] - 2 * now[1:-1] + now[:-2]) / spacing**2
    rate = (after - before)[1:-1] / 2
    assert np.allclose(rate, 1e-4 * curvature, rtol=0.02, atol=1e-6)
    assert np.allclose(now[[0, -1]], 0.0), "the ends stay at the same temperature"


def test_the_first_mode_decays_by_its_rate() -> None:
    only_first, diffusivity = np.eye(1, len(MODES)), np.array([[1e-4]])
    ratio = temperatures(only_first, diffusivity, TIME)[0, 32] / temperatures(only_first, diffusivity, 0.0)[0, 32]
    assert ratio == pytest.approx(np.exp(-1e-4 * (np.pi / LENGTH) ** 2 * TIME))


def test_splits_are_repeatable_and_differ() -> None:
    first, again, test = Rods("train", None, rods=20), Rods("train", None, rods=20), Rods("test", None, rods=20)
    assert (len(first), len(test)) == (20, 2)
    assert torch.equal(first[0]["initial"], again[0]["initial"])
    assert not torch.equal(first[0]["initial"], test[0]["initial"])


def test_every_parameter_gets_a_gradient() -> None:
    rods = Rods("train", None, rods=4)
    batch = {key: torch.stack([rods[index][key] for index in range(4)]) for key in rods[0]}
    model, task = Perceptron(width=8), Cooling()
    predictions = model(batch)
    task.loss(predictions, batch).backward()
    assert predictions["later"].shape == batch["later"].shape
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    assert {len(values) for values in task.metrics(predictions, batch).values()} == {4}


def test_a_short_training_is_better_than_to_predict_no_change(tmp_path: Path) -> None:
    words = ["--hp", "settings.yaml", "trainer.max_epochs=2", f"output_path={tmp_path}", "run_id=short"]
    command = [sys.executable, "-m", "noether", "train", *words]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "short" / "result.json").read_text())
    test = Rods("test", None).samples
    no_change = (test["initial"] - test["later"]).square().mean(dim=1).sqrt().mean().item()
    assert result["metrics"]["rms_error_K"] < 0.5 * no_change
