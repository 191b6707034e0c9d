"""A table of the launchers that are recognised by their variables, and a search for signs of other launchers."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from noether.common.numbers import whole
from noether.common.safe_open import read_plain


@dataclass(frozen=True)
class KnownLauncher:
    """The names of a launcher's variables; "" stands for a variable that the launcher does not set.

    A launcher with a `local_rank` starts any number of processes per node: `rank` and `size` count all processes,
    `local_size` the processes on this node, `nodes` the nodes. A launcher without a `local_rank` starts one process per
    node: `rank` and `size` count nodes, `hosts` lists the nodes in order, `own` names this node, and `master` has
    rank 0's address (can be unset on rank 0). `first`: rank 0's node index. `line`: starts `{n}` processes per node.
    """

    name: str
    rank: str = ""
    size: str = ""
    local_rank: str = ""
    local_size: str = ""
    nodes: str = ""
    hosts: str = ""
    own: str = ""
    master: str = ""
    first: str = ""
    line: str = "mpirun --map-by ppr:{n}:node noether train …"


def _mpi(name: str, prefix: str, **more: str) -> KnownLauncher:
    parts = {part.lower(): f"{prefix}_{part}" for part in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")}
    return KnownLauncher(name, **parts | more)


LAUNCHERS = (
    # Launchers that also set PMI_RANK come before Hydra (MPICH, Intel MPI).
    _mpi("Open MPI", "OMPI_COMM_WORLD", nodes="OMPI_MCA_orte_num_nodes"),
    _mpi("MVAPICH", "MV2_COMM_WORLD"),
    _mpi("jsrun", "JSM_NAMESPACE", line="jsrun --tasks_per_rs {n} noether train …"),
    _mpi("PALS", "PALS", rank="PALS_RANKID", size="PMI_SIZE", local_rank="PALS_LOCAL_RANKID"),
    _mpi("Flux", "FLUX", rank="FLUX_TASK_RANK", size="FLUX_JOB_SIZE", local_rank="FLUX_TASK_LOCAL_ID", local_size="",
         nodes="FLUX_JOB_NNODES", line="flux run --tasks-per-node={n} noether train …"),
    _mpi("Hydra", "PMI", local_rank="MPI_LOCALRANKID", local_size="MPI_LOCALNRANKS"),
    KnownLauncher("SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", hosts="SKYPILOT_NODE_IPS"),
    KnownLauncher("AWS Batch", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES",
                  master="AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", first="AWS_BATCH_JOB_MAIN_NODE_INDEX"),
    KnownLauncher("dstack", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM", master="DSTACK_MASTER_NODE_IP"),
    KnownLauncher("LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", master="LWS_LEADER_ADDRESS"),
    KnownLauncher("SageMaker", hosts="SM_HOSTS", own="SM_CURRENT_HOST"),
    KnownLauncher("Vertex AI", hosts="CLUSTER_SPEC"),
)  # fmt: skip

# Variable names for the index of a process or node, for the total, and for the list of hosts or its file. Names that do
# not match: CPU counts (NPROCS), elements of a job array (…TASK_INDEX: separate runs), a matrix's rank (LORA_RANK).
_RANK = re.compile(r"(?:.*_)?(?<!LORA_)(?:RANK|RANKID|PROCID|PROCNO|NODE_?INDEX|NODENUM)|ALPS_APP_PE")
_SIZE = re.compile(r"(?:.*_)?(?:NUM_NODES|NODES_NUM|NNODES|NODE_COUNT|NHOSTS|WORLD_SIZE|NTASKS)|_CONDOR_NPROCS")
_LIST = re.compile(r"(?:.*_)?(?:NODE|HOST)_?(?:FILE|LIST|IPS)|(?:LSB|LSB_MCPU|SM|VC_.*)_HOSTS|CLUSTER_SPEC|TF_CONFIG")
# These variables are ignored: `slurm/` reads Slurm's, and continuous integration numbers independent jobs by its own.
_OTHERS = re.compile(r"SLURM_.*|(?:.*_)?(?:CI|CIRCLE)_.*")


@dataclass(frozen=True)
class Signs:
    """Signs of a run of several processes, found in variables: this process's index, the process count, the hosts.

    `seen`: the variables with such signs. `unread`: variables that name a file which cannot be read in this container.
    """

    number: int | None
    count: int | None
    hosts: tuple[str, ...]
    seen: Mapping[str, str]
    unread: Mapping[str, str]


def signs_of(row: KnownLauncher, environ: Mapping[str, str], host: str) -> Signs:
    """Read the signs from the variables of a known launcher that starts one process on each node."""
    names = {name: environ[name] for name in (row.rank, row.size, row.hosts, row.own) if environ.get(name)}
    hosts, own = hosts_in(names.get(row.hosts, ""))
    number, first = whole(names.get(row.rank, "")), whole(environ.get(row.first, "0")) or 0
    count = whole(names.get(row.size, "")) or len(hosts) or None
    if number is None:
        number = _place(hosts, names.get(row.own) or own or host)
    elif count:
        number = (number - first) % count if number < count else None
    return Signs(number, count, hosts, names, {})


def foreign_signs(environ: Mapping[str, str], host: str) -> Signs:
    """Look for signs of several processes in the variables of an unknown launcher. Without signs, `seen` is empty."""
    names = sorted(name for name, value in environ.items() if value and not _OTHERS.fullmatch(name))
    ranks = {name: whole(environ[name]) for name in names if _RANK.fullmatch(name)}
    # Elastic jobs give a minimum and a maximum ("1:4"); the maximum is read.
    sizes = {name: whole(environ[name].rpartition(":")[2]) for name in names if _SIZE.fullmatch(name)}
    lists = {name: hosts_in(environ[name]) for name in names if _LIST.fullmatch(name)}
    # PMIX_RANK and ALPS_APP_PE are signs even if they are 0, because no variable has their launchers' process count.
    above = [name for name, number in ranks.items() if number or name in ("PMIX_RANK", "ALPS_APP_PE")]
    several = [name for name, size in sizes.items() if size and size > 1]
    listing = [name for name, (hosts, _) in lists.items() if len(hosts) > 1]
    hosts, own = lists[listing[0]] if listing else ((), "")
    first = min(ranks, key=lambda name: (name not in above, "NODE" not in name), default="")
    count = len(hosts) or max((sizes[name] or 0 for name in several), default=0) or None
    seen = {name: environ[name] for name in (*above, *several, *listing)}
    unread = {name: environ[name] for name, (hosts, _) in lists.items() if not hosts and environ[name].startswith("/")}
    place = _place(hosts, own or host)
    return Signs(ranks.get(first) if place is None else place, count, hosts, seen, unread)


def hosts_in(text: str) -> tuple[tuple[str, ...], str]:
    """Return the distinct hosts that a variable lists, and this host's name if the list marks it, else "".

    The list contains names or addresses (10.0.0.1;10.0.0.2), perhaps each with a number of slots (n1 8 n2 8). It is
    text, JSON, a cluster of tasks (TF_CONFIG), or a file whose lines begin with a host. If it is unreadable, return ().
    """
    own = ""
    try:
        if text.startswith("/"):
            text = read_plain(Path(text), 1 << 20).decode()
            words = [line.split()[0] for line in text.splitlines() if line.strip()]
        elif text.startswith("{"):
            content = json.loads(text)
            words = [task for tasks in content["cluster"].values() for task in tasks]
            own = content["cluster"][content["task"]["type"]][int(content["task"]["index"])]
        else:
            words = json.loads(text) if text.startswith("[") else re.split(r"[\s,;]+", text)
        *hosts, own = (word.partition(":")[0] if word.count(":") == 1 else word for word in (*words, own))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return (), ""
    return tuple(dict.fromkeys(host for host in hosts if host and not host.isdigit())), own


def _place(hosts: tuple[str, ...], own: str) -> int | None:
    """Return the index of the host `own` in the list, or None. `own` can lack the domain that the list contains."""
    short = [host.partition(".")[0] for host in hosts]
    return hosts.index(own) if own in hosts else short.index(own) if own in short else None
