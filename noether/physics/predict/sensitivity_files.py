"""What `noether sensitivity` writes and says: the gradient on the mesh, and a table of what changes an output."""

import numpy as np
from rich.table import Table

from noether.common.console import Console
from noether.common.errors import ExitCode
from noether.launch.process_group.group import joined_group
from noether.launch.processes.context import WorkerContext
from noether.physics.predict.predict import open_shape
from noether.physics.predict.sensitivity import Sensitivity, sensitivity, stretches
from noether.physics.predict.shape_request import SensitivityRequest
from noether.physics.predict.trained import TrainedModel, load_trained, outside_training
from noether.physics.predict.vtk_output import write_on_shape
from noether.runs.metrics import Metric


def sensitivity_worker(context: WorkerContext, request: SensitivityRequest) -> int:
    """Differentiates on one device, writes the file and says what changes the output."""
    console, asked = Console(None, speaks=True), request.shape
    with joined_group(context) as group:
        trained = load_trained(request.chosen, group.device)
        opened = open_shape(asked, trained, console)
        for words in outside_training(trained, asked.parameters):
            console.warn(words)
        found = sensitivity(trained, opened.shape, request.of, asked.parameters, asked.chunk_size)
    gradient = opened.files.back({"": found.points})[""]
    arrays = {"sensitivity": gradient}
    if found.outwards is not None:
        arrays["sensitivity_outwards"] = found.outwards
    given = opened.given
    write_on_shape(asked.out, asked.mesh, given, arrays, trained.part_of(trained.shape_set))
    console.say(f"{found.of}: {Metric(found.of, found.unit).text(found.value)}")
    up = opened.files.rotation.T @ np.asarray(trained.task.space.get("up", np.zeros(3)), np.float64)
    moved = float(np.einsum("nx,nx->", found.points, opened.shape.normals))
    console.say(changes_table(trained, found, stretches(gradient, given.points, up), moved))
    console.say(f"{asked.out}: {len(given.points):,} points, {', '.join(arrays)}")
    return ExitCode.DONE


def changes_table(trained: TrainedModel, found: Sensitivity, stretched: dict[str, float], moved: float) -> Table:
    """Returns what the output gains, linearly: by a 1 % longer shape, by a thicker one, and by each parameter."""
    table = Table("change", f"gain, {found.unit}" if found.unit else "gain", box=None, padding=(0, 3, 0, 0))
    for axis, gain in stretched.items():
        table.add_row(f"1 % longer along {axis}", f"{gain / 100:+.4g}")
    if found.outwards is not None:
        table.add_row("the whole surface 1 mm outwards", f"{moved / 1000:+.4g}")
    for name, gradient in found.parameters.items():
        unit = trained.task.parameters[name].unit
        for channel, gain in enumerate(gradient):
            label = f"{name}[{channel}]" if len(gradient) > 1 else name
            table.add_row(f"{label} + 1 {unit}".rstrip(), f"{gain:+.4g}")
    return table
