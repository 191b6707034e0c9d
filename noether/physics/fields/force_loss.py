"""The term of a loss that is of forces: the errors of predicted fields, integrated over the points of a batch."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from noether.common.errors import RequestError
from noether.core.data.moments import Moments
from noether.core.tasks.base import by_channel
from noether.physics.fields.forces import mean_force
from noether.physics.settings import ForceCoefficientConfig

Scalars = Mapping[str, ForceCoefficientConfig]
PHYSICAL = "physical_"
"""Before the keys of a prepared batch that are as in the samples: areas, normals, and speeds, which inputs scale."""


class ForceLoss:
    """The squared error of each force or moment, in standard deviations of the training split, times a weight.

    Errors of the field at single points do not tell a wrong drag from a right one: it is a small difference of large
    pressures. The mean force per area and dynamic pressure is the same, apart from chance, however many points are
    drawn, so that a draw estimates the error of the whole surface.

    Args:
        weight: of each force beside a field's weight of 1; 0: there is no such term.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.deviation: dict[str, float] = {}
        self._moments: dict[str, Moments] = {}

    def check(self, scalars: Scalars, keys: Iterable[str]) -> None:
        """Refuses a weight where the samples do not give what the forces are integrated with."""
        have = set(keys)
        absent = sorted({key for scalar in scalars.values() for key in scalar.needed_keys() if key not in have})
        if self.weight and (absent or not scalars):
            raise RequestError(
                "forces-not-known",
                "the loss cannot weigh forces of this data set",
                seen=f"samples without {', '.join(absent)}" if absent else "no force coefficient",
                expected="task.scalars with the keys that they name, or cases whose map has forces and axes",
                fix="task.force_weight=0",
            )

    def add(self, sample: Mapping[str, Tensor], scalars: Scalars) -> None:
        """Takes one training sample."""
        for name, scalar in scalars.items() if self.weight else ():
            one = {key: sample[key][None] for key in (*scalar.needed_keys(), *_fields(scalar))}
            pressure = by_channel(one[scalar.pressure], batched=True)
            value = mean_force(pressure, one, scalar, one[scalar.shear] if scalar.shear else None)
            self._moments.setdefault(name, Moments(1)).add(value.numpy().reshape(1, 1))

    def fit(self) -> None:
        """Takes the standard deviations of what was added. A force that is the same in every sample has no term."""
        self.deviation = {name: float(own.deviation[0]) for name, own in self._moments.items()}
        self.deviation = {name: value for name, value in self.deviation.items() if value > 1e-12}
        self._moments = {}

    def kept(self, batch: Mapping[str, Tensor], scalars: Scalars) -> dict[str, Tensor]:
        """Returns what a prepared batch keeps of the samples for `errors`."""
        needed = {key for name in self.deviation for key in scalars[name].needed_keys()}
        return {PHYSICAL + key: batch[key] for key in needed if key in batch}

    def errors(self, differences: Mapping[str, Tensor], prepared: Mapping[str, Tensor], scalars: Scalars) -> Tensor:
        """Returns the term for each sample, (B,), from the fields' errors (B, N, C) in physical units."""
        batch = {key.removeprefix(PHYSICAL): value for key, value in prepared.items() if key.startswith(PHYSICAL)}
        terms = []
        for name, deviation in self.deviation.items():
            scalar = scalars[name]
            shear = differences[scalar.shear] if scalar.shear else None
            terms.append((mean_force(differences[scalar.pressure], batch, scalar, shear) / deviation).square())
        return self.weight * torch.stack(terms).sum(dim=0).to(differences[scalar.pressure].dtype)


def _fields(scalar: ForceCoefficientConfig) -> list[str]:
    return [scalar.pressure] + ([scalar.shear] if scalar.shear else [])
