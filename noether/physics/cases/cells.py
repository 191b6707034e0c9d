"""The cells of a mesh by their dimension, by VTK's own table: what kind of set they make, and what belongs to none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from noether.common.numbers import first_of
from noether.physics.cases.case_map import SetKind
from noether.physics.cases.mesh_files import to_numpy

KINDS: dict[int, SetKind] = {2: "surface", 3: "volume"}
DIMENSIONS = {kind: dimension for dimension, kind in KINDS.items()}
CALLED = ("vertices", "lines", "faces", "cells in space")
"""Cells by their dimension."""
UNUSED = "points"
MOST_NAMED = 8
GHOST_TYPE, LEFT = "vtkGhostType", "noether:left"
TRIANGLE, POLYGON, QUAD = 5, 7, 9
"""VTK's numbers of the faces whose corners stand in turn."""
FLAT = 1e-14
"""A cell's volume, as a part of the cube of its longest side, that rounding leaves of nothing."""


@dataclass(frozen=True)
class Block:
    """One mesh of a file, without ghost cells, by the name of its block or patch ("" if the file has only one)."""

    name: str
    whole: Any
    lost: Mapping[str, int]
    """What of the file is not in the mesh: ghost cells, elements that a reader leaves out."""

    @classmethod
    def of(cls, name: str, mesh: Any) -> "Block":
        """Return the block of a mesh, whose ghost cells (of pieces, or hidden) are taken out."""
        left = [str(own).split(maxsplit=1) for own in mesh.field_data[LEFT]] if LEFT in mesh.field_data else []
        lost = {own[1]: int(own[0]) for own in left if own}
        if GHOST_TYPE not in mesh.cell_data:
            return cls(name, mesh, lost)
        own = mesh.copy()
        own.RemoveGhostCells()
        return cls(name, own, lost | {"ghost cells": mesh.n_cells - own.n_cells})

    @cached_property
    def dimensions(self) -> np.ndarray:
        """The dimension (n_cells,) of each cell."""
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
        """The kind of set that its cells of the highest dimension make."""
        return KINDS.get(int(self.dimensions.max(initial=0)), "points")

    @cached_property
    def mesh(self) -> Any:
        """The cells of the highest dimension, and their points; of lines and vertices all."""
        return self.cells(self.kind)

    def cells(self, kind: SetKind) -> Any:
        """Return the mesh of the cells of a kind; of "points", the whole."""
        if kind == "points" or (self.dimensions == DIMENSIONS[kind]).all():
            return self.whole
        mesh = self.whole.extract_cells(self.dimensions == DIMENSIONS[kind], pass_cell_ids=False, pass_point_ids=False)
        for data, name in ((mesh.cell_data, "vtkOriginalCellIds"), (mesh.point_data, "vtkOriginalPointIds")):
            if name in data:
                del data[name]
        return mesh

    def beside(self, kind: SetKind | None) -> dict[str, int]:
        """Return what a set of a kind (None: of other blocks) does not take of the block, and how much of it."""
        if kind == "points" or (kind is None and not self.dimensions.size):
            left = {} if kind else {"points": self.whole.n_points}
        else:
            counts = enumerate(np.bincount(self.dimensions).tolist())
            left = {CALLED[n]: count for n, count in counts if count and (kind is None or KINDS.get(n) != kind)}
            if left and kind:
                left |= {UNUSED: self.whole.n_points - self.cells(kind).n_points}
        return {what: count for what, count in (left | {**self.lost}).items() if count}


def range_text(values: Sequence[int]) -> str:
    """Return whole numbers as a text: their range, or the one that all are."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def in_no_set(cases: Sequence[Mapping[tuple[str, str], int]]) -> str:
    """Say what of the cases is in no set, of {(what, block): how much} of each: "7 cells (4 vertices, 3 lines)"."""
    keys = dict.fromkeys(key for own in cases for key in own)
    parts = {key: range_text([own.get(key, 0) for own in cases]) for key in keys}
    cells = [
        f"{parts[what, block]} {what}" + (f" of {block}" if block else "") for what, block in keys if what != UNUSED
    ]
    total = range_text([sum(count for (what, _), count in own.items() if what != UNUSED) for own in cases])
    points = range_text([sum(count for (what, _), count in own.items() if what == UNUSED) for own in cases])
    said = [f"{total} cells ({first_of(cells, MOST_NAMED)})"] if cells else []
    return "in no set: " + " and ".join(said + ([f"{points} points"] if points != "0" else []))


def polygons(mesh: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return a mesh of faces, their corners back to back, and where each face begins in these (F + 1,).

    Of a curved face the nodes of its edges count as corners, in turn. Only strips change the mesh: they become
    triangles. ValueError: a corner is no point of the mesh.
    """
    if hasattr(mesh, "n_strips"):
        mesh = mesh.triangulate() if mesh.n_strips else mesh
        cells, kinds = mesh.GetPolys(), np.empty(0, np.uint8)
    else:
        cells, kinds = mesh.GetCells(), np.asarray(mesh.celltypes)
    corners, offsets = to_numpy(cells.GetConnectivityArray()), to_numpy(cells.GetOffsetsArray())
    if corners.size and not 0 <= corners.min() <= corners.max() < mesh.n_points:
        raise ValueError(f"a face of point {int(corners.max())}, where there are {mesh.n_points} points")
    sizes, curved = np.diff(offsets), {*np.flatnonzero(np.bincount(kinds))} - {TRIANGLE, POLYGON, QUAD}
    for kind in curved:
        for size in np.unique(sizes[kinds == kind]):
            rows = np.flatnonzero((kinds == kind) & (sizes == size))
            places = offsets[rows][:, None] + np.arange(size)
            ring = _ring(mesh.GetCell(int(rows[0])))
            corners = corners.copy()
            corners[places[:, : len(ring)]] = corners[places[:, ring]]
            corners[places[:, len(ring) :]] = -1
            sizes[rows] = len(ring)
    return (mesh, corners[corners >= 0], np.append(0, np.cumsum(sizes))) if curved else (mesh, corners, offsets)


def _ring(face: Any) -> list[int]:
    """Return the places, among a face's nodes, of those of its edges, in turn."""
    places = {face.GetPointId(place): place for place in range(face.GetNumberOfPoints())}
    ring: list[int] = []
    end = -1
    for index in range(face.GetNumberOfEdges()):
        edge = face.GetEdge(index)  # VTK has the ends of an edge before its other nodes.
        first, last, *middle = [places[edge.GetPointId(place)] for place in range(edge.GetNumberOfPoints())]
        if last == end or (index == 0 and first in _ends(face.GetEdge(1), places)):
            first, last, middle = last, first, middle[::-1]
        ring += [first, *middle]
        end = last
    return ring


def _ends(edge: Any, places: dict[int, int]) -> list[int]:
    return [places[edge.GetPointId(place)] for place in (0, 1)]


def flat_cells(mesh: Any, volumes: np.ndarray) -> np.ndarray:
    """Return the places of the cells in space that have no volume, of `volumes` (n_cells,)."""
    if volumes.min(initial=np.inf) > 1e-9 * volumes.max(initial=0.0):
        return np.empty(0, np.int64)
    cells, points = mesh.GetCells(), np.asarray(mesh.points, np.float64)
    corners, starts = to_numpy(cells.GetConnectivityArray()), to_numpy(cells.GetOffsetsArray())[:-1]
    sides = [np.maximum.reduceat(axis, starts) - np.minimum.reduceat(axis, starts) for axis in points[corners].T]
    return np.flatnonzero(volumes <= FLAT * np.max(sides, axis=0) ** 3)
