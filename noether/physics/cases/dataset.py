"""The samples of prepared cases, read from the store on access."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.common.atomic_write import write_whole
from noether.common.errors import RequestError, one_line
from noether.common.numbers import strict_json
from noether.core.data.packed import open_packed
from noether.physics.cases.case_map import CaseMap, parse_map
from noether.physics.cases.store import FORMAT_VERSION, case_folder, refuse_missing, set_file

if TYPE_CHECKING:
    import torch

DATASET_FILE = "dataset.json"
AIR_DENSITY = 1.2  # kg/m³
COARSEST = 5e-5  # largest accepted spacing of float32 values, relative to the span of the positions or field
UNITS = {"points": "m", "sdf": "m", "area": "m²", "cell_volume": "m³"}  # units of the arrays that are not fields
WIND_ALONG_Z = {"across": "x", "up": "y", "wind": "z"}


def gather(about: CaseMap, map_text: str, cases: Mapping[str, Any], splits: dict[str, list[str]]) -> dict[str, Any]:
    """Return the contents of `dataset.json`, gathered from the cases' files; `write_metadata` adds the key sha256.

    - axes: {across, up, wind}, or null if the map names no axes;
    - sets: {name: kind, at, points [fewest, most], parts, low, high}, where low and high span the positions in m;
    - fields: {key in a sample: set, components, unit, low, high}; features: the same entries for all other arrays;
    - parameters, outputs: {name: unit, low, high, constant}; constants: as in the map; forces: names of the forces;
    - splits: {split: cases}; map: the text of the map;
    - cases: {name: parameters, outputs, forces, points of each set, files {name: size, sha256}}.

    RequestError: a case lacks an array or a number that another case has, or an array's components differ in number.
    """
    sets: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    features: dict[str, Any] = {}
    for name, own in about.sets.items():
        described = {case: made["sets"][name] for case, made in cases.items()}
        arrays = {case: one["arrays"] for case, one in described.items()}
        spans = {key: _span(key, arrays) for key in next(iter(arrays.values()))}
        counts = [one["points"] for one in described.values()]
        parts = list(dict.fromkeys(part for one in described.values() for part in one["parts"]))
        sets[name] = {"kind": own.kind, "at": own.at, "points": [min(counts), max(counts)], "parts": parts,
                      "low": spans[f"{name}_points"]["low"], "high": spans[f"{name}_points"]["high"]}  # fmt: skip
        for key, span in spans.items():
            short = key.removeprefix(f"{name}_")
            field = own.fields.get(short)
            entry = {"set": name, "unit": field.unit if field else UNITS.get(short, ""), **span}
            if field and field.period:
                entry["period"] = list(field.period)
            (fields if field else features)[key] = entry
    return {
        "format_version": FORMAT_VERSION, "axes": WIND_ALONG_Z if about.axes else None,
        "sets": sets, "fields": fields, "features": features,
        "parameters": _numbers(about.parameters, cases, "parameters"),
        "outputs": _numbers(about.outputs, cases, "outputs"), "constants": about.constants,
        "forces": sorted(next(iter(cases.values()))["forces"]), "splits": splits,
        "cases": {case: {key: made[key] for key in ("parameters", "outputs", "forces", "files")}
                  | {"points": {name: own["points"] for name, own in made["sets"].items()}}
                  for case, made in cases.items()},
        "map": map_text,
    }  # fmt: skip


def write_metadata(out: Path, metadata: Mapping[str, Any]) -> None:
    """Write `dataset.json` and, in it, the digest of its other keys, which include the digests of all data files."""
    whole = {**metadata, "sha256": _digest(metadata)}
    write_whole(out / DATASET_FILE, strict_json(whole, indent=1) + "\n")


def read_metadata(out: Path) -> dict[str, Any]:
    """Read `dataset.json`. RequestError: the file is missing, unreadable or damaged, or has another format version."""
    path = out / DATASET_FILE
    if not path.is_file():
        raise refuse_missing(out)
    again = "noether data prepare CASES OUT --map cases.yaml      (complete cases are kept)"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(about, dict):
            raise ValueError(f"a {type(about).__name__}, not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError("case-metadata-unreadable", f"{path} cannot be read", seen=one_line(error),
                           expected="the unmodified file", fix=again) from None  # fmt: skip
    version = about.get("format_version")
    if version != FORMAT_VERSION:
        raise RequestError("case-format-version", f"{path} has another format version",
                           seen=f"format_version {version}", expected=str(FORMAT_VERSION),
                           fix="noether data prepare CASES OUT --map cases.yaml      (remakes all cases)")  # fmt: skip
    recorded = about.pop("sha256", None)
    found = _digest(about)
    if recorded != found:
        raise RequestError("case-metadata-damaged", f"{path} was changed or damaged", seen=f"SHA-256 {found}",
                           expected=f"{recorded}, as recorded in the file", fix=again)  # fmt: skip
    return {**about, "sha256": found}


def _digest(metadata: Mapping[str, Any]) -> str:
    # JSON can hold a lone surrogate ("\ud800"), which UTF-8 cannot encode.
    return hashlib.sha256(strict_json(metadata).encode(errors="surrogatepass")).hexdigest()


def _span(key: str, arrays: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the components, low and high of the array `key` over all cases; `arrays` gives them for each case."""
    if odd := [case for case, own in arrays.items() if key not in own]:
        raise RequestError("case-lacks-array", f"case {odd[0]} lacks {key}", seen=f"{len(odd)} such cases",
                           expected="the same arrays in every case")  # fmt: skip
    spans = {case: own[key] for case, own in arrays.items()}
    first, usual = next((case, span["components"]) for case, span in spans.items())
    for case, span in spans.items():
        if span["components"] != usual:
            raise RequestError(
                "case-components-differ", f"{key} has {span['components']} components in case {case}",
                seen=f"{usual} in case {first}", expected="the same number of components in every case",
                fix="set components: N for this field in the map, and add --skip-broken to leave out the other cases",
            )  # fmt: skip
    low = np.min([span["low"] for span in spans.values()], axis=0)
    high = np.max([span["high"] for span in spans.values()], axis=0)
    return {"components": usual, "low": low.tolist(), "high": high.tolist()}


