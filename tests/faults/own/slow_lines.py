"""A user's own data set, model and task, small enough to be started often.

The environment variable PAUSE_S adds seconds to each loss, PAUSE_EVALUATION_S to the metrics of each batch. RECORD is a
folder in which each rank records the indices of the samples that it trains on.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from noether.core.tasks.base import Task


class Lines:
    """The data set: `x` (4,), random, and `y` (1,), three times the sum of x."""

    def __init__(self, split, root, count):
        self.x = torch.randn(count, 4, generator=torch.Generator().manual_seed(len(split)))
        self.y = 3 * self.x.sum(dim=1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index]}


class StoredLines(Lines):
    """The same data set, but with x (samples, 4) from the file `SPLIT.npy` in the folder `root`."""

    def __init__(self, split, root):
        self.x = torch.from_numpy(np.load(Path(root) / f"{split}.npy"))
        self.y = 3 * self.x.sum(dim=1, keepdim=True)


class Network(nn.Module):
    """Two layers with dropout between them, so that the result depends on the random state."""

    def __init__(self, width, dropout=0.1):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, 1))

    def forward(self, batch):
        return {"y": self.layers(batch["x"])}


class Regression(Task):
    def loss(self, predictions, batch):
        time.sleep(float(os.environ.get("PAUSE_S", "0")))
        if "RECORD" in os.environ and torch.is_grad_enabled():
            with (Path(os.environ["RECORD"]) / os.environ["RANK"]).open("a") as file:
                file.write(json.dumps(batch["index"].tolist()) + "\n")
        return (predictions["y"] - batch["y"]).square().mean()

    def metrics(self, predictions, batch):
        time.sleep(float(os.environ.get("PAUSE_EVALUATION_S", "0")))
        error = (predictions["y"] - batch["y"]).abs().squeeze(1)
        return {"loss": error.square(), "mae": error}
