"""Forces and moments of predicted fields, integrated over the surface, and the term of a loss that is of them."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from noether.common.errors import RequestError
from noether.core.data.moments import Moments
from noether.core.tasks.base import by_channel
from noether.physics.settings import ForceCoefficientConfig

Batch = Mapping[str, Tensor]


def force_coefficient(fields: Batch, batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    """Returns ∮ (−p n + τ)·d dA / (q A_ref) for each sample, (B,); of a moment ∮ x × (−p n + τ)·d dA / (q A_ref L).

    fields: by name, pressure p (B, N) or (B, N, 1) and wall shear stress τ (B, N, 3) in Pa, as the air pulls on the
    wall; without τ where the scalar has pressure alone.
    batch: points and outward normals (B, N, 3), areas (B, N) in m², 0 where a point is padding.
    """
    return _force(fields, batch, scalar) / _reference(batch, scalar)


def mean_force(fields: Batch, batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    """Returns the force or moment (B,) per area of the points and dynamic pressure; arguments as above."""
    area = batch[scalar.areas].double().sum(dim=1)
    return _force(fields, batch, scalar) / (_dynamic_pressure(batch, scalar) * area)


def _force(fields: Batch, batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    """Returns the force in N or moment in N·m along the direction, (B,)."""
    traction = -by_channel(fields[scalar.pressure], batched=True).double() * batch[scalar.normals].double()
    if scalar.shear is not None:
        traction = traction + fields[scalar.shear].double()
    if scalar.moment:
        traction = torch.linalg.cross(batch[scalar.points].double(), traction)
    return (_along(traction, scalar) * batch[scalar.areas].double()).sum(dim=1)


def true_coefficient(batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    """Returns the true coefficient (B,) that the samples give: as such, or as a force or moment (B, 3)."""
    assert scalar.truth is not None
    truth = batch[scalar.truth].double()
    if truth.ndim == 2 and truth.shape[1] == 3:
        return _along(truth, scalar) / _reference(batch, scalar)
    return batch[scalar.truth].reshape(-1)


def _along(vectors: Tensor, scalar: ForceCoefficientConfig) -> Tensor:
    """Returns the component of vectors (…, 3) in the scalar's direction, (…,).

    By Python's numbers: a tensor made of them would be copied to a GPU for each batch, and waited for.
    """
    x, y, z = vectors.unbind(-1)
    return x * scalar.direction[0] + y * scalar.direction[1] + z * scalar.direction[2]


def _reference(batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    area = batch[scalar.reference_area].double().reshape(-1)
    return _dynamic_pressure(batch, scalar) * area * (scalar.reference_length if scalar.moment else 1.0)


def _dynamic_pressure(batch: Batch, scalar: ForceCoefficientConfig) -> Tensor | float:
    if not isinstance(scalar.dynamic_pressure, str):
        return scalar.dynamic_pressure
    assert scalar.density is not None  # of each case's own speed
    return 0.5 * scalar.density * batch[scalar.dynamic_pressure].double().reshape(-1).square()


Scalars = Mapping[str, ForceCoefficientConfig]
PHYSICAL = "physical_"
"""Before the keys of a prepared batch that are as in the samples: areas, normals, and speeds, which inputs scale."""


class ForceLoss:
    """The squared error of each force or moment, in standard deviations of the training split, times a weight.

    Errors of the field at single points do not tell a wrong drag from a right one: it is a small difference of large
    pressures. The mean force per area and dynamic pressure is the same, apart from chance, however many points are
    drawn, so that a draw estimates the error of the whole surface.

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
            one = {key: sample[key][None] for key in (*scalar.needed_keys(), *scalar.fields)}
            value = mean_force(one, one, scalar)
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
        terms = [
            (mean_force(differences, batch, scalars[name]) / deviation).square()
            for name, deviation in self.deviation.items()
        ]
        return self.weight * torch.stack(terms).sum(dim=0).to(next(iter(differences.values())).dtype)
