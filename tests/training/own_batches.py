"""A user's own batches: pairs for a contrastive loss, series of differing lengths, and samples drawn with weights."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset, get_worker_info

from noether.core.tasks.base import Task


class Pairs:
    def __init__(self, split, root):
        self.one = torch.randn(48, 8, generator=torch.Generator().manual_seed(len(split)))

    def __len__(self):
        return len(self.one)

    def __getitem__(self, index):
        return {"one": self.one[index], "other": self.one[index].roll(1).tanh()}


class Encoders(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other, self.scale = nn.Linear(8, 4), nn.Linear(8, 4), nn.Parameter(torch.ones(()))

    def forward(self, batch):
        return {"one": self.one(batch["one"]), "other": self.other(batch["other"]), "scale": self.scale * 1}


class Contrast(Task):
    """A contrastive task: each sample must find its partner among all samples of its batch."""

    def loss(self, found, batch):
        scores = found["scale"] * found["one"] @ found["other"].T
        return cross_entropy(scores, torch.arange(len(scores), device=scores.device))


class Series(Pairs):
    """A data set of series with one to seven steps; the target is the number of positive steps."""

    def __getitem__(self, index):
        steps = self.one[index, : 1 + index % 7, None]
        return {"steps": steps, "count": (steps > 0).sum().float()}

    def collate(self, samples):
        last = torch.tensor([len(sample["steps"]) - 1 for sample in samples])
        count = torch.stack([sample["count"] for sample in samples])
        return {"steps": pad_sequence([sample["steps"] for sample in samples], True), "last": last, "count": count}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps, self.count = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, batch):
        states = self.steps(batch["steps"])[0]
        return {"count": self.count(states[torch.arange(len(states)), batch["last"]])[:, 0]}


class Count(Task):
    def loss(self, found, batch):
        return (found["count"] - batch["count"]).square().mean()


class Stream(IterableDataset):
    """A stream of twenty series (training split) or nine (other splits)."""

    def __init__(self, split, root):
        self.split = split

    def __iter__(self):
        assert get_worker_info() is None or get_worker_info().num_workers == 1, "workers would divide the stream"
        series = Series(self.split, None)
        return (series[at] for at in range(20 if self.split == "train" else 9))

    collate = Series.collate


class Weighted(Series):
    """The data set `Series`, of which each epoch draws 21 samples with replacement; long series are twice as likely."""

    def sampler(self, indices, generator):
        weights = torch.tensor([1.0 + (index % 7 > 3) for index in indices])
        return torch.tensor(indices)[torch.multinomial(weights, 21, replacement=True, generator=generator)]
