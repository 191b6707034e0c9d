"""The commands of a trained model: evaluate, predict, sensitivity and export."""


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
        split: test (also for result.json and the report), validation or train
        vtk: also write the best, the median and the worst cases as files that ParaView opens
        json: print the metrics as one JSON object
    """
    from noether.evaluation.start import WantedModel, evaluate_here

    return evaluate_here(WantedModel(run, checkpoint, weights, trust), split, as_json=json, vtk=vtk)


def predict(
    run: str,
    *runs: str,
    mesh: str = "",
    out: str = "prediction.vtu",
    volume: str | None = None,
    truth: str | None = None,
    scale: str | None = None,
    axes: str = "files",
    chunk: str = "16384",
    set: str = "",
    interval: str | None = None,
    weights: str | None = None,
    checkpoint: str | None = None,
    trust: bool = False,
) -> int:
    """Predict the fields on a mesh or on points of your own, at any resolution.

    A mesh is expected in the axes and the unit of length of the training files. The fields are written in the same
    axes, on the mesh in its own unit. Scaling comes from the checkpoint. Of several runs, the mean is predicted, with
    their spread and an interval that the validation split calibrates.

    Args:
        runs: further runs on the same data; a folder of runs or a sweep stands for its runs
        interval: percent of a new case that the interval is to cover, or none (default: 90 for several runs)
        out: the file to write: .vtu, .vtk or .vtp, which ParaView opens and --mesh reads
        volume: also predict at these points in the air, and write OUT_volume: .npy (N, 3), or the points of a mesh
        truth: true values at the mesh's points, as .npy; truth and error are then written too
    """
    from noether.evaluation.members import named_runs
    from noether.evaluation.shape_request import TypedShape, predict_here
    from noether.evaluation.start import WantedModel

    typed = TypedShape(mesh, out, scale, axes, chunk, set)
    wanted = [WantedModel(one, checkpoint, weights, trust) for one in named_runs((run, *runs))]
    return predict_here(wanted, typed, volume=volume, truth=truth, interval=interval)


def sensitivity(
    run: str,
    *,
    mesh: str = "",
    of: str = "",
    out: str = "sensitivity.vtu",
    scale: str | None = None,
    axes: str = "files",
    chunk: str = "16384",
    set: str = "",
    weights: str | None = None,
    checkpoint: str | None = None,
    trust: bool = False,
) -> int:
    """Say what changes an output: its gradient at every surface point and by every parameter.

    The file has the gradient per m at each point of the mesh, and what the output gains where 1 m² of the surface is
    moved outwards by 1 m. Neighbours, nearest points and the reference area are held.

    Args:
        of: drag_coefficient or another coefficient or output (default: the only one); "mean FIELD", "max FIELD"
        out: the file to write: .vtu, .vtk or .vtp
    """
    from noether.evaluation.shape_request import TypedShape, sensitivity_here
    from noether.evaluation.start import WantedModel

    typed = TypedShape(mesh, out, scale, axes, chunk, set)
    return sensitivity_here(WantedModel(run, checkpoint, weights, trust), typed, of)


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
