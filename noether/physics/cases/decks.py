"""Decks of solvers and what else meshio reads; nodes and elements in the file are counted against what it gives.

meshio's readers are flat: of Abaqus' parts, instances and systems, and of Nastran's coordinate systems, they know
nothing. A deck with more of these than changes nothing is refused by name.
"""

import contextlib
import io
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from noether.physics.cases.mesh_files import Unfit

DECKS = (".msh", ".inp", ".bdf", ".nas")
"""Meshes that solvers read: they count only where no results lie beside them."""
MED_STEP = re.compile(r"(.+)\[\d+\] - ([-+.\de]+)$")
"""The name that meshio gives to an array of a .med: with its step and time."""
GENERATORS = ("SYSTEM", "NGEN", "NFILL", "NCOPY", "NMAP", "ELGEN", "ELCOPY", "PARAMETER", "SUBSTRUCTURE GENERATE")
"""Abaqus' keywords that place or make nodes and elements which no line lists (Abaqus Keywords Guide)."""
PARAMETER = re.compile(r",\s*(\w+)\s*=\s*([^,]+)")
NASTRAN = re.compile(rb"^(GRID|C[A-Z0-9]+)(?=[*, \t])", re.MULTILINE)
LONGEST_DECK = 5  # files that include each other


def read_by_meshio(path: Path) -> Any:
    """Read the mesh of a file by meshio, without its groups.

    Raises Unfit: the file has what meshio does not know, or other numbers of nodes or elements than came out; and
    what meshio raises.
    """
    import meshio

    source: Any = path
    counts: list[int | None]
    if path.suffix.lower() == ".inp":
        deck = _FlatAbaqus(path)
        source, counts = io.StringIO(deck.text), [len(deck.nodes), deck.count]
    else:
        counts = list(_COUNTS[path.suffix.lower()](path))
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        try:
            mesh = meshio.read(source, "abaqus" if source is not path else None)
        except SystemExit:  # meshio ends the program on files that it cannot read
            raise ValueError(" ".join(said.getvalue().split()) or "not a file that meshio reads") from None
    found = len(mesh.points), sum(len(cells.data) for cells in mesh.cells)
    for what, own, there in zip(("nodes", "elements"), found, counts, strict=True):
        if there is not None and own != there:
            raise Unfit(f"{own:,} {what} came out of meshio, and the file has {there:,}")
    if any(mesh.point_data.get("nastran:ref", ())):
        raise Unfit("GRID points in a coordinate system of their own (CP), and only the basic system is read")
    mesh.cell_sets, mesh.point_sets = {}, {}  # groups, whose numbers in Gmsh's files are not all of cells
    return mesh


class _FlatAbaqus:
    """A deck as meshio reads it: one block of nodes before all elements, `count` of them. Unfit: it is not flat."""

    def __init__(self, path: Path) -> None:
        self.nodes: dict[str, str] = {}
        self.count = 0
        self._elements: list[str] = []
        self._names: dict[str, list[str]] = {"PART": [], "INSTANCE": []}
        self._scope: list[str] = []
        self._block = ""
        for line in _lines_of(path):
            self._keyword(line) if line.startswith("*") else self._data(line)
        for kind, names in self._names.items():
            if len(names) > 1:
                raise Unfit(f"several of *{kind} ({', '.join(names[:4])}), of which each has numbers of its own")

    @property
    def text(self) -> str:
        return "\n".join(["*NODE", *self.nodes.values(), *self._elements, ""])

    def _keyword(self, line: str) -> None:
        named = _parameters(line)
        self._block = line[1:].partition(",")[0].strip().upper()
        if self._block in GENERATORS or (self._block == "NODE" and named.get("SYSTEM", "R").upper() != "R"):
            raise Unfit(f"*{self._block} places or makes nodes or elements, which is not read: write the deck flat")
        if self._block in self._names:
            self._names[self._block].append(named.get("NAME", "?"))
        if self._block in ("ASSEMBLY", "INSTANCE"):
            self._scope.append(self._block)
        elif self._scope and self._block == f"END {self._scope[-1]}":
            self._scope.pop()
        elif self._block == "ELEMENT":
            self._elements.append(f"*ELEMENT, TYPE={named.get('TYPE', '').upper()}")

    def _data(self, line: str) -> None:
        number = line.partition(",")[0].strip()
        if self._block == "INSTANCE" and any(float(own) for own in line.split(",") if own.strip()):
            raise Unfit(f"the instance {self._names['INSTANCE'][-1]} is moved or turned ({line}), which is not read")
        if self._block == "NODE" and self._scope != ["ASSEMBLY"]:  # whose reference points are no part of the mesh
            if self.nodes.setdefault(number, line) != line:
                raise Unfit(f"two nodes have the number {number}")
        elif self._block == "ELEMENT":
            self._elements.append(line)
            self.count += not line.endswith(",")


