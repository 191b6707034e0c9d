"""Read solver decks and other formats with meshio, and compare its counts of nodes and elements with the file's.

meshio's readers are flat: they ignore Abaqus' parts, instances and systems, and Nastran's coordinate systems. If any of
these features matters in a deck, Unfit is raised, and the message names the feature.
"""

import contextlib
import io
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from noether.common.processes import EndedBySignal
from noether.physics.cases.mesh_files import Unfit

DECKS = (".msh", ".inp", ".bdf", ".nas")
"""Suffixes of solvers' input files, whose meshes are used only if the folder has no results."""
MED_STEP = re.compile(r"(.+)\[\d+\] - ([-+.\de]+)$")
"""Pattern of the names that meshio gives to the arrays of a .med file; a name includes the array's step and time."""
GENERATORS = ("SYSTEM", "NGEN", "NFILL", "NCOPY", "NMAP", "ELGEN", "ELCOPY", "PARAMETER", "SUBSTRUCTURE GENERATE")
"""Abaqus' keywords that move or generate nodes and elements without listing them (Abaqus Keywords Guide)."""
PARAMETER = re.compile(r",\s*(\w+)\s*=\s*([^,]+)")
KNOWN: tuple[tuple[str, dict[int, tuple[str, int]]], ...] = (
    (r"(?:[DA]?C?C3D|COH3D|SC)(\d+)", {n: (f"C3D{n}", n) for n in (4, 6, 8, 10, 15, 20)}),
    (r"(?:STRI|SFM3D|[SRM]3D|CPE|CPS|CAX|DC2D|DCAX|AC2D|DS|S)(\d)",
     {3: ("S3", 3), 4: ("S4", 4), 6: ("STRI65", 6), 8: ("S8R", 8)}),
    (r"T[23]D([23])", {2: ("T3D2", 2), 3: ("T3D3", 3)}),
    (r"B[23]([123])", {1: ("B31", 2), 2: ("B32", 3), 3: ("B33", 2)}),
)  # fmt: skip
"""Abaqus' element types (Elements Guide): pattern, {the number in it: (a type that meshio reads, count of nodes)}."""
DEEPEST = 5  # the maximum number of levels at which files include other files


def read_by_meshio(path: Path) -> tuple[Any, dict[str, int]]:
    """Read a file's mesh with meshio, but not its groups; return the mesh and, by type, counts of left-out elements.

    Raises Unfit: the file has a feature that meshio ignores, or meshio's count of nodes or elements differs from
    the file's. Errors of meshio pass through.
    """
    import meshio

    form, suffix, left = None, path.suffix.lower(), dict[str, int]()
    source: Path | io.StringIO = path
    counts: Sequence[int | None]
    if suffix == ".inp":
        deck = _FlatAbaqus(path)
        form, source, left, counts = "abaqus", io.StringIO(deck.text), deck.left, (len(deck.nodes), deck.count)
    elif suffix in (".bdf", ".nas"):
        form, (text, left, counts) = "nastran", _flat_nastran(path)
        source = io.StringIO(text)
    else:
        counts = _count_gmsh(path) if suffix == ".msh" else _count_med(path)
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        try:
            mesh = meshio.read(source, form)
        except EndedBySignal:
            raise
        except SystemExit:  # meshio exits the program on files that it cannot read
            raise ValueError(" ".join(said.getvalue().split()) or "not a file that meshio reads") from None
    found = len(mesh.points), sum(len(cells.data) for cells in mesh.cells)
    for what, own, there in zip(("nodes", "elements"), found, counts, strict=True):
        if there is not None and own != there:
            raise Unfit(f"{own:,} {what} were read by meshio, but the file has {there:,}")
    if any(mesh.point_data.get("nastran:ref", ())):
        raise Unfit("GRID points in another coordinate system (CP): only the basic system is read")
    mesh.cell_sets, mesh.point_sets = {}, {}  # drop groups: Gmsh's may list things other than cells
    return mesh, left


