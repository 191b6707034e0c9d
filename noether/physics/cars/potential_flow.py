"""Compute the exact potential flow past a triaxial ellipsoid, on its surface and around it.

The ellipsoid is at the origin, with its semi-axes along x, y and z (the body frame), in a uniform free stream U. All
arrays are float64; lengths, speeds and pressures may be in any consistent units.

Notation and formulas: H. Lamb, Hydrodynamics (6th ed., 1932), articles 110-114; the integrals are written as Carlson's
R_D (B. C. Carlson, Numerical computation of real or complex elliptic integrals, 1995). With Δ(λ) = √Π(a_k² + λ),

    χ_i(λ) = a₁a₂a₃ ∫_λ^∞ ds / ((a_i² + s) Δ(s)) = (2/3) a₁a₂a₃ R_D(a_j² + λ, a_k² + λ, a_i² + λ),

and α_i = χ_i(0), for which Σα_i = 2. The flow has no vorticity, no wake and no boundary layer.
"""

from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Largest rounding error of Σ(x_i/a_i)² = 1 for points on the surface; points further inside are refused.
SURFACE_TOLERANCE = 1e-12
# Near the root, every step of Newton's method doubles the correct digits; a distant start needs a few more steps.
MAX_NEWTON_STEPS = 100
# ε^(1/8): within this radius, the terms that the series of R_D leaves out are below the rounding of a double.
SERIES_RADIUS = np.finfo(np.float64).eps ** (1 / 8)


def alpha(semi_axes: ArrayLike) -> Array:
    """Return the α_i of the module's docstring, shape (3,). They sum to 2; those of a sphere are 2/3 each."""
    axes = _checked_axes(semi_axes)
    return np.array([_chi_component(axes, np.zeros(()), i) for i in range(3)])


def surface_normals(semi_axes: ArrayLike, points: ArrayLike) -> Array:
    """Return unit outward normals, (..., 3), at points (..., 3) of the surface; their direction is x_i / a_i²."""
    gradient = np.asarray(points, np.float64) / _checked_axes(semi_axes) ** 2
    return np.asarray(gradient / np.linalg.norm(gradient, axis=-1, keepdims=True))


def surface_velocity(semi_axes: ArrayLike, freestream: ArrayLike, points: ArrayLike) -> Array:
    """Return the velocity, (..., 3), at points (..., 3) of the surface in the free stream (3,).

    It is the tangential part of the constant vector V_i = 2 U_i / (2 − α_i) (Lamb, article 114).
    """
    normals = surface_normals(semi_axes, points)
    vector = 2 * np.asarray(freestream, np.float64) / (2 - alpha(semi_axes))
    return vector - (normals @ vector)[..., None] * normals


def pressure_coefficient(freestream: ArrayLike, velocity: ArrayLike) -> Array:
    """Return Cp = 1 − |u|²/|U|² (Bernoulli), shape (...), for velocities (..., 3) in the free stream (3,)."""
    stream = np.asarray(freestream, np.float64)
    return np.asarray(1 - np.sum(np.square(np.asarray(velocity, np.float64)), axis=-1) / (stream @ stream))


def ellipsoidal_coordinate(semi_axes: ArrayLike, points: ArrayLike) -> Array:
    """Return λ ≥ 0, the largest root of Σ x_i²/(a_i² + λ) = 1, shape (...), at points (..., 3).

    λ identifies the confocal ellipsoid through the point, and is 0 on the surface. Newton's method starts at
    max(0, r² − a_max²), which is never beyond the root. From there to the root, the sum is convex and falling, so the
    iterates rise to the root without overshooting it. ValueError: a point is not finite, or is inside the ellipsoid,
    where the formulas of the flow overflow.
    """
    squares = _checked_axes(semi_axes) ** 2
    points_squared = np.square(np.asarray(points, np.float64))
    level = np.sum(points_squared / squares, axis=-1)
    refused = ~((level >= 1 - SURFACE_TOLERANCE) & np.isfinite(level))
    if refused.any():
        raise ValueError(
            f"{int(refused.sum())} of {level.size} points lie inside the ellipsoid or are not finite: "
            "potential flow is defined outside only"
        )
    lam: Array = np.maximum(0.0, points_squared.sum(axis=-1) - squares.max())
    for _ in range(MAX_NEWTON_STEPS):
        terms = points_squared / (squares + lam[..., None])
        slope = np.sum(terms / (squares + lam[..., None]), axis=-1)
        step = (terms.sum(axis=-1) - 1) / slope
        # Because of rounding, the last steps are negative or a few units in the last place; these are not progress.
        moving = step > 4 * np.finfo(np.float64).eps * (lam + squares.min())
        if not moving.any():
            break
        lam = np.where(moving, lam + step, lam)
    return lam


