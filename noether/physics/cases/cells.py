"""Find the kind of set that a mesh's cells form, and the cells that are in no set, by the cells' dimension in VTK."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from noether.common.numbers import first_of
from noether.physics.cases.case_map import SetKind
from noether.physics.cases.mesh_files import Unfit, import_pyvista, to_numpy

KINDS: dict[int, SetKind] = {2: "surface", 3: "volume"}
DIMENSIONS = {kind: dimension for dimension, kind in KINDS.items()}
CALLED = ("vertices", "lines", "faces", "cells in space")
"""Names of the cells with dimension 0, 1, 2 and 3."""
LOOSE, UNUSED = "points", "points of no cell in the set"
POINTS = (LOOSE, UNUSED)
MOST_NAMED = 8
GHOST_TYPE, LEFT = "vtkGhostType", "noether:left"
TRIANGLE, STRIP, POLYGON, QUAD = 5, 6, 7, 9
"""VTK's cell types for triangle strips, and for the faces whose corners VTK lists in order around the face."""
FLAT = 1e-14
"""Largest volume of a cell that counts as flat, relative to the cube of its longest side; not 0 because of rounding."""


@dataclass(frozen=True, eq=False)
class Block:
    """One mesh of a file, without ghost cells, and the name of its block or patch ("" if the file has only one)."""

    name: str
    whole: Any
    lost: Mapping[str, int]
    """Counts of the file's contents that are not in the mesh: ghost cells, and elements that a reader leaves out."""
    _cells: dict[SetKind, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, mesh: Any) -> "Block":
        """Return a mesh as a block, without its ghost cells (hidden cells, and cells that another piece also has)."""
        mesh = mesh.triangulate(pass_verts=True, pass_lines=True) if getattr(mesh, "n_strips", 0) else mesh
        lost = {}
        if LEFT in mesh.field_data:
            lost = {what: int(count) for count, _, what in (own.partition(" ") for own in mesh.field_data[LEFT])}
            del mesh.field_data[LEFT]
        if GHOST_TYPE not in mesh.cell_data:
            return cls(name, mesh, lost)
        own = mesh.copy()
        own.RemoveGhostCells()
        return cls(name, own, lost | {"ghost cells": mesh.n_cells - own.n_cells})

    @cached_property
    def dimensions(self) -> np.ndarray:
        """The dimension of each cell, (n_cells,)."""
        from vtkmodules.vtkCommonDataModel import vtkCellTypeUtilities

        if hasattr(self.whole, "n_strips"):  # PolyData: vertices first, then lines, faces and strips
            counts = [getattr(self.whole, f"GetNumberOf{name}")() for name in ("Verts", "Lines", "Polys", "Strips")]
            return np.repeat(np.array([0, 1, 2, 2], np.int8), counts)
        kinds, table = np.asarray(getattr(self.whole, "celltypes", np.empty(0, np.uint8))), np.zeros(256, np.int8)
        for kind in np.flatnonzero(np.bincount(kinds)):
            table[kind] = vtkCellTypeUtilities.GetDimension(int(kind))
        return np.asarray(table[kinds])

    @property
    def kind(self) -> SetKind:
        """The kind of set that the cells of the highest dimension form."""
        return KINDS.get(int(self.dimensions.max(initial=0)), "points")

    @property
    def mesh(self) -> Any:
        """The mesh of the cells of the highest dimension, or the whole mesh if it has only lines and vertices."""
        return self.cells(self.kind)

    def cells(self, kind: SetKind) -> Any:
        """Return the mesh of the cells of this kind or, if the kind is "points", the whole mesh."""
        if kind == "points" or (self.dimensions == DIMENSIONS[kind]).all():
            return self.whole
        if kind not in self._cells:
            own = self.dimensions == DIMENSIONS[kind]
            self._cells[kind] = self.whole.extract_cells(own, pass_cell_ids=False, pass_point_ids=False)
        return self._cells[kind]

    def beside(self, kind: SetKind | None) -> dict[str, int]:
        """Count what a set of this kind would leave out of the block, {what: count}; if `kind` is None, count all."""
        if kind == "points" or (kind is None and not self.dimensions.size):
            left = {} if kind else {LOOSE: self.whole.n_points}
        else:
            counts = enumerate(np.bincount(self.dimensions).tolist())
            left = {CALLED[n]: count for n, count in counts if count and (kind is None or KINDS.get(n) != kind)}
            if left and kind:
                left |= {UNUSED: self.whole.n_points - self.cells(kind).n_points}
        return {what: count for what, count in (left | {**self.lost}).items() if count}


