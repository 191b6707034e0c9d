"""Mistakes in a user's data set or model are reported with a message before the first update."""

import random
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from learned import one_rank
from torch import nn

from noether.common.dotted_path import code_granted
from noether.config.compose import load_config
from noether.core.data.build import prepare_data
from noether.core.data.loader import training_order
from noether.core.data.order import GlobalOrder
from noether.core.first_sample import check_parts, check_stream, find_comparison, try_model
from noether.core.precision import Precision
from noether.core.problem import build_problem
from noether.core.tasks.base import Task
from noether.launch.batches import plan_batches
from tests.refusal import refusal

HERE = "test_first_sample"
CPU = torch.device("cpu")


class Images:
    """Ten images with their classes; `as_` names the form in which a sample returns them."""

    def __init__(self, split: str, root: object, as_: str = "tensors") -> None:
        self.as_ = as_

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int):
        image = np.full((1, 4, 4), index, np.float32)
        label = index % 3
        return {
            "tensors": {"image": torch.from_numpy(image), "label": torch.tensor(label)},
            "arrays": {"image": image, "label": np.int64(label)},
            "numbers": {"image": image.tolist(), "label": label},
            "tuples": (image, label),
            "strings": {"image": image, "label": label, "name": f"image {index}"},
            "texts": {"image": image, "label": label, "name": np.array(["a"])},
            "files": {"image": image.astype(">f4"), "label": np.int64(label)},
            "long": {"image": image.astype(np.longdouble), "label": label},
            "index": {"image": image, "label": label, "index": label},
        }[self.as_]


class Stream(torch.utils.data.IterableDataset):
    """A stream of images; `wrong` names a defect to give it."""

    def __init__(self, split: str, root: object, wrong: str = "") -> None:
        self.split, self.wrong, self.readings = split, wrong, 0

    def __iter__(self):
        self.readings += 1
        begin = {"train": 0, "validation": 3, "test": 6}[self.split] * (self.wrong != "alike")
        begin += self.readings * (self.wrong == "changing")
        stops = {"once": 10 * (self.readings == 1), "endless": 10**9 if self.split == "test" else 10}
        return (Images("train", None)[begin + at % 10] for at in range(stops.get(self.wrong, 10)))


def Generated(split: str, root: object):
    yield from Stream(split, root)


class Sampled(Stream):
    def sampler(self, indices, generator): ...


def with_batches(**members: object) -> type[Images]:
    """Return a subclass of Images with these further members, such as a `collate_fn`."""
    return type("Batches", (Images,), members)


CollateFn = with_batches(collate_fn=lambda self, samples: None)
ASampler = with_batches(sampler=torch.utils.data.RandomSampler(range(10)))
SamplerClass = with_batches(sampler=torch.utils.data.RandomSampler)
TorchSampler = with_batches(sampler=lambda self: iter(range(10)))
BatchSampler = with_batches(batch_sampler=[[0, 1], [2, 3]])
WorkerInit = with_batches(worker_init_fn=lambda self, worker: None)


def Hidden(split: str, root: object) -> torch.utils.data.Dataset:
    return torch.utils.data.Subset(Reversed(split, root), [0, 1, 2])


Reversed = with_batches(sampler=lambda self, indices, generator: indices[::-1])
Unseeded = with_batches(sampler=lambda self, indices, generator: torch.tensor(indices)[torch.randperm(len(indices))])
HeldOut = with_batches(sampler=lambda self, indices, generator: range(10))
Growing = with_batches(
    drawn=iter([9, 9, 9, 8, 8]), sampler=lambda self, indices, generator: indices[: next(self.drawn)]
)
OneTuple = with_batches(collate=lambda self, samples: ([sample["image"] for sample in samples],))
OneList = with_batches(collate=lambda self, samples: {"image": [sample["image"] for sample in samples]})
Numbered = with_batches(collate=lambda self, samples: {"index": torch.zeros(len(samples))})
Packed = with_batches(collate=lambda self, samples: {"image": torch.cat([sample["image"] for sample in samples] * 2)})