def volume_velocity(semi_axes: ArrayLike, freestream: ArrayLike, points: ArrayLike) -> Array:
    """Return the velocity, (..., 3), at exterior points (..., 3) in the free stream (3,).

    u_i = U_i (1 + χ_i/(2−α_i)) + ∂_iλ Σ_j U_j x_j χ_j′/(2−α_j), where χ_j′ = −a₁a₂a₃/((a_j²+λ) Δ(λ)) and
    ∂_iλ = [2x_i/(a_i²+λ)] / Σ_k x_k²/(a_k²+λ)². ValueError as for `ellipsoidal_coordinate`.
    """
    axes = _checked_axes(semi_axes)
    stream = np.asarray(freestream, np.float64)
    points = np.asarray(points, np.float64)
    lam = ellipsoidal_coordinate(axes, points)
    ratio = stream / (2 - alpha(axes))

    shifted = axes**2 + lam[..., None]
    chi_slope = -axes.prod() / (shifted * np.sqrt(shifted.prod(axis=-1, keepdims=True)))
    scaled = points / shifted
    gradient = 2 * scaled / np.sum(scaled**2, axis=-1, keepdims=True)
    velocity: Array = stream + gradient * ((points * chi_slope) @ ratio)[..., None]
    for i in np.flatnonzero(stream):  # R_D is expensive, and zero components do not need it
        velocity[..., i] += ratio[i] * _chi_component(axes, lam, int(i))
    return velocity


def half_area(semi_axes: ArrayLike) -> float:
    """Return the area of the curved surface of half an ellipsoid, 2π a₁a₂a₃ R_G(a₁⁻², a₂⁻², a₃⁻²) (Carlson)."""
    axes = _checked_axes(semi_axes)
    from scipy.special import elliprg

    return float(2 * np.pi * axes.prod() * elliprg(*axes**-2.0))


def half_force_coefficients(semi_axes: ArrayLike, freestream: ArrayLike) -> Array:
    """Return the force (3,) on the upper half (y > 0) of the ellipsoid, divided by ½ρ|U|² and the planform π a_x a_z.

    The half stands on the ground plane y = 0; by mirror symmetry, the flow there is exact if the stream has no y-part.
    On its flat underside Cp is set to 0, as if the air under the car were at ambient pressure, so the force is
    −∫ Cp n dA over the curved surface alone. If the surface is written as x = A s, with s on the unit sphere, then
    n dA = a₁a₂a₃ A⁻¹s dΩ. This makes the integrand smooth: Gauss-Legendre in s_y and the trapezoid rule in the azimuth
    converge exponentially. Drag and side force vanish by symmetry; the nodes have the same symmetry, so only rounding
    errors remain. For a hemisphere, the y component is 11/16.
    """
    axes, stream = _checked_axes(semi_axes), _along_the_ground(freestream)
    directions, weights = hemisphere_rule(64, 128)
    velocity = surface_velocity(axes, stream, axes * directions)
    vector_area = axes.prod() * directions / axes * weights[:, None]
    return np.asarray(-pressure_coefficient(stream, velocity) @ vector_area / (np.pi * axes[0] * axes[2]))


def half_yawing_moment(semi_axes: ArrayLike, freestream: ArrayLike) -> float:
    """Return the pressure's moment about y on the upper half (y > 0) of the ellipsoid, divided by ½ρ|U|².

    By mirror symmetry in y = 0, both halves have the same moment: half of Munk's moment ρ V (k_z − k_x) U_x U_z of the
    whole ellipsoid. V = 4/3 π a₁a₂a₃ is the volume, and k_i = α_i/(2 − α_i) are the coefficients of added mass (Lamb,
    articles 114 and 124; M. M. Munk, NACA Report 184, 1924). The result is a volume, and 0 without yaw. The moments
    about x and z are always 0, because the pressure is the same at (x, y, z) and (−x, y, −z).
    """
    axes, stream = _checked_axes(semi_axes), _along_the_ground(freestream)
    added = alpha(axes) / (2 - alpha(axes))
    volume = 4 / 3 * np.pi * axes.prod()
    return float(volume * (added[2] - added[0]) * stream[0] * stream[2] / (stream @ stream))


