"""The samples of prepared cases, read from the store as they are asked for.

What a sample holds, all of it in SI units and in noether's axes (x across, y up, z along the wind; the files' own
where `dataset.json` says `axes: null`); N is the case's own number of points of a set:

| key | shape | what |
|---|---|---|
| `<set>_points` | (N, 3) | positions, m |
| `<set>_normals` | (N, 3) | of surfaces: outward unit normals; of sets with `distance_to`: away from the surface |
| `<set>_area` | (N,) | of surfaces: m² of each cell, or of each point's share of its cells |
| `<set>_cell_volume` | (N,) | of volumes at cells: m³ |
| `<set>_sdf` | (N,) | of sets with `distance_to`: distance to the nearest point of that surface, m |
| `<set>_part` | (N,) int32 | of sets of several patches: which, counted as in `sets.<set>.parts` of the metadata |
| `<set>_<field>` | (N,) or (N, C) | fields of the map, in their unit; of angles that jump cosine and sine (N, 2) |
| a parameter's or output's name | (1,) | its value in this case; parameters that are the same in all cases too |
| `pressure_force`, `friction_force` | (3,) | N: the true fields integrated over the surface, and |
| `pressure_moment`, `friction_moment` | (3,) | N·m about the origin; where the map names `forces` |

Floating point arrays are float32. Points are in random order, the same for all arrays of a set, so that any k rows that
follow one another are a random draw (`points_are_shuffled`).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.common.errors import RequestError
from noether.core.data.packed import open_packed
from noether.physics.cases.case_map import NAMES, CaseMap, parse_map
from noether.physics.cases.metadata import read_metadata
from noether.physics.cases.store import case_folder, faces_file, set_file

if TYPE_CHECKING:
    import torch

OPEN_FILES = 16_384  # maps that a process holds: Linux allows 65,530


class CasesDataset:
    """Some cases of a prepared folder. It pickles as its path and names."""

    points_are_shuffled = True

    def __init__(self, root: Path, cases: Sequence[str], metadata: Mapping[str, Any]) -> None:
        self.root, self.cases, self.metadata = root, list(cases), metadata
        self._open = lru_cache(OPEN_FILES)(partial(open_packed, bytes_of=_map_without_descriptor))

    def __len__(self) -> int:
        return len(self.cases)

    @property
    def digest(self) -> str:
        """Stands for all of the prepared data: the digest of `dataset.json`, which names that of every file."""
        return str(self.metadata["sha256"])

    def __getitem__(self, index: int) -> "dict[str, torch.Tensor]":
        """Case `index` as tensors that share the memory of the maps: nothing is read before it is used."""
        import torch

        case = self.cases[index]
        about = self.metadata["cases"][case]
        numbers = {**about["parameters"], **about["outputs"]}
        sample = {name: torch.tensor([value], dtype=torch.float32) for name, value in numbers.items()}
        sample |= {name: torch.tensor(value, dtype=torch.float32) for name, value in about["forces"].items()}
        # Surfaces first: of several sets the first one shows the shape.
        for name in sorted(self.metadata["sets"], key=lambda name: self.metadata["sets"][name]["kind"] != "surface"):
            arrays = self._open(set_file(self.root, case, name)).arrays
            sample |= {key: torch.from_numpy(array) for key, array in arrays.items()}
        return sample

    def name(self, index: int) -> str:
        """The case's name, as in the source folder, with "-" for "/"."""
        return self.cases[index].replace("/", "-")

    def about(self) -> dict[str, Any]:
        """What `noether.core.data.layout.about_data` reads, from `dataset.json`."""
        metadata = self.metadata
        numbers = {
            kind: {name: {"unit": own["unit"]} for name, own in metadata[kind].items() if not own["constant"]}
            for kind in ("parameters", "outputs")
        }
        files = parse_map(metadata["map"], "dataset.json")
        fields = {
            f"{name}_{field}": {"points": f"{name}_points", "unit": described.unit, "scaling": described.scaling,
                                "period": described.period,
                                "components": metadata["fields"][f"{name}_{field}"]["components"],
                                "component_names": list(NAMES[described.take]) if described.tensor else []}
            for name, own in files.sets.items() for field, described in own.fields.items()
        }  # fmt: skip
        parts = {name: own["parts"] for name, own in metadata["sets"].items() if len(own["parts"]) > 1}
        space: dict[str, Any] = {"wind": [0.0, 0.0, 1.0], "up": [0.0, 1.0, 0.0]} if metadata["axes"] else {}
        space["sets"] = {
            name: own.model_dump(include={"kind", "at", "patches", "coordinates"}) for name, own in files.sets.items()
        }
        space |= _files_space(files)
        scalars = _force_coefficients(files, metadata)
        return {"fields": fields, "parts": parts, "space": space, "scalars": scalars, **numbers}

    def faces(self, index: int) -> np.ndarray | None:
        """The faces (F, C) of the set `surface`, of indices into its points; None where they were not kept."""
        path = faces_file(case_folder(self.root, self.cases[index]), "surface")
        return open_packed(path).arrays["faces"] if path.is_file() else None

    def where(self, index: int) -> str:
        """The folder of the case's files."""
        return str(case_folder(self.root, self.cases[index]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.cases, self.metadata)


def _map_without_descriptor(path: Path) -> np.ndarray:
    """A file's bytes as a map, copy-on-write. NumPy's maps keep a descriptor, of which a process often has 1,024."""
    import torch

    mapped = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    return np.asarray(mapped.numpy())


def _files_space(files: CaseMap) -> dict[str, Any]:
    """The axes and unit of the source files, for shapes given to `predict`; empty where they are noether's."""
    if files.axes is None and files.metres == 1.0:
        return {}
    words = f"wind {files.axes.wind}, up {files.axes.up}" if files.axes else ""
    return {"files": {"rotation": files.rotation.tolist(), "metres": files.metres, "words": words}}


def _force_coefficients(files: CaseMap, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Drag and lift coefficients of the fields, where the map names forces, and cases have what they are made with.

    That is a reference_area and a wind_speed of each case, and a density; what is called drag_coefficient and
    lift_coefficient among the outputs is the truth that they are held against, else the integral of the true fields.
    """
    forces = files.forces
    needed = {"reference_area", "wind_speed"} <= set(metadata["parameters"]) and "density" in metadata["constants"]
    if not forces or not needed or not metadata["axes"]:
        return {}
    arrays = {"pressure": forces.pressure, "points": "points", "normals": "normals", "areas": "area"}
    common = {
        **{key: f"{forces.set}_{array}" for key, array in arrays.items()},
        "shear": f"{forces.set}_{forces.shear}" if forces.shear else None,
        "dynamic_pressure": "wind_speed",
        "density": metadata["constants"]["density"],
    }
    found = {}
    for name, direction in (("drag", (0.0, 0.0, 1.0)), ("lift", (0.0, 1.0, 0.0))):
        truth = f"{name}_coefficient" if f"{name}_coefficient" in metadata["outputs"] else None
        found[f"{name}_of_the_fields"] = {**common, "direction": direction, "truth": truth}
    return found


def open_cases(root: Path) -> tuple[CasesDataset, CasesDataset, list[int]]:
    """Opens the training and the test split, and the positions in the training split that are for validation.

    The cases of validation come last in the training split.
    """
    about = read_metadata(root)
    splits = about["splits"]
    train = CasesDataset(root, [*splits["train"], *splits["validation"]], about)
    validation = list(range(len(splits["train"]), len(train)))
    return train, CasesDataset(root, splits["test"], about), validation


def check_cases(root: Path) -> dict[str, Any]:
    """Checks before any worker starts that the folder holds whole cases; returns its metadata. RequestError: not."""
    about = read_metadata(root)
    for split, cases in about["splits"].items():
        if not cases and split != "validation":
            raise RequestError(
                "prepared-split-empty",
                f"the {split} split of the prepared cases in {root} is empty",
                seen="0 cases",
                expected="at least one",
                fix="split: {test: 0.1, validation: 0.1}      (in the map; complete cases are kept)",
            )
    check_files(root, about)
    return about


def check_files(root: Path, about: Mapping[str, Any]) -> None:
    """Refuses a folder that lacks a file of a case of a split. RequestError."""
    for split, cases in about["splits"].items():
        for case, name in product(cases, about["sets"]):
            if not (path := set_file(root, case, name)).is_file():
                raise RequestError(
                    "case-incomplete",
                    f"case {case} of the {split} split is incomplete",
                    seen=f"no {path}",
                    expected="a file for each set",
                    fix="noether data prepare CASES OUT --map cases.yaml      (makes what is missing)",
                )
