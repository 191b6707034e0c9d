"""The commands of a trained model: evaluate, predict and export."""


def evaluate(
    run: str,
    *,
    split: str = "test",
    weights: str | None = None,
    checkpoint: str | None = None,
    vtk: bool = False,
    json: bool = False,
    trust: bool = False,
) -> int:
    """Evaluate a run again: any split, any weights, any checkpoint.

    Args:
        split: test, validation or train
        vtk: also write the best, the median and the worst cases as files that ParaView opens
        json: print the figures as one JSON object
    """
    from noether.evaluation.start import WantedModel, evaluate_here

    return evaluate_here(WantedModel(run, checkpoint, weights, trust), split, as_json=json, vtk=vtk)


def predict(
    run: str,
    *,
    mesh: str = "",
    out: str = "prediction.vtu",
    volume: str | None = None,
    truth: str | None = None,
    scale: str | None = None,
    axes: str = "files",
    chunk: str = "16384",
    set: str = "",
    weights: str | None = None,
    checkpoint: str | None = None,
    trust: bool = False,
) -> int:
    """Predict the fields on a mesh or on points of your own, at any resolution.

    A mesh is expected in the axes and the unit of length of the training files. The fields are written in the same
    axes, with positions in m. Scaling comes from the checkpoint.

    Args:
        mesh: the surface: .stl, .vtk, .vtu, .vtp, .ply, .obj, or points as .npy (N, 3)
        out: the file to write: .vtu, .vtk or .vtp, which ParaView opens and --mesh reads
        volume: also predict at these points in the air, and write OUT_volume: .npy (N, 3), or the points of a mesh
        truth: true values at the mesh's points, as .npy; truth and error are then written too
        scale: length of one unit of the mesh, in metres: 0.001 for a mesh in mm (default: the training files' unit)
        axes: files: the axes of the training files; model: the model's own (x across, y up, z along the wind)
        chunk: points predicted at once: limits memory without changing the result
        set: parameters of the case, such as wind_speed=32, separated by commas
    """
    from noether.evaluation.start import WantedModel, predict_here

    return predict_here(
        WantedModel(run, checkpoint, weights, trust),
        mesh=mesh, out=out, volume=volume, truth=truth, scale=scale, axes=axes, chunk=chunk, parameters=set,
    )  # fmt: skip


def export(
    run: str,
    out: str,
    *,
    weights: str | None = None,
    checkpoint: str | None = None,
    weights_only: bool = False,
    overwrite: bool = False,
    trust: bool = False,
) -> int:
    """Export a run's model: safetensors and JSON, and a torch.export program checked against the model.

    Args:
        out: the folder to make; noether.evaluation.exported.load_exported reads it
        weights_only: leave out the program, for models that torch.export cannot write
        overwrite: replace an export that is already in the folder
    """
    from noether.evaluation.start import WantedModel, export_here

    wanted = WantedModel(run, checkpoint, weights, trust)
    return export_here(wanted, out, program=not weights_only, overwrite=overwrite)