class _FlatAbaqus:
    """An Abaqus deck rewritten for meshio: one block of nodes, then `count` elements. Unfit: the deck is not flat.

    left: counts, by type, of the elements that meshio does not know, such as masses and springs.
    """

    def __init__(self, path: Path) -> None:
        self.nodes: dict[str, str] = {}
        self.left = Counter[str]()
        self._elements: dict[str, list[str]] = {}
        self._names: dict[str, list[str]] = {"PART": [], "INSTANCE": []}
        self._scope: list[str] = []
        self._block = self._type = ""
        for line in _lines_of(path):
            self._keyword(line) if line.startswith("*") else self._data(line)
        for kind, names in self._names.items():
            if len(names) > 1:
                raise Unfit(f"several *{kind} ({', '.join(names[:4])}), each with its own numbering")
        lines, numbers, self.count = ["*NODE", *self.nodes.values()], Counter[str](), 0
        for kind, own in self._elements.items():
            known, nodes = _known_type(kind)
            if not nodes:
                self.left[f"elements of type {kind}"] += sum(not line.endswith(",") for line in own)
                continue
            rows: list[list[str]] = []
            for words in ([word for word in line.split(",") if word.strip()] for line in own):
                if rows and len(rows[-1]) <= nodes:
                    rows[-1] += words
                else:
                    rows.append(words)
            lines += [f"*ELEMENT, TYPE={known}", *(",".join(row[: nodes + 1]) for row in rows)]  # a beam lists one more
            numbers.update(row[0].strip() for row in rows)
            self.count += len(rows)
        if twice := [number for number, times in numbers.items() if times > 1]:
            raise Unfit(f"two elements have the number {twice[0]}")
        self.text = "\n".join([*lines, ""])

    def _keyword(self, line: str) -> None:
        named = _parameters(line)
        self._block = line[1:].partition(",")[0].strip().upper()
        if self._block in GENERATORS or (self._block == "NODE" and named.get("SYSTEM", "R").upper() != "R"):
            raise Unfit(f"*{self._block} moves or generates nodes or elements, which is not read: list all of them")
        if self._block in self._names:
            self._names[self._block].append(named.get("NAME", "?"))
        if self._block in ("ASSEMBLY", "INSTANCE"):
            self._scope.append(self._block)
        elif self._scope and self._block == f"END {self._scope[-1]}":
            self._scope.pop()
        self._type = named.get("TYPE", "").upper()

    def _data(self, line: str) -> None:
        number = line.partition(",")[0].strip()
        if self._block == "INSTANCE" and any(float(own) for own in line.split(",") if own.strip()):
            raise Unfit(f"the instance {self._names['INSTANCE'][-1]} is moved or rotated ({line}), which is not read")
        if self._block == "NODE" and self._scope != ["ASSEMBLY"]:  # not reference points, which an assembly has
            line = ",".join(line.split(",")[:4])  # without the normal that may follow
            if self.nodes.setdefault(number, line) != line:
                raise Unfit(f"two nodes have the number {number}")
        elif self._block == "ELEMENT":
            self._elements.setdefault(self._type, []).append(line)


def _known_type(kind: str) -> tuple[str, int]:
    """Return meshio's name for an Abaqus element type, and its number of nodes; ("", 0) if the type is left out."""
    for pattern, types in KNOWN:
        if found := re.match(pattern, kind):
            if int(found[1]) not in types:
                raise Unfit(f"elements of type {kind}, which is not read")
            return types[int(found[1])]
    return "", 0


def _parameters(line: str) -> dict[str, str]:
    return {key.upper(): value.strip().strip('"') for key, value in PARAMETER.findall(line)}


def _lines_of(path: Path, depth: int = 0) -> Iterator[str]:
    """Yield the lines of an Abaqus deck, and of the files that it includes, without comments."""
    if not path.is_file() or depth > DEEPEST:
        raise Unfit(f"it includes {path.name}, " + ("which includes it" if path.is_file() else "which is missing"))
    begun = ""
    with path.open(errors="replace") as file:
        for own in file:
            line = begun + own.strip()
            if not line or line.startswith("**"):
                continue
            begun = line if line.startswith("*") and line.endswith(",") else ""
            if begun:
                continue  # a keyword that continues on the next line
            yield line
            if re.match(r"\*(INCLUDE|NODE|ELEMENT)\s*,", line, re.I) and (more := _parameters(line).get("INPUT")):
                yield from _lines_of(path.parent / more, depth + 1)


