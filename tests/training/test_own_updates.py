"""A task's own updates match a plain loop in torch on any number of ranks, and resume bit for bit."""

import copy
import json

import pytest
import torch
from conftest import REPOSITORY, final_hashes
from learned import difference, one_rank, weights
from torch import nn
from torch.nn.functional import softplus

from noether.checkpoints.state import EmaWeights, Progress, TrainingState
from noether.common.dotted_path import code_granted
from noether.config.optimizer import AdamWConfig, CustomOptimizerConfig, MuonConfig, SGDConfig
from noether.config.trainer import TrainerConfig
from noether.core.precision import Precision
from noether.core.tasks.base import Task
from noether.runs.folder import RunFolder
from noether.runs.records import read_metrics
from noether.training.optimizers import build_optimizer
from noether.training.own_update import OwnUpdater, check_own_update, parts_of
from noether.training.update import NonFiniteError
from tests.refusal import refusal

# The task of `examples/gan.py` with noise that depends only on the sample, so that the number of ranks has no effect.
OWN = """
import torch.distributed
from examples.gan import Duel, Gan, Ring


class Apart(Duel):
    def update(self, batch, model, optimizers):
        part = ("critic", "generator")[torch.distributed.get_rank()]
        optimizers[part].step(sum(one.square().sum() for one in optimizers[part].parameters))
        return {}


class FixedDuel(Duel):
    def update(self, batch, model, optimizers):
        if optimizers.updates % 2 == 0:
            fake = model.generator(batch["noise"]).detach()
            critic = (model.critic(fake) - model.critic(batch["point"])).mean() + model.critic(fake).square().mean()
            optimizers["critic"].step(critic, rate=2.0)
        generator = -model.critic(model.generator(batch["noise"])).mean() / batch["bad"].prod()
        optimizers["generator"].step(generator)
        return {"generator": generator, "loss": generator.detach() + 1}


class BadRing(Ring):
    def __init__(self, split, root, points, bad=()):
        super().__init__(split, root, points)
        self.bad = bad

    def __getitem__(self, index):
        return {**super().__getitem__(index), "bad": 0.0 if index in self.bad else 1.0}
"""


@pytest.fixture
def train(noether, tmp_path):
    (tmp_path / "own_gan.py").write_text(OWN)
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")

    common = "--hp examples/gan.yaml accelerator=cpu ~optimizer.betas output_path=runs dataset.kind=own_gan.BadRing"
    short = "dataset.points=100 trainer.effective_batch_size=12 trainer.max_epochs=null trainer.max_updates=6"

    def run(name: str, *words: str, code: int = 0):
        more = (*common.split(), *short.split(), "trainer.log_every=2 updates", f"run_id={name}", *words)
        return noether("train", *more, cwd=tmp_path, code=code), RunFolder(tmp_path / "runs" / name)

    return run


FIXED = ("task.kind=own_gan.FixedDuel", "trainer.precision=float64", "optimizer=sgd", "optimizer.learning_rate=0.05",
         "trainer.clip_gradient_norm=null", "trainer.clip_gradient_value=0.001")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_two_optimisers_go_on_bit_for_bit_and_learn_the_same_on_any_ranks(ranks: int, train) -> None:
    for way in ((), ("optimizer=muon", "trainer.clip_gradient_norm=null"), FIXED):
        words, name = (f"devices={ranks}", *way), f"{len(way)}"
        _, whole = train(f"whole{name}", *words)
        train(f"cut{name}", *words, "trainer.max_updates=3")
        _, cut = train(f"cut{name}", *words, "resume=auto")
        assert final_hashes(cut) == final_hashes(whole)
    by_one = weights(train("one", "devices=1", *FIXED)[1])
    assert difference(by_one, weights(whole)) < 1e-12
    rows = [row for row in read_metrics(whole.metrics) if row["kind"] == "training"]
    assert [row["loss"] for row in rows] == pytest.approx([row["generator"] + 1 for row in rows])
    assert json.loads(whole.result.read_text())["metrics"]["loss"] > 0


