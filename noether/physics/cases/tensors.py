"""Symmetric tensors of six components: the orders that programs write them in, rotation, and invariants.

Prepared tensors are in VTK's order, by which ParaView names their components.
"""

from typing import Literal

import numpy as np

TensorOrder = Literal["vtk", "openfoam", "abaqus"]
Invariant = Literal["von_mises", "principal"]

COMPONENTS = ("xx", "yy", "zz", "xy", "yz", "xz")
"""Of a prepared tensor, in VTK's order (vtkDataSetAttributes, symmetric tensors). CalculiX' .frd has the same."""
ORDERS: dict[TensorOrder, tuple[str, ...]] = {
    "vtk": COMPONENTS,
    "openfoam": ("xx", "xy", "xz", "yy", "yz", "zz"),  # SymmTensorTemplate.H
    "abaqus": ("xx", "yy", "zz", "xy", "xz", "yz"),  # S11, S22, S33, S12, S13, S23
}
NAMES: dict[Invariant | None, tuple[str, ...]] = {
    None: COMPONENTS,
    "von_mises": (),
    "principal": ("largest", "middle", "smallest"),
}
"""What the components are called of a tensor (None), and of what is taken of it."""
_ROWS, _COLUMNS = (["xyz".index(name[side]) for name in COMPONENTS] for side in (0, 1))


def as_matrices(values: np.ndarray, order: TensorOrder = "vtk") -> np.ndarray:
    """Returns tensors (n, 6) of a program's order as symmetric matrices (n, 3, 3)."""
    matrices = np.empty((len(values), 3, 3), values.dtype)
    for column, name in enumerate(ORDERS[order]):
        row, other = "xyz".index(name[0]), "xyz".index(name[1])
        matrices[:, row, other] = matrices[:, other, row] = values[:, column]
    return matrices


def as_components(matrices: np.ndarray) -> np.ndarray:
    """Returns symmetric matrices (n, 3, 3) as tensors (n, 6) in VTK's order."""
    return np.asarray(matrices[:, _ROWS, _COLUMNS])


def invariant(values: np.ndarray, order: TensorOrder, kind: Invariant) -> np.ndarray:
    """Returns von Mises' equivalent (n, 1), or the principal values (n, 3), largest first, of tensors (n, 6).

    Von Mises: √(3/2 s:s) with the deviator s, in the unit of the tensor.
    """
    matrices = as_matrices(np.asarray(values, np.float64), order)
    if kind == "principal":
        return np.asarray(np.linalg.eigvalsh(matrices)[:, ::-1])
    deviators = matrices - np.trace(matrices, axis1=1, axis2=2)[:, None, None] / 3 * np.eye(3)
    return np.asarray(np.sqrt(1.5 * np.einsum("nij,nij->n", deviators, deviators))[:, None])
