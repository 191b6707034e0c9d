"""Forces and moments of predicted fields: pressure and wall shear stress integrated over the surface."""

from collections.abc import Mapping

import torch
from torch import Tensor

from noether.physics.settings import ForceCoefficientConfig

Batch = Mapping[str, Tensor]


def force_coefficient(
    pressure: Tensor, batch: Batch, scalar: ForceCoefficientConfig, shear: Tensor | None = None
) -> Tensor:
    """Returns ∮ (−p n + τ)·d dA / (q A_ref) for each sample, (B,); of a moment ∮ x × (−p n + τ)·d dA / (q A_ref L).

    pressure (B, N, 1) and shear (B, N, 3) in Pa, points and outward normals (B, N, 3), areas (B, N) in m², 0 where a
    point is padding. shear is τ as the air pulls on the wall; None: pressure alone.
    """
    return _force(pressure, batch, scalar, shear) / _reference(batch, scalar)


def mean_force(pressure: Tensor, batch: Batch, scalar: ForceCoefficientConfig, shear: Tensor | None) -> Tensor:
    """Returns the force or moment (B,) per area of the points and dynamic pressure; arguments as above."""
    return _force(pressure, batch, scalar, shear) / (
        _dynamic_pressure(batch, scalar) * batch[scalar.areas].double().sum(dim=1)
    )


def _force(pressure: Tensor, batch: Batch, scalar: ForceCoefficientConfig, shear: Tensor | None) -> Tensor:
    """Returns the force in N or moment in N·m along the direction, (B,)."""
    traction = -pressure.double() * batch[scalar.normals].double()
    if shear is not None:
        traction = traction + shear.double()
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