def range_text(values: Sequence[int]) -> str:
    """Return the range of integers as text, such as "1 to 3", or "1" if all of them are 1."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def in_no_set(cases: Sequence[Mapping[tuple[str, str], int]]) -> str:
    """Describe what is in no set, like "in no set: 7 cells (7 lines)"; cases: {(what, block): count} of each case."""
    keys = dict.fromkeys(key for own in cases for key in own)
    parts = {key: range_text([own.get(key, 0) for own in cases]) for key in keys}
    named = ((what, f"{parts[what, block]} {what}" + (f" of {block}" if block else "")) for what, block in keys)
    cells = [text for what, text in named if what not in POINTS]
    total = range_text([sum(count for (what, _), count in own.items() if what not in POINTS) for own in cases])
    points = range_text([sum(count for (what, _), count in own.items() if what in POINTS) for own in cases])
    said = [f"{total} cells ({first_of(cells, MOST_NAMED)})"] if cells else []
    return "in no set: " + " and ".join(said + ([f"{points} points"] if points != "0" else []))


def polygons(mesh: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of all faces of a mesh, concatenated, and the offsets (F + 1,) at which the faces begin.

    If a face is curved, the nodes on its edges become corners, in order around the face. Unfit: a corner is not a point
    of the mesh, or the mesh has strips.
    """
    is_flat = hasattr(mesh, "n_strips")
    cells, kinds = (mesh.GetPolys(), np.empty(0, np.uint8)) if is_flat else (mesh.GetCells(), mesh.celltypes)
    corners, offsets = to_numpy(cells.GetConnectivityArray()), to_numpy(cells.GetOffsetsArray())
    if corners.size and not 0 <= corners.min() <= corners.max() < mesh.n_points:
        raise Unfit(f"a face uses point {int(corners.max())}, but there are {mesh.n_points} points")
    sizes, curved = np.diff(offsets), {*np.flatnonzero(np.bincount(kinds))} - {TRIANGLE, POLYGON, QUAD}
    if STRIP in curved:
        raise Unfit("triangle strips in a grid of other cells")
    if not curved:
        return corners, offsets
    corners = corners.copy()
    for kind in curved:
        for size in np.unique(sizes[kinds == kind]):
            rows = np.flatnonzero((kinds == kind) & (sizes == size))
            places, ring = offsets[rows][:, None] + np.arange(size), _ring(int(kind), int(size))
            corners[places[:, : len(ring)]] = corners[places[:, ring]]
            corners[places[:, len(ring) :]] = -1
            sizes[rows] = len(ring)
    return corners[corners >= 0], np.append(0, np.cumsum(sizes))


def _ring(kind: int, size: int) -> list[int]:
    """Return the indices of a face's nodes that are on its edges, in order around the face."""
    face = import_pyvista().UnstructuredGrid(np.array([size, *range(size)]), np.array([kind]), np.zeros((size, 3)))
    cell = face.GetCell(0)
    edges = [[edge.GetPointId(place) for place in range(edge.GetNumberOfPoints())]
             for edge in map(cell.GetEdge, range(cell.GetNumberOfEdges()))]  # fmt: skip
    # VTK lists the two ends of an edge before its other nodes. The edges of a pixel (a cell type) have any direction.
    end, ring = next(iter({*edges[0][:2]} - {*edges[1][:2]})), list[int]()
    for first, last, *middle in edges:
        ring += [end, *(middle if first == end else middle[::-1])]
        end = last if first == end else first
    return ring


def flat_cells(mesh: Any, volumes: np.ndarray) -> np.ndarray:
    """Return the indices of the cells whose volume is zero, apart from rounding errors; volumes: (n_cells,)."""
    if volumes.min(initial=np.inf) > 1e-9 * volumes.max(initial=0.0):
        return np.empty(0, np.int64)
    cells, points = mesh.GetCells(), np.asarray(mesh.points, np.float64)
    corners, starts = to_numpy(cells.GetConnectivityArray()), to_numpy(cells.GetOffsetsArray())[:-1]
    along = (axis[corners] for axis in points.T)  # one axis at a time, because the arrays are large
    sides = [np.maximum.reduceat(own, starts) - np.minimum.reduceat(own, starts) for own in along]
    return np.flatnonzero(volumes <= FLAT * np.max(sides, axis=0) ** 3)