@cache
def hemisphere_rule(polar: int, azimuth: int) -> tuple[Array, Array]:
    """Return directions (polar·azimuth, 3) of the hemisphere y > 0, and their solid angles, which sum to 2π.

    They combine Gauss-Legendre nodes in y ∈ (0, 1) with equally spaced azimuths about y. If `azimuth` is even, both
    (x, y, z) and (−x, y, −z) are among the nodes.
    """
    nodes, node_weights = np.polynomial.legendre.leggauss(polar)
    heights, angles = np.meshgrid((nodes + 1) / 2, 2 * np.pi * np.arange(azimuth) / azimuth, indexing="ij")
    radius = np.sqrt(1 - heights**2)
    directions = np.stack([radius * np.sin(angles), heights, radius * np.cos(angles)], axis=-1).reshape(-1, 3)
    weights = np.repeat(node_weights / 2 * (2 * np.pi / azimuth), azimuth)
    directions.setflags(write=False)  # The cached arrays are shared.
    weights.setflags(write=False)
    return directions, weights


def _chi_component(axes: Array, lam: Array, i: int) -> Array:
    j, k = (i + 1) % 3, (i + 2) % 3
    return np.asarray(2 / 3 * axes.prod() * carlson_rd(*(axes[n] ** 2 + lam for n in (j, k, i))))


def carlson_rd(x: Array, y: Array, z: Array) -> Array:
    """Return R_D(x, y, z) for positive arrays of one shape, by Carlson's duplication and the series of DLMF 19.36.2.

    scipy.special has R_D too, but its import would take 0.8 s at the first sample of every rank.
    """
    start, mean = (x, y), (x + y + 3 * z) / 5
    spread = np.maximum(np.maximum(abs(mean - x), abs(mean - y)), abs(mean - z))
    at_start, total, scale = mean, np.zeros_like(mean), 1.0
    # The first term that the series leaves out is of eighth order.
    while (scale * spread > SERIES_RADIUS * mean).any():
        roots = np.sqrt(x), np.sqrt(y), np.sqrt(z)
        shift = roots[0] * roots[1] + roots[0] * roots[2] + roots[1] * roots[2]
        total += scale / (roots[2] * (z + shift))
        scale /= 4
        x, y, z, mean = ((value + shift) / 4 for value in (x, y, z, mean))
    dx, dy = (scale * (at_start - value) / mean for value in start)
    dz = -(dx + dy) / 3
    e2, e3 = dx * dy - 6 * dz**2, (3 * dx * dy - 8 * dz**2) * dz
    e4, e5 = 3 * (dx * dy - dz**2) * dz**2, dx * dy * dz**3
    series = 1 - 3 / 14 * e2 + e3 / 6 + 9 / 88 * e2**2 - 3 / 22 * e4 - 9 / 52 * e2 * e3 + 3 / 26 * e5
    series += 3 / 40 * e3**2 - e2**3 / 16 + 3 / 20 * e2 * e4
    series += 45 / 272 * e2**2 * e3 - 9 / 68 * (e3 * e4 + e2 * e5)
    return np.asarray(scale * series / (mean * np.sqrt(mean)) + 3 * total)


def _checked_axes(semi_axes: ArrayLike) -> Array:
    """Return the semi-axes as an array (3,). ValueError: they are not three positive finite numbers."""
    axes = np.asarray(semi_axes, np.float64)
    if axes.shape != (3,) or not (np.isfinite(axes) & (axes > 0)).all():
        raise ValueError(f"semi-axes must be three positive finite numbers, not {semi_axes!r}")
    return axes


def _along_the_ground(freestream: ArrayLike) -> Array:
    """Return the free stream past half an ellipsoid as an array (3,). ValueError: the stream has a y-part."""
    stream = np.asarray(freestream, np.float64)
    if stream[1] != 0:
        raise ValueError(f"the stream must run along the ground: its y-part is {stream[1]}, not 0")
    return stream
