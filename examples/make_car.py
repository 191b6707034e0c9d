"""Write car.stl in this folder: a half ellipsoid for `noether predict RUN --mesh examples/car.stl`.

The car is 4.0 m long, 1.1 m high and 1.8 m wide, like the cars that `make train` learns from; the file's unit is m. The
surface is open at the ground, y = 0, so a predicted lift is only that of the surface exposed to the wind.
"""

from pathlib import Path

import numpy as np

HALF_LENGTH, HEIGHT, HALF_WIDTH = 2.0, 1.1, 0.9  # m, along z, y and x
AROUND, UP = 48, 12  # the number of faces around the car, and from the ground to the top


def car_triangles() -> np.ndarray:
    """Return the surface's triangles (T, 3, 3) in m, whose corners are counter-clockwise seen from outside."""
    angle = np.linspace(0, 2 * np.pi, AROUND, endpoint=False)
    rise = np.linspace(0, np.pi / 2, UP + 1)[:, None]
    x, z = HALF_WIDTH * np.cos(rise) * np.sin(angle), HALF_LENGTH * np.cos(rise) * np.cos(angle)
    points = np.stack([x, np.broadcast_to(HEIGHT * np.sin(rise), x.shape), z], axis=-1)
    points[-1, :, ::2] = 0  # Make the top points coincide: the cosine of π/2 is 6e-17 in floating point.
    below, above = points[:-1], points[1:]
    next_below, next_above = np.roll(below, -1, axis=1), np.roll(above, -1, axis=1)
    lower = np.stack([below, next_below, next_above], axis=2).reshape(-1, 3, 3)
    upper = np.stack([below, next_above, above], axis=2)[:-1].reshape(-1, 3, 3)  # The top row is a point.
    return np.concatenate([lower, upper])


def stl(triangles: np.ndarray) -> bytes:
    """Return a binary STL file of triangles (T, 3, 3)."""
    normals = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    records = np.zeros(len(triangles), [("normal", "<3f4"), ("corners", "<9f4"), ("attribute", "<u2")])
    records["normal"], records["corners"] = normals, triangles.reshape(-1, 9)
    return b"A half ellipsoid, in m".ljust(80) + np.uint32(len(triangles)).tobytes() + records.tobytes()


if __name__ == "__main__":
    Path(__file__).with_name("car.stl").write_bytes(stl(car_triangles()))