@pytest.mark.slow
def test_ranks_that_step_other_parts_are_refused(train) -> None:
    refused, _ = train("apart", "devices=2", "task.kind=own_gan.Apart", code=2)
    assert "steps critic of update 1" in refused.err or "steps generator of update 1" in refused.err


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_named_and_skipped_on_all_ranks_alike(train) -> None:
    words = ("devices=2", *FIXED, f"dataset.bad=[{','.join(map(str, range(100)))}]")
    stopped, _ = train("stopped", *words, code=1)
    assert "rank 1: the loss that steps generator" in stopped.err
    skipped, folder = train("skipped", *words, "trainer.nan_policy=skip", "trainer.max_updates=3")
    assert skipped.out.count("is skipped") + skipped.err.count("is skipped") == 3
    assert (folder.path / "result.json").is_file()
    train("limited", *words, "trainer.nan_policy=skip", "trainer.max_skipped_updates=2", code=1)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = (nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, n)) for n in (2, 1))


class Plain(Task):
    """A task that never calls `.detach()`: each optimiser must still use only the gradients of its own part."""

    def update(self, batch, model, optimizers):
        fake = model.generator(batch["noise"])
        critic = softplus(-model.critic(batch["point"])).mean() + softplus(model.critic(fake)).mean()
        optimizers["critic"].step(critic, rate=0.5)
        generator = softplus(-model.critic(model.generator(batch["noise"]))).mean()
        optimizers["generator"].step(generator)
        return {"critic": critic}

    def metrics(self, predictions, batch):
        return {"loss": batch["noise"][:, 0]}


def updater_of(model: nn.Module, task: Task, config=SGDConfig(), precision: str = "float32", **trainer) -> OwnUpdater:  # noqa: B008
    with code_granted(["torch.optim.NAdam"]):
        optimizer = build_optimizer(config, model, parts_of(task, model))
    chosen = Precision(precision, "cpu")
    ema = EmaWeights(model, 0.5)
    state = TrainingState(model, ema, optimizer, chosen.scaler(), task, Progress())
    settings = TrainerConfig(effective_batch_size=6, max_updates=5, **{"clip_gradient_norm": None, **trainer})
    return OwnUpdater(state, one_rank(), settings, chosen, 1)


