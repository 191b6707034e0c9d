"""The data set: cooling rods. Replace the class by one that reads your simulations."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LENGTH = 1.0  # m
TIME = 600.0  # s
MODES = np.arange(1, 7)
POSITIONS = np.linspace(0.0, LENGTH, 65)  # m


def temperatures(amplitudes: NDArray, diffusivity: NDArray, time: float) -> NDArray:
    """Solve the heat equation exactly: each sine decays independently.

    Args:
        amplitudes: initial amplitudes of the sines in K, relative to the ends, shape (rods, modes).
        diffusivity: diffusivity in m²/s, shape (rods, 1).
        time: time since the start in s.

    Returns:
        The temperatures at POSITIONS in K, relative to the ends, shape (rods, positions).
    """
    wave_numbers = MODES * np.pi / LENGTH
    decayed = amplitudes * np.exp(-diffusivity * wave_numbers**2 * time)
    return decayed @ np.sin(np.outer(wave_numbers, POSITIONS))


class Rods:
    """Cooling rods with diffusivities between steel's and copper's. Both ends of a rod stay at the same temperature.

    noether creates one object for the split "train", a part of which it uses for validation, and one for "test". It
    calls `len` and `[index]` on them. `root` is the setting dataset_root, the folder of data on disk.

    A sample holds `initial` (65,), in K; `diffusivity` (1,), in m²/s; and `later` (65,), in K, after TIME.
    """

    def __init__(self, split: str, root: object, rods: int = 2000) -> None:
        random = np.random.default_rng(0 if split == "train" else 1)
        count = rods if split == "train" else rods // 10
        amplitudes = random.normal(size=(count, len(MODES))) / MODES
        diffusivity = 10 ** random.uniform(-5.0, -4.0, (count, 1))
        arrays = {
            "initial": temperatures(amplitudes, diffusivity, 0.0),
            "diffusivity": diffusivity,
            "later": temperatures(amplitudes, diffusivity, TIME),
        }
        self.samples = {key: torch.from_numpy(array).float() for key, array in arrays.items()}

    def __len__(self) -> int:
        return len(self.samples["initial"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {key: values[index] for key, values in self.samples.items()}
