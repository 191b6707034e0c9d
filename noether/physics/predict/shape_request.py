"""Check requests about a user's shape and start the worker that predicts or computes sensitivities."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from shlex import quote

from noether.checkpoints.run_settings import ChosenModel, WantedModel, choose_model, run_here
from noether.common.errors import RequestError
from noether.common.suggest import nearest, number_of, one_of
from noether.core.data.build import prepare_data
from noether.physics.cases.case_map import metres_of
from noether.physics.predict.vtk_output import check_suffix
from noether.physics.uncertainty.ensemble_members import check_members, read_calibration


@dataclass(frozen=True)
class ShapeRequest:
    """A user's shape and the file to write. `scale`: metres per unit of the mesh; None: as in the training files."""

    mesh: Path
    out: Path
    scale: float | None
    axes: str
    chunk_size: int
    parameters: dict[str, float | list[float]]


@dataclass(frozen=True)
class PredictRequest:
    """A request to predict the fields of one or more runs on a user's shape.

    level: level of the interval in percent; None: no interval. data: data folder; None: no calibration is needed.
    """

    shape: ShapeRequest
    volume: Path | None
    truth: Path | None
    members: tuple[ChosenModel, ...]
    level: int | None
    data: Path | None


@dataclass(frozen=True)
class SensitivityRequest:
    """A request for the gradient of the model's output `of`, such as "mean FIELD", on a user's shape."""

    shape: ShapeRequest
    of: str
    chosen: ChosenModel


def predict_here(
    wanted: Sequence[WantedModel], shape: ShapeRequest, *, volume: str | None, truth: str | None, interval: str | None
) -> int:
    """Predict the fields of one or more runs on a user's shape.

    RequestError: a file does not exist, or a shape is too unlike the training shapes.
    """
    files = [_file(name, path) if path else None for name, path in (("volume", volume), ("truth", truth))]
    level = interval_level(interval, len(wanted))
    members = tuple(map(choose_model, wanted))  # This comes after the other checks, because it reads checkpoints.
    check_members(members)
    config = members[0].config
    data = prepare_data(config) if level is not None and read_calibration(members) is None else None
    request = PredictRequest(shape, files[0], files[1], members, level, data)
    return run_here(config, "noether.physics.predict.predict.predict_worker", request)


def sensitivity_here(wanted: WantedModel, shape: ShapeRequest, of: str) -> int:
    """Report how the shape and parameters change the model's output `of`. RequestError: as for `predict_here`."""
    request = SensitivityRequest(shape, of, choose_model(wanted))
    return run_here(request.chosen.config, "noether.physics.predict.sensitivity.sensitivity_worker", request)


def interval_level(interval: str | None, runs: int) -> int | None:
    """Return the level of the interval in percent, or None for no interval; the default for several runs is 90."""
    if interval == "none" or (interval is None and runs == 1):
        return None
    return number_of("interval", (interval or "90").removesuffix("%"), int, 1, 99, "--interval 90      (or none)")


def typed_shape(
    mesh: str, out: str, scale: str | None, axes: str, chunk: str, parameters: str, *, command: str
) -> ShapeRequest:
    """Parse the flags of a shape as the user typed them. RequestError: a flag is wrong, or --mesh is missing."""
    if not mesh:
        fix = f"{command} --mesh FILE"
        raise RequestError("mesh-flag-missing", "--mesh is needed", expected="a mesh or points", fix=fix)
    check_suffix(Path(out))
    unit = "leave --scale out"
    with suppress(ValueError):
        digits = scale[: len(scale) - len(scale.lstrip("0123456789."))] if scale else ""
        unit = f"--scale {metres_of((scale or '')[len(digits) :].strip()) * float(digits or 1):.10g}"
    return ShapeRequest(
        mesh=_file("mesh", mesh),
        out=Path(out).expanduser(),
        scale=None if scale is None else number_of("scale", scale, float, 1e-9, 1e9, unit),
        axes=one_of("axes", axes, ("files", "model")),
        chunk_size=number_of("chunk", chunk, int, 1, 10**9, "leave --chunk out"),
        parameters=_parameters(parameters),
    )


def _parameters(text: str) -> dict[str, float | list[float]]:
    """Parse "wind_speed=32,angle=5"; spaces separate the components of a parameter."""
    parameters: dict[str, float | list[float]] = {}
    for part in (part for part in text.split(",") if part.strip()):
        name, _, value = part.partition("=")
        try:
            numbers = [float(word) for word in value.split()]
        except ValueError:
            numbers = []
        if not numbers or not all(map(isfinite, numbers)):
            raise RequestError("set-flag", "--set needs a number for each parameter", seen=f"--set {part}",
                               expected="NAME=NUMBER for each parameter, separated by commas",
                               fix=f"--set {name.partition(':')[0].strip() or 'NAME'}=NUMBER")  # fmt: skip
        parameters[name.strip()] = numbers[0] if len(numbers) == 1 else numbers
    return parameters


def _file(name: str, path: str) -> Path:
    found = Path(path).expanduser()
    if not found.is_file():
        folder = found if found.is_dir() else found.parent
        beside = [file.name for file in folder.iterdir() if file.is_file()] if folder.is_dir() else []
        alike = [file for file in sorted(beside) if found.suffix and file.endswith(found.suffix)]
        near = nearest(found.name, beside) or next(iter(alike), None)
        fix = f"--{name} {quote(str(folder / near))}" if near else f"ls {quote(str(folder))}"
        if not folder.is_dir():
            fix = f"--{name} FILE      (the folder {folder} does not exist either)"
        raise RequestError("no-input-file", f"no file {found}", seen=f"--{name} {found}", expected="a file", fix=fix)
    return found
