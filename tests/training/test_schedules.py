"""Learning rates at the points that matter: the first update, the end of warm-up, the last update."""

import pytest
import torch

from noether.config.optimizer import ConstantConfig, CosineConfig, OneCycleConfig, StepConfig
from noether.config.section import Interval
from noether.training.optimizers import build_schedule
from noether.training.run_length import RunLength

LENGTH = RunLength(updates_per_epoch=20, total_updates=100, effective_batch_size=8)

CASES = {
    "constant": (ConstantConfig(), {0: 1.0, 99: 1.0}),
    "constant-after-warm-up": (ConstantConfig(warmup=Interval(4, "updates")), {0: 0.2, 3: 0.8, 4: 1.0, 99: 1.0}),
    "cosine": (CosineConfig(final_learning_rate=0.1), {0: 1.0, 99: 0.1}),
    "cosine-half-way": (CosineConfig(), {0: 1.0, 99: 0.0}),
    "warm-up-cosine-in-percent": (
        CosineConfig(warmup=Interval(5, "%"), final_learning_rate=1e-6),
        {0: 1 / 6, 4: 5 / 6, 5: 1.0, 52: 0.5 + 0.5e-6, 99: 1e-6},
    ),
    "warm-up-of-one-epoch": (CosineConfig(warmup=Interval(1, "epochs")), {0: 1 / 21, 20: 1.0, 99: 0.0}),
    "step": (StepConfig(every=Interval(25, "%"), factor=0.1), {0: 1.0, 24: 1.0, 25: 0.1, 50: 0.01, 99: 0.001}),
}


@pytest.mark.parametrize(("config", "expected"), CASES.values(), ids=CASES.keys())
def test_schedule_values(config, expected) -> None:
    schedule = build_schedule(config, 1.0, LENGTH)
    assert {update: schedule(update) for update in expected} == pytest.approx(expected, rel=1e-12)


OF_TORCH = {
    "CosineAnnealingLR": (CosineConfig(), {"T_max": 99}, {"abs": 1e-12}),
    "OneCycleLR": (
        OneCycleConfig(rise=Interval(29, "updates"), final_division=1000.0),
        {"max_lr": 0.3, "total_steps": 100, "pct_start": 0.3, "final_div_factor": 1000.0},
        {"rel": 1e-9},
    ),
}


@pytest.mark.parametrize("name", OF_TORCH)
def test_it_is_torchs(name: str) -> None:
    config, options, tolerance = OF_TORCH[name]
    schedule = build_schedule(config, 0.3, LENGTH)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    reference = getattr(torch.optim.lr_scheduler, name)(optimizer, **options)
    for update in range(100):
        assert schedule(update) == pytest.approx(optimizer.param_groups[0]["lr"], **tolerance)
        optimizer.step()
        if update < 99:
            reference.step()
