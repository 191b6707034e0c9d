"""Reads RANK, WORLD_SIZE, LOCAL_RANK and the like, and checks that they agree with the launcher."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from noether.errors import RequestError


@dataclass(frozen=True)
class RankVariables:
    """What the environment says of this process; `local_rank` is None where it is not set.

    `local_count` is a guess where LOCAL_WORLD_SIZE is not set. `pods` is set for a PyTorchJob's process.
    """

    rank: int
    count: int
    local_rank: int | None
    local_count: int
    node_rank: int | None
    nodes: int | None
    elastic: bool
    pods: int | None

    @property
    def seen(self) -> str:
        """The variables as an error names them."""
        local = "no LOCAL_RANK" if self.local_rank is None else f"LOCAL_RANK={self.local_rank}"
        return f"RANK={self.rank}, WORLD_SIZE={self.count}, {local}"


def agree_with_rank_variables(
    environ: Mapping[str, str], rank: int, worlds: Collection[int], local_rank: int, source: str
) -> str:
    """Refuse rank variables that contradict a launcher; return those that are set, for its reasons, or "".

    They come from job scripts (`export WORLD_SIZE=$SLURM_NTASKS`) and from enroot's 50-slurm-pytorch hook.

    Args:
        environ: the environment.
        rank: this process among the launcher's.
        worlds: what WORLD_SIZE may mean: the number of processes, or of ranks.
        local_rank: this process among the launcher's on this node.
        source: the launcher's own variables, for the error.

    Raises:
        RequestError: one of them says something else.
    """
    allowed = {
        "RANK": {str(rank)},
        "WORLD_SIZE": {str(world) for world in worlds},
        "LOCAL_RANK": {str(local_rank)},
    }
    found = {name: environ[name] for name in allowed if environ.get(name)}
    shown = ", ".join(f"{name}={value}" for name, value in found.items())
    for name, value in found.items():
        if value not in allowed[name]:
            raise RequestError(
                f"{name}={value} contradicts the launcher",
                seen=f"{shown}, {source}",
                expected=f"{name}={' or '.join(sorted(allowed[name]))}, or not set",
                fix=f"unset {' '.join(found)}",
            )
    return shown


NODE_VARIABLES = ("NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", "PET_NNODES", "NNODES")
"""What launchers and job scripts call the number of a node, or of all nodes."""


def unused_node_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning where variables name several nodes and nothing says how many ranks there are.

    Each node would train alone, silently.
    """
    lone = {"NODE_RANK": "", "GROUP_RANK": "", "PET_NODE_RANK": "", "PET_NNODES": "1", "NNODES": "1"}
    found = {name: environ[name] for name in NODE_VARIABLES if environ.get(name, lone[name]) != lone[name]}
    if not found:
        return ()
    found |= {name: environ[name] for name in ("MASTER_ADDR",) if environ.get(name)}
    shown = ", ".join(f"{name}={value}" for name, value in found.items())
    rank = next((environ[name] for name in NODE_VARIABLES[:3] if environ.get(name, "").isdigit()), "0")
    count = next((environ[name] for name in NODE_VARIABLES[3:] if environ.get(name, "").isdigit()), "2")
    how = f"--nodes {count} --node-rank {rank} --master-addr {environ.get('MASTER_ADDR') or 'HOST'}"
    return (f"{shown}, and neither RANK and WORLD_SIZE nor nodes: this machine trains alone ({how} for all nodes)",)
