"""The commands of data sets: inspect, prepare, pack and describe."""


def inspect(cases: str, *, out: str = "cases.yaml", workers: str | None = None) -> int:
    """Look through a folder of simulated cases, and write a draft of the map that prepare takes.

    Groups the files into cases by their names; lists sets, arrays and numbers, with how many cases have each; says
    what is odd. The draft is commented and taken by prepare as it is, or edited.

    Args:
        cases: the folder above the cases
        out: the file to write, which must not exist yet
    """
    from noether.data.cases.commands import inspect_cases_here
    from noether.data.commands import read_workers

    return inspect_cases_here(cases, out, workers=read_workers(workers))


def prepare(
    *paths: str,
    map: str | None = None,
    workers: str | None = None,
    skip_broken: bool = False,
    dry_run: bool = False,
) -> int:
    """Turn a folder of cases, or a raw archive, into the folder that training reads.

    Each case is checked and appears whole or not at all; what is there and current is kept, so that the same
    command goes on where it stopped. `prepare shapenet_car ARCHIVE OUT` stands for
    `prepare ARCHIVE OUT --map shapenet_car`.

    Args:
        paths: CASES OUT: the folder above the cases (or a raw archive), and the one to make, for dataset_root
        map: a file that inspect wrote, or a ready map: openfoam, ahmedml, drivaerml, drivaernetpp, shapenet_car
        skip_broken: leave out the cases that are refused, and name them
        dry_run: count what there is and say what would be made; write nothing
    """
    from noether.data.commands import prepare_here

    return prepare_here(paths, map_name=map, workers=workers, skip_broken=skip_broken, dry_run=dry_run)


def pack(folder: str, *, out: str | None = None) -> int:
    """Pack a prepared folder into the one memory-mapped file that training reads.

    Training does it by itself on first use; this does it beforehand, or for a copy on a node's own disk.

    Args:
        folder: the prepared folder
        out: the folder for the file, which can then be dataset_root by itself (default: the prepared folder)
    """
    from noether.data.commands import pack_here

    return pack_here(folder, out)


def describe(*overrides: str, hp: str | None = None, json: bool = False) -> int:
    """Show what a data set holds: samples, arrays, shapes, ranges and statistics of each split.

    With no argument: the embedded data set, as noether train would use it.

    Args:
        overrides: settings and groups, as for train: dataset=shapenet_car dataset_root=FOLDER
    """
    from noether.config.compose import load_config
    from noether.data.commands import describe_here

    return describe_here(load_config(overrides, hp), as_json=json)
