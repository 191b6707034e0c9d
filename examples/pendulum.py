"""A damped pendulum: predict the angles of the next ten seconds from the initial angle and speed."""

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor, nn

from noether.core.tasks.base import Task

TIMES = np.linspace(0.1, 10.0, 100)  # s


class Swings:
    """The data set. noether creates it once per split, and uses its `len` and `[index]`.

    A sample: `start` (2,), the initial angle in rad and speed in rad/s; `angles` (100,), the later angles in rad.
    """

    def __init__(self, split: str, root: object, swings: int = 800, damping: float = 0.1) -> None:
        random = np.random.default_rng(0 if split == "train" else 1)
        self.starts = random.uniform((-2.0, -0.5), (2.0, 0.5), (swings, 2))
        self.angles = np.stack([self._swing(start, damping) for start in self.starts])

    @staticmethod
    def _swing(start: np.ndarray, damping: float) -> np.ndarray:
        def motion(_: float, state: np.ndarray) -> tuple[float, float]:
            return state[1], -damping * state[1] - np.sin(state[0])

        return solve_ivp(motion, (0, TIMES[-1]), start, t_eval=TIMES, rtol=1e-6).y[0]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        arrays = {"start": self.starts[index], "angles": self.angles[index]}
        return {key: torch.from_numpy(array).float() for key, array in arrays.items()}


class Perceptron(nn.Module):
    """The model: maps a batch to predictions, both dictionaries of tensors."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, len(TIMES))
        )

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"angles": self.layers(batch["start"])}


class Follow(Task):
    """The task: `loss` returns the loss of a batch, and `metrics` the metrics of each sample."""

    def loss(self, predictions: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
        return (predictions["angles"] - batch["angles"]).square().mean()

    def metrics(self, predictions: dict[str, Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        error = predictions["angles"] - batch["angles"]
        return {"loss": error.square().mean(dim=1), "largest_error_rad": error.abs().amax(dim=1)}
