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

    A mesh is read in the axes and the unit of the files that were trained on, and the fields are written in the
    same axes, positions in m; scaling comes from the checkpoint.

    Args:
        mesh: the surface: .stl, .vtk, .vtu, .ply, .obj, or points as .npy (N, 3)
        out: the file to write: .vtu, .vtk or .vtp, which ParaView opens and --mesh reads
        volume: also predict at these points in the air, into OUT_volume: .npy (N, 3) or a mesh's points
        truth: true values at the mesh's points, .npy: truth and error are written too
        scale: metres of one unit of the positions: 0.001 for a mesh in mm (default: as in the files of training)
        axes: files: as the files that were trained on; model: as the model's own (x across, y up, z along the wind)
        chunk: points predicted at once, which bounds memory and changes nothing
        set: parameters of the case, such as wind_speed=32, several apart by commas
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
        overwrite: replace an export that is in the folder already
    """
    from noether.evaluation.start import WantedModel, export_here

    wanted = WantedModel(run, checkpoint, weights, trust)
    return export_here(wanted, out, program=not weights_only, overwrite=overwrite)
