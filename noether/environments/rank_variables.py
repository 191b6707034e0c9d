"""Describes RANK, WORLD_SIZE, LOCAL_RANK and similar variables, and checks that they agree with the launcher."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from noether.errors import RequestError


@dataclass(frozen=True)
class RankVariables:
    """What the rank variables say about this process; `local_rank` is None if it is not set.

    `local_count` is a guess if LOCAL_WORLD_SIZE is not set. `pods` is the number of pods of a PyTorchJob, else None.
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
        """The variables, as text for errors."""
        local = "no LOCAL_RANK" if self.local_rank is None else f"LOCAL_RANK={self.local_rank}"
        return f"RANK={self.rank}, WORLD_SIZE={self.count}, {local}"


def agree_with_rank_variables(
    environ: Mapping[str, str], rank: int, worlds: Collection[int], local_rank: int, source: str
) -> str:
    """Refuse rank variables that contradict the launcher; return the ones that are set as text, or "".

    They may be set by job scripts (`export WORLD_SIZE=$SLURM_NTASKS`) or by enroot's 50-slurm-pytorch hook.

    Args:
        environ: the environment.
        rank: number of this process among the launcher's processes.
        worlds: the values WORLD_SIZE may have: the number of processes, or of ranks.
        local_rank: number of this process among the launcher's processes on this node.
        source: the launcher's own variables, for the error.

    Raises:
        RequestError: one of the variables has another value.
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
"""Names that launchers and job scripts use for a node's number, or for the number of nodes."""


def unused_node_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning if variables indicate several nodes but nothing says how many ranks there are.

    Without it, each node would silently train alone.
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
    return (f"{shown}, but RANK, WORLD_SIZE and nodes are not set: this machine trains alone ({how} to use all nodes)",)
