"""The commands of data sets: inspect, prepare and describe."""


def inspect(cases: str, *, out: str = "cases.yaml", workers: str | None = None) -> int:
    """Look through a folder of simulated cases, and write a draft of the map that prepare takes.

    Groups the files into cases by their names; lists sets, arrays and numbers, and how many cases have each; points
    out irregularities. prepare takes the commented draft as it is, or after you have edited it.

    Args:
        cases: the folder that contains the cases
        out: the file to write, which must not exist yet
    """
    from noether.data.commands import inspect_here

    return inspect_here(cases, out, workers=workers)


def prepare(
    *paths: str,
    map: str | None = None,
    workers: str | None = None,
    skip_broken: bool = False,
    dry_run: bool = False,
) -> int:
    """Turn a folder of cases, or an archive of one, into the folder that training reads.

    Each case is checked, and appears in the output only when it is complete. Complete cases that are up to date are
    kept, so the same command continues after an interruption. `prepare shapenet_car ARCHIVE OUT` is short for
    `prepare ARCHIVE OUT --map shapenet_car`.

    Args:
        paths: CASES OUT: the folder that contains the cases (or its archive), and the folder to make (dataset_root)
        map: a file that inspect wrote, or a ready map: openfoam, ahmedml, drivaerml, drivaernetpp, shapenet_car
        skip_broken: leave out the cases that are refused, and name them
        dry_run: count the cases and say what would be prepared; write nothing
    """
    from noether.data.commands import prepare_here

    return prepare_here(paths, map_name=map, workers=workers, skip_broken=skip_broken, dry_run=dry_run)


def describe(*overrides: str, hp: str | None = None, json: bool = False) -> int:
    """Show what a data set holds: samples, arrays, shapes, ranges and statistics of each split.

    With no argument: the built-in data set, as noether train would use it.

    Args:
        overrides: settings and groups, as for train: dataset=shapenet_car dataset_root=FOLDER
    """
    from noether.config.compose import load_config
    from noether.data.commands import describe_here

    return describe_here(load_config(overrides, hp), as_json=json)