def batch_of(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {"noise": torch.randn(6, 2, generator=random), "point": torch.randn(6, 2, generator=random),
            "index": torch.arange(6)}  # fmt: skip


NADAM = CustomOptimizerConfig(kind="torch.optim.NAdam", learning_rate=0.1)
LOOPS = {
    "adamw": (AdamWConfig(learning_rate=0.1), lambda p: torch.optim.AdamW(p, weight_decay=0.0, fused=True)),
    "sgd": (SGDConfig(learning_rate=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, momentum=0.9, fused=True)),
    "own": (NADAM, torch.optim.NAdam),
}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(("config", "of_torch"), LOOPS.values(), ids=LOOPS)
def test_it_is_torch_s_plain_loop_bit_for_bit(config, of_torch, precision: str) -> None:
    torch.manual_seed(0)
    ours = Pair()
    theirs = copy.deepcopy(ours)
    updater = updater_of(ours, Plain(), config, precision)
    critic, generator = of_torch(theirs.critic.parameters()), of_torch(theirs.generator.parameters())
    for update in range(5):
        batch, rate = batch_of(update), 0.1 / (1 + update)
        measured = updater.update([batch], rate)
        for optimizer, factor in ((critic, 0.5), (generator, 1.0)):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            with Precision(precision, "cpu").autocast():
                fake = theirs.generator(batch["noise"])
                real = softplus(-theirs.critic(batch["point"])).mean()
                loss = real + softplus(theirs.critic(fake.detach())).mean()
                loss = loss if optimizer is critic else softplus(-theirs.critic(fake)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert torch.equal(measured.loss, measured.numbers["critic"] + loss.detach().float())
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert updater.state.progress.updates == 5
    assert all(one.grad is None for one in ours.parameters())


def test_parts_under_muon_share_one_state_and_keep_it_when_it_is_loaded() -> None:
    updater = updater_of(Pair(), Plain(), MuonConfig(learning_rate=0.1))
    updater.update([batch_of(0)], 0.1)
    model, joined = updater.state.model, updater.state.optimizer
    assert joined.state.keys() == set(model.parameters())
    assert joined.needed_state(model.critic[0].weight) == ("momentum_buffer",)
    assert joined.needed_state(model.critic[0].bias) == ("step", "exp_avg", "exp_avg_sq")
    twin = updater_of(copy.deepcopy(model), Plain(), MuonConfig(learning_rate=0.1))
    twin.state.optimizer.load_state_dict(copy.deepcopy(joined.state_dict()))
    for one in (updater, twin):
        one.update([batch_of(1)], 0.1)
    torch.testing.assert_close(model.state_dict(), twin.state.model.state_dict(), rtol=0, atol=0)


def test_each_step_is_clipped_and_bad_ones_count_once_an_update() -> None:
    model = Pair()
    before = copy.deepcopy(model)
    updater = updater_of(model, Plain(), clip_gradient_norm=1e-3, nan_policy="skip", max_skipped_updates=2)
    updater.update([batch_of(0)], 1.0)
    for part, rate in (("critic", 0.5), ("generator", 1.0)):
        pairs = zip(model.get_submodule(part).parameters(), before.get_submodule(part).parameters(), strict=True)
        moved = torch.cat([(one - other).flatten() for one, other in pairs])
        assert float(moved.norm().detach()) == pytest.approx(1e-3 * rate, rel=1e-3)
    bad = {**batch_of(1), "noise": torch.full((6, 2), float("nan"))}
    for count in (1, 2):
        assert "sample 0, noise" in updater.update([bad], 1.0).skipped
        assert updater.state.progress.skipped_in_a_row == count
    assert updater.update([batch_of(2)], 1.0).skipped is None
    assert updater.state.progress.skipped_in_a_row == 0
    with pytest.raises(NonFiniteError, match="sample 0, noise"):
        updater_of(Pair(), Plain()).update([bad], 1.0)


def task_with(**methods) -> type[Task]:
    return type("Made", (Plain,), methods)


PARTS = {
    "none": (lambda self, model: {"critic": model.critic}, "in no part"),
    "twice": (lambda self, model: {"critic": model.critic, "all": model}, "in critic, all"),
    "nothing": (lambda self, model: {}, "a dict without parts"),
    "no-names": (lambda self, model: [model.critic], "a list without parts"),
    "strangers": (lambda self, model: {"all": model, "more": nn.Linear(1, 1)}, "more: nothing to train, or"),
    "frozen": (lambda self, model: {"all": model.requires_grad_(False)}, "all: nothing to train"),
}


@pytest.mark.parametrize(("optimizers", "seen"), PARTS.values(), ids=PARTS)
def test_parts_that_are_not_of_the_model_are_refused(optimizers, seen: str) -> None:
    with refusal("own-update-unusable", seen=seen, fix="change Made"):
        parts_of(task_with(optimizers=optimizers)(), Pair())
    model = Pair()
    model.generator.requires_grad_(False)
    model.between = nn.Tanh()
    assert [*parts_of(Plain(), model)] == ["critic"]
    part = task_with(optimizers=lambda self, model: {"critic": [*model.critic.parameters()]})
    assert [*parts_of(part(), model)["critic"].parameters()] == [*model.critic.parameters()]


UNCALLED = {
    "no-metrics": (type("Made", (Task,), {"update": Plain.update}), {}, "`update` without `metrics`"),
    "fp16": (Plain, {"precision": "fp16"}, "trainer.precision=bf16"),
    "compiled": (Plain, {"compile": True}, "trainer.compile=false"),
    "accumulated": (Plain, {"max_batch_size": "auto"}, "trainer.max_batch_size=null"),
}


@pytest.mark.parametrize(("kind", "trainer", "words"), UNCALLED.values(), ids=UNCALLED)
def test_a_task_and_settings_that_cannot_make_an_update_are_refused(kind, trainer, words: str) -> None:
    with refusal("own-update-unusable", words=words):
        check_own_update(kind, TrainerConfig(max_updates=1, **trainer), 1)


def stepping(loss, returned=None):
    def update(self, batch, model, optimizers):
        optimizers["critic"].step(loss(model, batch["noise"]))
        return returned

    return update


UPDATES = {
    "no-step": (lambda self, batch, model, optimizers: {}, "an update without a step"),
    "vector": (stepping(lambda model, noise: model.critic(noise)), "critic: tensor([["),
    "other-part": (stepping(lambda model, noise: model.generator(noise).mean()), "critic: a loss without its weights"),
    "detached": (stepping(lambda model, noise: noise.mean()), "critic: tensor("),
    "returns-nothing": (stepping(lambda model, noise: model.critic(noise).mean()), "returned: None"),
    "reserved": (stepping(lambda model, noise: model.critic(noise).mean(), {"update": 1.0}), "update: 1.0"),
}


@pytest.mark.parametrize(("update", "seen"), UPDATES.values(), ids=UPDATES)
def test_an_update_that_steps_or_returns_nothing_is_refused(update, seen: str) -> None:
    with refusal("own-update-unusable", seen=seen, fix="change Made"):
        updater_of(Pair(), task_with(update=update)()).update([batch_of(0)], 0.1)
