"""The learning rates of schedules at the first update, at the end of warm-up, and at the last update."""

import json

import pytest
import torch

from noether.common.dotted_path import code_granted
from noether.config.optimizer import (
    AdamWConfig,
    ConstantConfig,
    CosineConfig,
    CustomScheduleConfig,
    OneCycleConfig,
    SGDConfig,
    StepConfig,
)
from noether.config.section import Interval
from noether.training.optimizers import build_optimizer
from noether.training.run_length import RunLength
from noether.training.schedules import build_schedule

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


BY_PATH = {
    "OneCycleLR": ({}, {"max_lr": 0.3, "total_steps": 100}),
    "OneCycleLR of epochs": ({"epochs": 10, "steps_per_epoch": 12, "cycle_momentum": False}, {"max_lr": 0.3}),
    "CyclicLR": ({"base_lr": 0.01, "mode": "triangular2"}, {"max_lr": 0.3}),
    "CosineAnnealingLR": ({"eta_min": 0.01}, {"T_max": 100}),
    "CosineAnnealingWarmRestarts": ({"T_0": 7}, {}),
    "MultiStepLR": ({"milestones": [10, 50], "gamma": 0.3}, {}),
    "PolynomialLR": ({"total_iters": 80, "power": 2}, {}),
}


@pytest.mark.parametrize("config", [AdamWConfig(learning_rate=0.3), SGDConfig(learning_rate=0.3, momentum=0.8)])
@pytest.mark.parametrize("name", BY_PATH)
def test_torch_s_own_class_gives_its_rates_and_momenta_bit_for_bit(name: str, config) -> None:
    options, filled_in = BY_PATH[name]
    kind = name.split()[0]
    own = CustomScheduleConfig(kind=f"torch.optim.lr_scheduler.{kind}", **options)
    with code_granted([own.kind]):
        schedule = build_schedule(own, 0.3, LENGTH)
    ours, theirs = (build_optimizer(config, torch.nn.Linear(1, 1)) for _ in range(2))
    reference = getattr(torch.optim.lr_scheduler, kind)(theirs, **options, **filled_in)
    for update in range(100):
        schedule.set_momentum(ours, update)
        kept, expected = ours.param_groups[0], theirs.param_groups[0]
        assert schedule(update) == expected["lr"]
        assert [kept.get("betas"), kept.get("momentum")] == [expected.get("betas"), expected.get("momentum")]
        theirs.step()
        reference.step()


@pytest.mark.parametrize(("better", "mode"), [("lower", "min"), ("higher", "max")])
def test_a_plateau_is_torch_s_and_goes_on_from_what_it_has_counted(better: str, mode: str) -> None:
    own = CustomScheduleConfig(
        kind="torch.optim.lr_scheduler.ReduceLROnPlateau", patience=1, cooldown=1, warmup="2 updates"
    )
    with code_granted([own.kind]):
        first, second = (build_schedule(own, 0.3, LENGTH, better) for _ in range(2))
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, patience=1, cooldown=1)
    metrics = [1.0, 0.5, 0.6, float("nan"), 0.7, 1.1, 1.2, 0.4, 0.4, 0.4, 1.3, 1.3]
    for at, metric in enumerate(metrics):
        first.evaluated(metric)
        reference.step(metric)
        assert first(9) == optimizer.param_groups[0]["lr"], at
    second.evaluated(*json.loads(json.dumps(metrics)))
    assert second(9) == first(9)
    assert second(0) == pytest.approx(0.1)
    assert second(9) < 0.3