def _flat_nastran(path: Path) -> tuple[str, dict[str, int], tuple[int, int]]:
    """Return a deck's bulk data as meshio needs it, the counts of left-out cards, and the counts (nodes, elements)."""
    from meshio.nastran._nastran import nastran_to_meshio_type as known

    lines = [line.upper() for line in path.read_text(errors="replace").splitlines() if not line.startswith("$")]
    start = next((at for at, line in enumerate(lines) if re.match(r"\s*BEGIN\b", line)), -1)
    bulk = list(takewhile(lambda line: not line.startswith("ENDDATA"), lines[start + 1 :]))
    system = re.compile(r"GRDSET\*?,[^,]*,\s*[1-9]|GRDSET.{10} {0,7}[1-9]|\s*INCLUDE\b|BEGIN SUPER")
    if wrong := [line for line in bulk if system.match(line)]:
        raise Unfit(f"{wrong[0].strip()} is not read: write the deck as one file, in the basic coordinate system")
    cards = Counter(
        card[0] for line in bulk if (card := re.match(r"(?:GRID|C[A-Z0-9]+|PLOTEL|RBE\d)(?=[*, ]|$)", line))
    )
    left = {f"cards {card}": count for card, count in cards.items()
            if card not in known and card != "GRID" and not card.startswith("CORD")}  # fmt: skip
    return "\n".join(["BEGIN BULK", *bulk, "ENDDATA", ""]), left, (cards["GRID"], sum(map(cards.__getitem__, known)))


def _count_gmsh(path: Path) -> tuple[int | None, int | None]:
    """Return the counts at the head of $Nodes and $Elements, in text or binary files (Gmsh manual, "MSH").

    Raises Unfit: an array does not have one value per node or element in file order, although meshio assumes this.
    """
    content = path.read_bytes()
    found: list[int | None] = []
    version = content.partition(b"$MeshFormat")[2].split(maxsplit=3)[:3]
    for kind in (b"Node", b"Element"):
        body = content.partition(b"$%ss" % kind)[2].partition(b"$End")[0].partition(b"\n")[2]
        if not version or not body:
            found.append(None)
        elif not version[0].startswith(b"4"):
            found.append(int(body.split(maxsplit=1)[0]))
        elif version[1] == b"1":
            found.append(struct.unpack("=QQ", body[:16])[1])
        else:
            found.append(int(body.split(maxsplit=2)[1]))
        values = [part.partition(b"$End")[0].strip() for part in content.split(b"$%sData" % kind)[1:]]
        if values and (version[0] != b"2.2" or version[1] == b"1"):
            raise Unfit("values in a binary .msh or of MSH 4 are not read: save mesh and values as .vtu")
        tags = [line.split(maxsplit=1)[0] for line in body.splitlines()[1:]] if values else []
        if len({own.splitlines()[1] for own in values}) < len(values) or any(own != tags for own in map(_tags, values)):
            raise Unfit("values at several steps, on a part only, or in another order: save mesh and values as .vtu")
    if b"$ElementNodeData" in content:
        raise Unfit("values at the nodes of each element ($ElementNodeData) are not read: save them as .vtu")
    return found[0], found[1]


def _tags(section: bytes) -> list[bytes]:
    """Return the tags of the nodes or elements in a text section of values."""
    lines = section.splitlines()
    for _ in range(3):  # skip the strings, reals and integers that describe the section
        lines = lines[int(lines[0]) + 1 :]
    return [line.split(maxsplit=1)[0] for line in lines]


def _count_med(path: Path) -> tuple[int, int]:
    """Return the counts of nodes and cells of a .med file's only mesh (MED file format: ENS_MAA, NOE, MAI)."""
    import h5py  # type: ignore[import-untyped]

    with h5py.File(path) as file:
        if len(meshes := [*file["ENS_MAA"].values()]) != 1:
            raise Unfit(f"{len(meshes)} meshes, but only one can be read: {', '.join(file['ENS_MAA'])}")
        mesh = meshes[0]
        mesh = mesh if "NOE" in mesh else next(iter(mesh.values()))
        elements = sum(int(own["NOD"].attrs["NBR"]) for own in mesh["MAI"].values())
        return int(mesh["NOE/COO"].attrs["NBR"]), elements
