"""Read CalculiX' result files (.frd), text or binary: the nodes, the elements, and the nodal fields of one step.

The cgx manual describes the format under "Results-data" (http://www.dhondt.de/cgx_2.22.pdf). The nodes are in the part
2C, the elements in 3C, and each field of a step in a part 100C.
"""

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from noether.physics.cases.mesh_files import import_pyvista

QUADRATIC_HEXAHEDRON = [*range(12), *range(16, 20), *range(12, 16)]  # .frd lists upright edges before top edges
QUADRATIC_WEDGE = [*range(9), *range(12, 15), *range(9, 12)]
ELEMENTS = {
    1: (12, [*range(8)]), 2: (13, [*range(6)]), 3: (10, [*range(4)]), 4: (25, QUADRATIC_HEXAHEDRON),
    5: (26, QUADRATIC_WEDGE), 6: (24, [*range(10)]), 7: (5, [*range(3)]), 8: (22, [*range(6)]), 9: (9, [*range(4)]),
    10: (23, [*range(8)]), 11: (3, [*range(2)]), 12: (21, [*range(3)]),
}  # fmt: skip
"""{number of an element type: (VTK's cell type, indices of the element's nodes in VTK's order)}"""
FLOATS = {2: "<f4", 3: "<f8"}  # number types of the binary formats
VALUE = re.compile(rb"-?(?:\d\.\d+E[-+]\d\d(?:\d(?!\.))?|nan|inf)", re.IGNORECASE)
"""A number in the format %12.5E, which may touch the next number. An exponent of three digits adds one character."""
IDENTITY = re.compile(rb"^ -1(.{10})", re.MULTILINE)
MARK = re.compile(rb"^ -[12]", re.MULTILINE)


@dataclass(frozen=True)
class _Part:
    """A part of the file: nodes (2C), elements (3C), or a field at a step (100C); `start` is the offset of its data."""

    kind: str
    count: int
    form: int
    start: int
    step: int = 0
    time: float = 0.0
    name: str = ""
    components: int = 3

    @property
    def record(self) -> np.dtype[Any]:
        """The binary record of one node: its id and its values, which always have double precision in 2C."""
        floats = FLOATS[3 if self.kind == "2C" else self.form]
        return np.dtype([("node", "<i4"), ("values", floats, (self.components,))])


class FrdFile:
    """An index of the parts of a .frd file; fields are read only when needed. ValueError: the file is incomplete."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._elements: tuple[np.ndarray, dict[int, list[int]]] = np.empty(0, np.int64), {}
        parts = list(self._parts())
        if not parts or parts[0].kind != "2C":
            raise ValueError("no nodes (2C)")
        self._nodes = parts[0]
        self._fields = [part for part in parts if part.kind == "100C"]
        self._steps = sorted({part.step: part.time for part in self._fields}.items())

    @property
    def times(self) -> list[float]:
        """The times of the steps; for vibration or buckling, the frequencies or factors of the modes."""
        return [time for _, time in self._steps]

    def mesh(self, step: int) -> Any:
        """Return the mesh (pyvista's UnstructuredGrid) with the nodal fields of a step; `step`: index into `times`."""
        nodes, points = self._rows(self._nodes)
        stream, starts = self._elements
        cells = {ELEMENTS[kind][0]: _places(nodes, stream[np.array(own)[:, None] + 4 + ELEMENTS[kind][1]])
                 for kind, own in starts.items()}  # fmt: skip
        mesh = import_pyvista().UnstructuredGrid(cells, points)
        for part in self._fields:
            if self._steps and part.step == self._steps[step][0]:
                own, values = self._rows(part)
                rows = np.full((len(points), part.components), np.nan)
                rows[_places(nodes, own)] = values
                mesh.point_data[part.name] = rows if part.components > 1 else rows[:, 0]
        return mesh

    def _parts(self) -> Iterator[_Part]:
        at = 0
        while at < len(self._bytes):
            line, at = self._line(at)
            kind = line[:6].decode(errors="replace").strip().removesuffix("L")
            if kind not in ("2C", "3C", "100C"):
                continue
            form, count = int(line[73:75] or 1), int(line[24:36])
            if form not in (1, *FLOATS):
                raise ValueError(f"format {form} of {kind}, but only 1, 2 and 3 are known")
            part = _Part(kind, count, form, at)
            if kind == "100C":
                named, at = self._line(at)
                stored = 0
                for _ in range(int(named[13:18])):
                    component, at = self._line(at)
                    stored += component[33:38].strip() != b"1"  # 1: not stored, cgx computes it
                name = named[5:13].decode().strip()
                part = _Part(kind, count, form, at, int(line[58:63]), float(line[12:24]), name, stored)
            if kind == "3C":
                self._elements = self._read_elements(part)
            yield part
            at = self._end(part)

    def _line(self, at: int) -> tuple[bytes, int]:
        """Return the line that begins at an offset, and the offset of the next line."""
        end = self._bytes.find(b"\n", at)
        if end < 0:
            raise ValueError("it ends in the middle of a line")
        return self._bytes[at:end], end + 1

    def _end(self, part: _Part) -> int:
        """Return the offset of the line after a part's numbers."""
        if part.form == 1:
            return self._line(self._text_end(part) + 1)[1]
        if part.kind == "3C":
            return part.start + self._elements[0].nbytes
        return part.start + part.count * part.record.itemsize

    def _text_end(self, part: _Part) -> int:
        end = self._bytes.find(b"\n -3", part.start - 1)
        if end < 0:
            raise ValueError(f"it ends within {part.name or part.kind}")
        return end

    def _read_elements(self, part: _Part) -> tuple[np.ndarray, dict[int, list[int]]]:
        """Return the integers of all elements (id, type, group, material, nodes), and the elements' offsets by type."""
        if part.form == 1:
            body = MARK.sub(b"", self._bytes[part.start : self._text_end(part)])
            stream = np.array(body.split(), np.int64)
        else:
            stream = np.frombuffer(self._bytes, "<i4", (len(self._bytes) - part.start) // 4, part.start)
        starts: dict[int, list[int]] = {}
        at = 0
        for _ in range(part.count):
            kind = int(stream[at + 1])
            if kind not in ELEMENTS:
                raise ValueError(f"elements of type {kind}")
            starts.setdefault(kind, []).append(at)
            at += 4 + len(ELEMENTS[kind][1])
        return stream[:at], starts

    def _rows(self, part: _Part) -> tuple[np.ndarray, np.ndarray]:
        """Return the node ids (N,) of a part, and the values (N, components) at these nodes."""
        if part.form != 1:
            rows = np.frombuffer(self._bytes, part.record, part.count, part.start)
            return rows["node"], rows["values"]
        body = self._bytes[part.start : self._text_end(part)]
        values = np.array(VALUE.findall(body), "S14").astype(np.float64)
        return np.array(IDENTITY.findall(body), np.int64), values.reshape(part.count, part.components)


def _places(nodes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the indices in `nodes` of the node ids `wanted`. ValueError: an id is missing."""
    order = np.argsort(nodes)
    found = order[np.searchsorted(nodes, wanted, sorter=order).clip(max=len(nodes) - 1)]
    if not np.array_equal(nodes[found], wanted):
        raise ValueError("it has elements or results at nodes that it lacks")
    return np.asarray(found)