class Cars:
    """Samples of points with pressure and velocity; `wrong` names a key to leave out, or another defect."""

    def __init__(self, split: str, root: object, wrong: str = "") -> None:
        self.wrong = wrong

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int):
        rng = torch.Generator().manual_seed(index)
        points, air = torch.rand(20, 3, generator=rng), torch.rand(15, 3, generator=rng)
        sample = {"surface_points": points, "surface_pressure": points[:, 0], "surface_normals": points}
        sample |= {"volume_points": air, "volume_velocity": 2 * air}
        if self.wrong == "0-d":
            sample["surface_pressure"] = torch.tensor(1.0)
        elif self.wrong == "short normals":
            sample["surface_normals"] = points[:-3]
        elif self.wrong == "short field":
            sample["volume_velocity"] = air[:-1]
        elif self.wrong:
            sample.pop(self.wrong)
        return sample


class OneTensor(nn.Module):
    """An image model like those of most libraries: it takes a tensor and returns a tensor."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, classes))

    def forward(self, image):
        return self.layers(image)


class TensorOut(OneTensor):
    def forward(self, batch):
        return self.layers(batch["image"])


class Nothing(nn.Module):
    def forward(self, batch):
        return {"logits": batch["image"].flatten(1)[:, :3]}


class OnlyLoss(Task):
    def loss(self, predictions, batch):
        return predictions["logits"].square().mean()


def other(base: type[Task] = OnlyLoss, **members: object) -> type[Task]:
    """Return a subclass of the task `base` with further members."""
    return type("Other", (base,), members)


def scored_by(score) -> type[Task]:
    """Return a task whose metrics are its loss and an accuracy, which `score` computes from the logits."""
    return other(metrics=lambda self, p, batch: {**OnlyLoss.metrics(self, p, batch), "accuracy": score(p["logits"])})


VectorLoss = other(loss=lambda self, predictions, batch: predictions["logits"].square().mean(dim=1))
FloatLoss = other(loss=lambda self, predictions, batch: float(predictions["logits"].square().mean()))
DetachedLoss = other(loss=lambda self, predictions, batch: predictions["logits"].square().mean().detach())
WithoutLoss = other(metrics=lambda self, predictions, batch: {"accuracy": predictions["logits"].mean(dim=1)})
ScalarMetric, FloatMetric = scored_by(lambda logits: logits.mean()), scored_by(lambda logits: 0.5)
BatchMetric = scored_by(lambda logits: logits.mean().reshape(1))
"""A task whose metric is one number per batch; for a batch of one sample, it looks like one number per sample."""
SqueezedMetric = other(metrics=lambda self, p, batch: {"loss": p["logits"].square().mean(dim=1).squeeze()})
"""A task whose metric has the right shape only for batches of several samples."""


class Forgetful(OnlyLoss):
    """A task whose `fit` sets a value that its `state` does not return."""

    mean = 0.0

    def fit(self, samples):
        self.mean = sum(float(sample["image"].mean()) for sample in samples)


class KeepsATensor(Forgetful):
    def state(self):
        return {"mean": torch.tensor(self.mean)}

    def load_state(self, state):
        self.mean = state["mean"]


NeverTakesItBack = other(Forgetful, state=lambda self: {"mean": self.mean})
IMAGES = ["task=classification", "task.classes=3", f"dataset.kind={HERE}.Images", f"model.kind={HERE}.OneTensor"]
ADAPTER = ["model.input=image", "model.output=logits"]
STREAM = [f"dataset.kind={HERE}.Stream", "trainer.max_updates=5", "trainer.max_epochs=null",
          "trainer.evaluate_every=2 updates", "trainer.checkpoint_every=null"]  # fmt: skip
CARS = [f"dataset.kind={HERE}.Cars", "task=car_flow", "task.scalars={}", "dataset.points_per_update={}"]
SMALL = ["model.dim=12", "model.heads=2"]
UPT = [*SMALL, "model.supernodes=4", "model.encoder_depth=1", "model.decoder_depth=1"]
MISTAKES = {
    **{
        f"{kind}-of-a-data-set": ([*IMAGES, *ADAPTER, f"dataset.kind={HERE}.{kind}"], *words)
        for kind, words in {
            "CollateFn": ("has a collate_fn", "<", "def collate(self, samples)"),
            "ASampler": ("has a sampler that", "RandomSampler", "def sampler(self, indices, generator)"),
            "SamplerClass": ("has a sampler that", "RandomSampler", "def sampler(self, indices, generator)"),
            "TorchSampler": ("has a sampler that", "<", "def sampler(self, indices, generator)"),
            "BatchSampler": ("has a batch_sampler", "[[0, 1]", "def sampler(self, indices, generator)"),
            "WorkerInit": ("has a worker_init_fn", "<", "def __getitem__(self, index)"),
            "Hidden": ("has a sampler that", "Batches", "def sampler(self, indices, generator)"),
            "Unseeded": ("sampler does not return a reproducible order", "or other samples", "generator=generator"),
            "HeldOut": ("sampler does not return a reproducible order", "sample ", "generator=generator"),
            "OneTuple": ("collate does not return a batch", "what it returns", "torch.stack"),
            "OneList": ("collate does not return a batch", "image: [tensor", "torch.stack"),
            "Numbered": ("collate does not return a batch", "index: (1,)", "torch.stack"),
            "Packed": ("collate does not return a batch", "image: (2, 4, 4)", "torch.stack"),
        }.items()
    },
    **{
        f"a-stream-{wrong}": ([*IMAGES, *ADAPTER, *STREAM, f"dataset.wrong={wrong}"], *words)
        for wrong, words in {
            "alike": ("split of test_first_sample.Stream repeats another split", "first samples", "split == 'valid"),
            "once": ("gives no samples", "0 samples, then no more", "__iter__"),
            "endless": ("test split of test_first_sample.Stream does not fit", "10000", "split == 'test'"),
        }.items()
    },
    "a-stream-in-epochs": ([*IMAGES, STREAM[0]], "has no epochs", "max_epochs=", "max_updates="),
    "evaluated-in-epochs": ([*IMAGES, *STREAM[:3]], "has no epochs", "trainer.evaluate_every=5 epochs, trainer.ch",
                            "'trainer.evaluate_every=100 updates' 'trainer.checkpoint_every=100 updates'"),
    "a-generator": ([*IMAGES, *STREAM, f"dataset.kind={HERE}.Generated"], "gives no samples", "0 samples", "__iter__"),
    "a-stream-with-a-sampler": ([*IMAGES, f"dataset.kind={HERE}.Sampled"], "has a sampler", "<bound", "__iter__(self)"),
    "tuples": ([*IMAGES, *ADAPTER, "dataset.as_=tuples"], "is not a dictionary", "tuple", "__getitem__"),
    "strings": ([*IMAGES, *ADAPTER, "dataset.as_=strings"], "name of the samples", "a str", "'name' out"),
    "arrays-of-text": ([*IMAGES, *ADAPTER, "dataset.as_=texts"], "name of the samples", "of <U1", "'name' out"),
    "longer-than-64-bits": ([*IMAGES, *ADAPTER, "dataset.as_=long"], "image of the samples", "of float128", "'image'"),
    "index": ([*IMAGES, *ADAPTER, "dataset.as_=index"], "that is reserved for batches", "index", "rename 'index'"),
    "lists": ([*IMAGES, *ADAPTER, "dataset.as_=numbers"], "image of the samples", "a list", "torch.as_tensor"),
    "a-missing-field": ([*CARS, *UPT, "dataset.wrong=volume_velocity"], "no array volume_velocity", "surface_points",
                        "~task.fields.volume_velocity"),
    "missing-points": ([*CARS, *UPT, "dataset.wrong=volume_points"], "no array volume_points",
                       "volume_velocity", ".points="),
    "a-0-d-field": ([*CARS, *UPT, "dataset.wrong=0-d"], "surface_pressure", "()", "as many rows of surface_pressure"),
    "normals-of-another-length": ([*CARS, *UPT, "dataset.wrong=short normals"], "surface_normals does not have one",
                                  "(17, 3)", "as many rows of surface_normals"),
    "a-field-of-another-length": ([*CARS, *UPT, "dataset.wrong=short field"], "volume_velocity does not have one",
                                  "(14, 3)", "as many rows of volume_velocity"),
    "transolver-without-distances": ([*CARS, "model=transolver", *SMALL, "model.depth=1"], "Transolver",
                                     "volume_points", "model=mlp"),
    "a-tensor-in-model": (IMAGES, "expects a tensor", "dict", "model.input=image model.output=logits"),
    "a-tensor-out-model": ([*IMAGES, f"model.kind={HERE}.TensorOut"], "does not return a dictionary", "Tensor",
                           "model.output=logits"),
    "no-parameters": ([*IMAGES, f"model.kind={HERE}.Nothing"], "no parameters to train", "none", "model.kind="),
}  # fmt: skip


def start(overrides: list[str], world_size: int = 1) -> bool | None:
    """Do what a rank does before its first update, without a process group; return `compares_samples` of the task."""
    config = load_config(overrides)
    trainer, precision = config.trainer, Precision("float32", "cpu")
    with code_granted(config.own_code()):
        problem = build_problem(config, prepare_data(config), CPU, precision)
    check_stream(problem, one_rank())
    problem.fit()
    compared = find_comparison(problem, one_rank(), precision)
    try_model(problem, CPU, precision)
    indices, size = problem.train_indices, trainer.effective_batch_size
    training_order(problem.splits.train, indices, size, config.seed)
    parts = plan_batches(trainer.effective_batch_size, trainer.max_batch_size, world_size)
    check_parts(problem, trainer.across_ranks, parts, compared)
    return problem.task.compares_samples


@pytest.mark.parametrize(("overrides", "summary", "seen", "fix"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_in_words(overrides: list[str], summary: str, seen: str, fix: str) -> None:
    with refusal(summary=summary, seen=seen, fix=fix):
        start(overrides)


@pytest.mark.parametrize(
    ("wrong", "digest_of_the_first", "seen"),
    [("changing", None, "two readings differ"), ("", "another", "rank 1 reads other samples than rank 0")],
)
def test_a_stream_that_ranks_do_not_share_is_refused(wrong: str, digest_of_the_first: str | None, seen: str) -> None:
    config = load_config([*IMAGES, *ADAPTER, *STREAM, f"dataset.wrong={wrong}"])
    with code_granted(config.own_code()):
        problem = build_problem(config, prepare_data(config), CPU, Precision("float32", "cpu"))
    assert ("two readings differ" in check_stream(problem, one_rank())) == bool(wrong)
    others: Any = SimpleNamespace(world_size=2, rank=1, from_first=lambda own: digest_of_the_first)
    with refusal("stream-not-the-same", seen=seen, fix="__iter__"):
        check_stream(problem, others)


def test_a_sampler_draws_each_epoch_by_the_seed_alone() -> None:
    by_chance = with_batches(
        sampler=lambda self, indices, generator: torch.tensor(indices)[torch.randint(0, 5, (8,), generator=generator)]
    )("train", None)
    order, again = (training_order(by_chance, [1, 3, 5, 7, 9], 2, seed=3) for _ in range(2))
    uses = [key for update in range(12) for key in order.global_batch(update)]
    assert uses == [key for update in range(12) for key in again.global_batch(update)]
    assert [key.epoch for key in uses] == list(range(24)), "each use of a sample must have its own random numbers"
    assert (order.samples, order.updates_per_epoch) == (8, 4)
    assert {key.sample for key in uses} <= set(range(5))
    assert len({tuple(key.sample for key in uses[first : first + 8]) for first in (0, 8, 16)}) == 3
    growing = training_order(Growing("train", None), range(10), 3, seed=0)
    with refusal("sampler-unusable", seen="9 samples, then 8 or other samples in epoch 1"):
        growing.global_batch(3)
    assert training_order(Images("train", None), range(10), 2, seed=0) == GlobalOrder(10, 2, 0)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param([*IMAGES, *ADAPTER], id="tensor in, tensor out, by the adapter"),
        pytest.param([*IMAGES, *ADAPTER, "dataset.as_=arrays"], id="samples of NumPy arrays and numbers"),
        pytest.param([*IMAGES, *ADAPTER, "dataset.as_=files"], id="arrays in the order of bytes of a file"),
        pytest.param([*IMAGES, f"model.kind={HERE}.TensorOut", "model.output=logits"], id="a name for the result"),
        pytest.param([*IMAGES, "model.input=[image]", "model.output=logits"], id="a list of one input"),
        pytest.param([*CARS, *UPT], id="fields"),
        pytest.param([*CARS, *UPT, "dataset.wrong=volume_velocity", "~task.fields.volume_velocity"], id="the fix"),
    ],
)
def test_what_is_right_starts(overrides: list[str]) -> None:
    start(overrides)


def test_the_look_at_the_model_leaves_no_trace() -> None:
    config = load_config([*IMAGES, *ADAPTER])
    precision = Precision("float32", "cpu")
    with code_granted(config.own_code()):
        problem = build_problem(config, None, CPU, precision)
    problem.model.train()
    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())
    find_comparison(problem, one_rank(), precision)
    try_model(problem, CPU, precision)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), repr(np.random.get_state()))
    assert problem.model.training


TASK_MISTAKES = {
    "VectorLoss": "loss-not-a-scalar",
    "FloatLoss": "loss-not-a-scalar",
    "WithoutLoss": "metrics-without-loss",
    "ScalarMetric": "metric-not-of-each-sample",
    "FloatMetric": "metric-not-of-each-sample",
    "BatchMetric": "metric-not-of-each-sample",
    "SqueezedMetric": "metric-not-of-each-sample",
    "DetachedLoss": "loss-without-gradient",
    "Forgetful": "task-state-unusable",
    "KeepsATensor": "task-state-unusable",
    "NeverTakesItBack": "task-state-unusable",
}


def own_task(name: str) -> list[str]:
    return [f"dataset.kind={HERE}.Images", f"model.kind={HERE}.OneTensor", *ADAPTER, f"task.kind={HERE}.{name}"]


@pytest.mark.parametrize("task", TASK_MISTAKES)
def test_a_task_with_a_wrong_loss_or_metric_is_refused_before_the_first_update(task: str) -> None:
    with refusal(TASK_MISTAKES[task]):
        start(own_task(task))


def test_a_task_that_only_has_a_loss_is_scored_by_it() -> None:
    start(own_task("OnlyLoss"))
    predictions = {"logits": torch.arange(6.0).reshape(3, 2)}
    found = OnlyLoss().metrics(predictions, {"image": torch.zeros(3, 1)})
    assert found["loss"].tolist() == [0.5, 6.5, 20.5]


def by_loss(score, **members: object) -> type[Task]:
    """Return a task whose loss is `score`, a function of the logits (B, 3) and the batch."""
    return other(loss=lambda self, predictions, batch: score(predictions["logits"], batch), **members)


def between(logits: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits @ logits.T, torch.arange(len(logits)))


class Centred(TensorOut):
    def forward(self, batch):
        logits = super().forward(batch)
        return {"logits": logits - logits.mean(dim=0)}


class Normed(TensorOut):
    frozen = False

    def __init__(self, batch_norm=nn.BatchNorm1d):
        super().__init__()
        self.layers.append(batch_norm(3))

    def train(self, mode=True):
        super().train(mode)
        self.layers[-1].train(mode and not self.frozen)
        return self


Frozen, NormedByAll = type("Frozen", (Normed,), {"frozen": True}), lambda: Normed(nn.SyncBatchNorm)
Mean, Sum = by_loss(lambda logits, _: logits.square().mean()), by_loss(lambda logits, _: logits.square().sum())
Contrast, Declared = by_loss(lambda logits, _: between(logits)), by_loss(lambda x, _: x.mean(), compares_samples=True)
Denied = by_loss(lambda logits, _: between(logits), compares_samples=False)
Weighted = by_loss(lambda x, batch: (x.mean(1) * (batch["label"] + 1)).sum() / (batch["label"] + 1).sum())
OfSeveral = by_loss(lambda logits, _: logits.view(len(logits) // 2, 2, 3).diff(dim=1).square().mean())
"""A task whose loss compares pairs of samples, and so raises an error for a single sample."""
Noisy = by_loss(lambda logits, _: (logits + torch.randn_like(logits)).square().mean())
NoisyContrast = by_loss(lambda logits, _: between(logits + torch.randn_like(logits)))
COMPARES = {
    "Mean": False, "Noisy": False, "Denied": False, "Declared": True, "Sum": True, "Contrast": True, "Weighted": True,
    "OfSeveral": True, "NoisyContrast": True,
}  # fmt: skip


@pytest.mark.parametrize("task", COMPARES)
def test_a_loss_that_is_no_mean_over_samples_is_found(task: str) -> None:
    assert start(own_task(task)) == COMPARES[task]
    assert start([*IMAGES, f"model.kind={HERE}.Centred"]), "it must be found with a task of noether, too"


ACROSS, BY_RANK, ALL = "trainer.across_ranks=gather", "trainer.across_ranks=per_rank", "trainer.max_batch_size=null"
TWO_AT_ONCE = "trainer.max_batch_size=2"
PARTS = {
    "a-mean-in-parts": ("Mean", "TensorOut", 2, [TWO_AT_ONCE], ""),
    "ranks": ("Contrast", "TensorOut", 2, [], ACROSS),
    "accumulated": ("Contrast", "TensorOut", 1, [TWO_AT_ONCE], ALL),
    "gathered": ("Contrast", "TensorOut", 2, [ACROSS], ""),
    "gathered-and-accumulated": ("Contrast", "TensorOut", 2, [ACROSS, TWO_AT_ONCE], ALL),
    "each-by-itself": ("Contrast", "TensorOut", 2, [BY_RANK, TWO_AT_ONCE], ""),
    "batch-norm": ("Mean", "Normed", 2, [], BY_RANK),
    "batch-norm-and-gathered": ("Contrast", "Normed", 2, [ACROSS], BY_RANK),
    "batch-norm-of-all-ranks": ("Mean", "NormedByAll", 2, [], ""),
    "batch-norm-frozen": ("Mean", "Frozen", 2, [TWO_AT_ONCE], ""),
}


@pytest.mark.parametrize(("task", "model", "ranks", "words", "fix"), PARTS.values(), ids=PARTS)
def test_a_batch_whose_samples_are_compared_is_not_computed_in_parts_unasked(task, model, ranks, words, fix) -> None:
    settings = [f"dataset.kind={HERE}.Images", f"task.kind={HERE}.{task}", f"model.kind={HERE}.{model}"]
    with refusal("samples-compared-in-parts", fix=fix) if fix else nullcontext():
        start([*settings, "model.output=logits", "trainer.effective_batch_size=8", *words], ranks)
