"""Optimisers and schedules named by dotted path: runs train and resume with them, and unusable ones are refused."""

from pathlib import Path

import pytest
import torch
from conftest import TINY, final_hashes
from torch import nn

from noether.common.dotted_path import code_granted
from noether.config.optimizer import CustomOptimizerConfig, CustomScheduleConfig
from noether.runs.folder import RunFolder
from noether.runs.records import read_metrics
from noether.training.optimizers import build_optimizer
from noether.training.run_length import RunLength
from noether.training.schedules import build_schedule
from tests.refusal import refusal

OWN = """
import torch
from torch.optim import Optimizer


class Careful(Optimizer):
    '''Gradient descent by the sign, ever slower: keeps a number of each parameter and one of each group.'''

    def __init__(self, params, lr, slower=0.9):
        super().__init__(params, {"lr": lr, "slower": slower, "length": 1.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["length"] *= group["slower"]
            for parameter in group["params"]:
                state = self.state[parameter]
                state["made"] = state.get("made", 0.0) + 1 / 3
                parameter -= group["lr"] * group["length"] / state["made"] * parameter.grad.sign()


class NeedsAClosure(Careful):
    def step(self, closure):
        closure()


class CountsOnItself(Careful):
    def __init__(self, params, lr, start=0):
        super().__init__(params, lr)
        self.steps = start or torch.zeros(())

    def step(self):
        super().step()
        self.steps += 1


class AsksForTheDecay(Careful):
    def __init__(self, params, lr, weight_decay):
        super().__init__(params, lr)
        self.asked = weight_decay


class Still(Careful):
    def step(self):
        pass


class KeepsTexts(Careful):
    def step(self):
        super().step()
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["name"] = "weight"


class KeepsATensorOfTheGroup(Careful):
    def step(self):
        super().step()
        self.param_groups[0]["length"] = torch.tensor(1.0)


def no_optimiser(params, lr):
    return lambda: None


def halved(peak, updates, every=2):
    return lambda update: peak * 0.5 ** (update // every)


def no_function(peak, updates):
    return peak


def below_zero(peak, updates):
    return lambda update: peak * (1 - 2 * update / updates)


def tensors(peak, updates):
    return lambda update: torch.tensor(peak)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_steps.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_steps", raising=False)


UNUSABLE = {
    "needs-a-closure": ("own_steps.NeedsAClosure", {}, "optimizer-unusable", "step(closure)"),
    "moves-nothing": ("own_steps.Still", {}, "optimizer-unusable", "changes no weight"),
    "counts-on-itself": ("own_steps.CountsOnItself", {}, "optimizer-unusable", "self.steps: 0 before a step, and 1"),
    "counts-a-number": ("own_steps.CountsOnItself", {"start": 3}, "optimizer-unusable", "self.steps: 3 before"),
    "keeps-texts": ("own_steps.KeepsTexts", {}, "optimizer-unusable", "'name' of a parameter (3, 4): str"),
    "keeps-a-tensor-of-the-group": ("own_steps.KeepsATensorOfTheGroup", {}, "optimizer-unusable", "in param_groups"),
    "no-optimiser": ("own_steps.no_optimiser", {}, "component-wrong-class", "function"),
    "no-class": ("own_steps.Carefull", {}, "no-such-attribute", "own_steps"),
    "option-that-it-has-not": ("own_steps.Careful", {"slow": 1}, "component-option-unknown", "optimizer.slow=1"),
    "option-that-it-refuses": ("torch.optim.NAdam", {"betas": (2, 3)}, "optimizer-unusable", "Invalid beta"),
    "takes-no-rate": ("torch.nn.Linear", {}, "component-wrong-class", "Linear"),
}


@pytest.mark.parametrize(("kind", "options", "code", "words"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_optimiser_that_no_run_can_use_is_refused(kind, options, code, words) -> None:
    config = CustomOptimizerConfig(kind=kind, **options)
    with code_granted([kind]), refusal(code, seen=words):
        build_optimizer(config, nn.Linear(4, 3))


def test_an_optimiser_of_torch_takes_its_options_rate_and_decay() -> None:
    model = nn.Linear(4, 3)
    kind = "torch.optim.NAdam"
    config = CustomOptimizerConfig(kind=kind, learning_rate=0.2, weight_decay=0.1, betas=(0.8, 0.9))
    with code_granted([kind]):
        optimizer = build_optimizer(config, model)
    assert isinstance(optimizer, torch.optim.NAdam)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert {(group["lr"], group["betas"]) for group in optimizer.param_groups} == {(0.2, (0.8, 0.9))}
    assert not optimizer.state, "the trial must not change the optimiser"


def test_a_constructor_that_asks_for_the_weight_decay_is_given_it() -> None:
    config = CustomOptimizerConfig(kind="own_steps.AsksForTheDecay", weight_decay=0.1)
    with code_granted([config.kind]):
        assert build_optimizer(config, nn.Linear(4, 3)).asked == 0.1


LENGTH = RunLength(updates_per_epoch=5, total_updates=10, effective_batch_size=1)
LR = "torch.optim.lr_scheduler"
NO_SCHEDULES = {
    "no-function": ("own_steps.no_function", {}, "0.1, which cannot be called"),
    "below-zero": ("own_steps.below_zero", {}, "for update 6"),
    "tensors": ("own_steps.tensors", {}, "tensor(0.1000) for update 0"),
    "too-short": (f"{LR}.OneCycleLR", {"total_steps": 5}, "update 6 of 10: Tried to step 6 times"),
    "option-that-it-refuses": (f"{LR}.OneCycleLR", {"pct_start": 3}, "Expected float between 0 and 1 pct_start"),
    "an-object": (f"{LR}.SequentialLR", {"milestones": [3]}, "its schedulers, an object"),
    "a-mode-that-is-none": (f"{LR}.ReduceLROnPlateau", {"mode": "up"}, "mode up is unknown"),
}


@pytest.mark.parametrize(("kind", "options", "words"), NO_SCHEDULES.values(), ids=NO_SCHEDULES)
def test_what_is_no_schedule_is_refused(kind, options, words) -> None:
    with code_granted([kind]), refusal("schedule-unusable", seen=words):
        build_schedule(CustomScheduleConfig(kind=kind, **options), 0.1, LENGTH)


def test_a_cycle_of_momentum_is_refused_of_an_optimiser_that_has_none() -> None:
    kinds = "own_steps.Careful", f"{LR}.OneCycleLR"
    with code_granted(kinds), refusal("schedule-unusable", seen="Careful", fix="schedule.cycle_momentum=false"):
        optimizer = build_optimizer(CustomOptimizerConfig(kind=kinds[0]), nn.Linear(4, 3))
        build_schedule(CustomScheduleConfig(kind=kinds[1]), 0.1, LENGTH).set_momentum(optimizer, 0)


def test_an_own_schedule_takes_peak_options_and_warm_up() -> None:
    config = CustomScheduleConfig(kind="own_steps.halved", every=4, warmup="2 updates")
    with code_granted([config.kind]):
        schedule = build_schedule(config, 0.8, LENGTH)
    assert [schedule(update) for update in (0, 2, 4, 8)] == pytest.approx([0.8 / 3, 0.8, 0.4, 0.2])


OF_TORCH = "schedule.kind=torch.optim.lr_scheduler"
EACH = ("trainer.evaluate_every=1 updates", "trainer.checkpoint_every=1 updates", "trainer.log_every=1 updates")
WAYS = {
    "own": ("optimizer.kind=own_steps.Careful", "schedule.kind=own_steps.halved"),
    "rows-and-columns": ("optimizer.kind=torch.optim.Adafactor", "schedule.kind=own_steps.halved"),
    "cycled-momentum": ("optimizer=muon", f"{OF_TORCH}.OneCycleLR", "schedule.total_steps=8"),
    "plateau": ("devices=2", f"{OF_TORCH}.ReduceLROnPlateau", "schedule.threshold=0.5", "schedule.patience=0",
                "schedule.factor=0.5", *EACH),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_run_with_own_optimiser_and_schedule_goes_on_bit_for_bit(way: str, noether, tmp_path: Path) -> None:
    words = ["--hp", str(TINY), "output_path=runs", "optimizer.learning_rate=1e-3", *WAYS[way]]
    for name, more in (("whole", ()), ("cut", ("trainer.max_updates=3",)), ("cut", ("resume=auto",))):
        noether("train", *words, f"run_id={name}", *more, cwd=tmp_path, code=0)
    whole, cut = (RunFolder(tmp_path / "runs" / name) for name in ("whole", "cut"))
    assert final_hashes(cut) == final_hashes(whole)
    rates = [row["learning_rate"] for row in read_metrics(cut.metrics) if row["kind"] == "training"]
    if way == "plateau":
        assert rates == [1e-3, 1e-3, *(1e-3 * 0.5**update for update in range(1, 7))]