def _numbers(described: Mapping[str, Any], cases: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found = {}
    for name, own in described.items():
        values = [case[kind][name] for case in cases.values() if name in case[kind]]
        odd = [case for case, one in cases.items() if name not in one[kind]]
        if values and odd:
            raise RequestError("case-lacks-number", f"case {odd[0]} has no {name}", seen=f"{len(odd)} such cases",
                               expected="this number in every case")  # fmt: skip
        if values:
            low, high = min(values), max(values)
            found[name] = {"unit": own.unit, "low": low, "high": high, "constant": low == high}
    return found


def implausible(metadata: Mapping[str, Any]) -> list[str]:
    """Return warnings about ranges of fields and parameters that suggest a wrong unit, a constant or lost precision."""
    fields = {key: max(map(abs, (*own["low"], *own["high"])), default=0.0) for key, own in metadata["fields"].items()}
    speeds = {key: largest for key, largest in fields.items() if metadata["fields"][key]["unit"] == "m/s"}
    speeds |= {name: entry["high"] for name, entry in metadata["parameters"].items() if entry["unit"] == "m/s"}
    fastest, words = max(speeds.values(), default=0.0), []  # pressures are compared with this speed's dynamic pressure
    for key, largest in fields.items():
        if metadata["fields"][key]["unit"] != "Pa" or "pressure" not in key or not fastest:
            continue
        ratio, of = largest / (0.5 * AIR_DENSITY * fastest**2), f"the dynamic pressure of {fastest:.4g} m/s"
        if ratio > 100:
            words.append(f"{key} reaches {largest:.4g} Pa, {ratio:.3g} times {of}: is it absolute, or not in Pa?")
        elif ratio < 0.02:
            words.append(f"{key} reaches only {largest:.4g} Pa, {ratio:.2g} of {of}: is it a coefficient, or in kPa?")
    for key, entry in metadata["fields"].items():
        if entry["low"] == entry["high"]:
            words.append(f"{key} is {', '.join(f'{value:g}' for value in entry['low'])} everywhere")
    points = {f"{name}_points": metadata["features"][f"{name}_points"] for name in metadata["sets"]}
    for key, own in (points | metadata["fields"]).items():
        largest, span = np.abs([own["low"], own["high"]]).max(), np.ptp([own["low"], own["high"]], axis=0).max()
        if (step := np.spacing(np.float32(largest))) > COARSEST * span > 0:
            words.append(f"{key} spans {span:.4g} and reaches {largest:.4g}, where 32-bit numbers are {step:.2g} "
                         "apart: in the files of all cases, subtract the same offset from it")  # fmt: skip
    fast = {name: speed for name, speed in speeds.items() if speed > 2000}
    return words + [f"{name} reaches {speed:.4g} m/s: is it in other units?" for name, speed in fast.items()]


OPEN_FILES = 16_384  # the maximum number of memory maps that a process keeps open; Linux allows 65,530


class CasesDataset:
    """A data set of some cases in a prepared folder. Its pickle contains only the path, the cases and the metadata."""

    points_are_shuffled = True

    def __init__(self, root: Path, cases: Sequence[str], metadata: Mapping[str, Any]) -> None:
        self.root, self.cases, self.metadata = root, list(cases), metadata
        self._open = lru_cache(OPEN_FILES)(partial(open_packed, bytes_of=_map_without_descriptor))

    def __len__(self) -> int:
        return len(self.cases)

    @property
    def digest(self) -> str:
        """The digest of `dataset.json`. It identifies all prepared data, because it covers every file's digest."""
        return str(self.metadata["sha256"])

    def __getitem__(self, index: int) -> "dict[str, torch.Tensor]":
        """Return case `index` as tensors on memory maps; the data are read from disk only when they are used."""
        import torch

        case = self.cases[index]
        about = self.metadata["cases"][case]
        numbers = {**about["parameters"], **about["outputs"]}
        sample = {name: torch.tensor([value], dtype=torch.float32) for name, value in numbers.items()}
        sample |= {name: torch.tensor(value, dtype=torch.float32) for name, value in about["forces"].items()}
        # Surfaces come first, because the first set of a sample represents the shape.
        for name in sorted(self.metadata["sets"], key=lambda name: self.metadata["sets"][name]["kind"] != "surface"):
            arrays = self._open(set_file(self.root, case, name)).arrays
            sample |= {key: torch.from_numpy(array) for key, array in arrays.items()}
        return sample

    def name(self, index: int) -> str:
        """Return the case's name in the source folder, with "-" in place of "/"."""
        return self.cases[index].replace("/", "-")

    def about(self) -> dict[str, Any]:
        """Return the description of the data, made from `dataset.json`, for `noether.core.data.layout.about_data`."""
        metadata = self.metadata
        numbers = {kind: {name: {"unit": own["unit"]} for name, own in metadata[kind].items() if not own["constant"]}
                   for kind in ("parameters", "outputs")}  # fmt: skip
        files = parse_map(metadata["map"], "dataset.json")
        fields = {}
        for name, field in ((name, field) for name, own in files.sets.items() for field in own.fields):
            own, components = files.sets[name].fields[field], metadata["fields"][f"{name}_{field}"]["components"]
            fields[f"{name}_{field}"] = {
                **own.model_dump(include={"unit", "scaling", "period"}), "points": f"{name}_points",
                "components": components, "component_names": files.component_names(own, components),
            }  # fmt: skip
        parts = {name: own["parts"] for name, own in metadata["sets"].items() if len(own["parts"]) > 1}
        space: dict[str, Any] = {"wind": [0.0, 0.0, 1.0], "up": [0.0, 1.0, 0.0]} if metadata["axes"] else {}
        space["sets"] = {
            name: own.model_dump(include={"kind", "at", "patches", "coordinates"}) for name, own in files.sets.items()
        }
        if files.axes is not None or files.metres != 1.0:  # for `predict`, which converts a shape's file
            words = f"wind {files.axes.wind}, up {files.axes.up}" if files.axes else ""
            space["files"] = {"rotation": files.rotation.tolist(), "metres": files.metres, "words": words}
        scalars = _force_coefficients(files, metadata)
        return {"fields": fields, "parts": parts, "space": space, "scalars": scalars, **numbers}

    def faces(self, index: int) -> np.ndarray | None:
        """Return the faces (F, C) of the set `surface` as indices of its points; None if the store has no faces."""
        path = set_file(self.root, self.cases[index], "surface.faces")
        return open_packed(path).arrays["faces"] if path.is_file() else None

    def where(self, index: int) -> str:
        """Return the path of the case's folder."""
        return str(case_folder(self.root, self.cases[index]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.cases, self.metadata)


def _map_without_descriptor(path: Path) -> np.ndarray:
    """Map a file copy-on-write with torch. NumPy would keep a file descriptor for each map; 1,024 is a usual limit."""
    import torch

    mapped = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    return np.asarray(mapped.numpy())


def _force_coefficients(files: CaseMap, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Describe how drag and lift coefficients are integrated from the fields; return {} if an input is missing.

    The inputs are the map's forces and axes, each case's reference_area and wind_speed, and a constant density. The
    true value is the output drag_coefficient or lift_coefficient or, without it, the integral of the true fields.
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
    """Return the training split, the test split, and the indices of the validation cases in the training split."""
    about = read_metadata(root)
    splits = about["splits"]
    train = CasesDataset(root, [*splits["train"], *splits["validation"]], about)
    validation = list(range(len(splits["train"]), len(train)))
    return train, CasesDataset(root, splits["test"], about), validation


def check_cases(root: Path) -> dict[str, Any]:
    """Return a prepared folder's metadata. RequestError: the training or test split is empty, or a file is missing."""
    about = read_metadata(root)
    for split, cases in about["splits"].items():
        if not cases and split != "validation":
            raise RequestError(
                "prepared-split-empty", f"the {split} split of the prepared cases in {root} is empty", seen="0 cases",
                expected="at least one case",
                fix="split: {test: 0.1, validation: 0.1}      (in the map; complete cases are kept)",
            )  # fmt: skip
    check_files(root, about)
    return about


def check_files(root: Path, about: Mapping[str, Any]) -> None:
    """Raise RequestError if any case of any split lacks one of its files."""
    for split, cases in about["splits"].items():
        for case, name in product(cases, about["sets"]):
            if not (path := set_file(root, case, name)).is_file():
                raise RequestError(
                    "case-incomplete", f"case {case} of the {split} split is incomplete", seen=f"no {path}",
                    expected="a file for each set",
                    fix="noether data prepare CASES OUT --map cases.yaml      (makes the missing files)",
                )  # fmt: skip