def _parameters(line: str) -> dict[str, str]:
    return {key.upper(): value.strip() for key, value in PARAMETER.findall(line)}


def _lines_of(path: Path, depth: int = 0) -> Iterator[str]:
    """Yield the lines of an Abaqus deck but for comments, with those of the files that it includes."""
    if not path.is_file() or depth > LONGEST_DECK:
        raise Unfit(f"it includes {path.name}, which is not there" if depth <= LONGEST_DECK else "it includes itself")
    with path.open(errors="replace") as file:
        for own in file:
            line = own.strip()
            if not line or line.startswith("**"):
                continue
            yield line
            if re.match(r"\*(INCLUDE|NODE|ELEMENT)\b.*INPUT", line, re.IGNORECASE):
                yield from _lines_of(path.parent / _parameters(line)["INPUT"], depth + 1)


def _count_nastran(path: Path) -> tuple[int, int]:
    from meshio.nastran._nastran import nastran_to_meshio_type as known

    text = path.read_bytes()
    if found := re.search(rb"^\s*(INCLUDE\b.*|BEGIN\s+SUPER.*)", text, re.MULTILINE | re.IGNORECASE):
        raise Unfit(f"{found[1].decode(errors='replace').strip()} is not read: write the deck as one file")
    cards = [card.decode() for card in NASTRAN.findall(text.partition(b"ENDDATA")[0])]
    return cards.count("GRID"), sum(card in known for card in cards)


def _count_gmsh(path: Path) -> tuple[int | None, int | None]:
    """Return the numbers that stand at the head of $Nodes and $Elements, in text or binary (Gmsh manual, "MSH")."""
    content = path.read_bytes()
    found: list[int | None] = []
    version = content.partition(b"$MeshFormat")[2].split(maxsplit=3)[:3]
    for name in (b"$Nodes", b"$Elements"):
        _, _, body = content.partition(name)
        body = body.partition(b"\n")[2]
        if not version or not body:
            found.append(None)
        elif not version[0].startswith(b"4"):
            found.append(int(body.split(maxsplit=1)[0]))
        elif version[1] == b"1":
            found.append(struct.unpack("=QQ", body[:16])[1])
        else:
            found.append(int(body.split(maxsplit=2)[1]))
    return found[0], found[1]


def _count_ply(path: Path) -> tuple[int, int]:
    with path.open("rb") as file:
        head = file.read(65_536).partition(b"end_header")[0]
    counts = {kind: int(count) for kind, count in re.findall(rb"^element (\w+) (\d+)", head, re.MULTILINE)}
    return counts.get(b"vertex", 0), counts.get(b"face", 0)


def _count_med(path: Path) -> tuple[int, int]:
    """Return the numbers of nodes and cells of the one mesh of a .med (MED file format: ENS_MAA, NOE, MAI)."""
    import h5py  # type: ignore[import-untyped]

    with h5py.File(path) as file:
        (mesh,) = file["ENS_MAA"].values()
        mesh = mesh if "NOE" in mesh else next(iter(mesh.values()))
        elements = sum(int(own["NOD"].attrs["NBR"]) for own in mesh["MAI"].values())
        return int(mesh["NOE/COO"].attrs["NBR"]), elements


_COUNTS = {".bdf": _count_nastran, ".nas": _count_nastran, ".msh": _count_gmsh, ".ply": _count_ply, ".med": _count_med}
