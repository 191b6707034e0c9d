"""A table of the launchers that are recognised by their variables, and the signs of an unknown launcher."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from noether.common.numbers import whole
from noether.common.safe_open import read_plain


@dataclass(frozen=True)
class KnownLauncher:
    """The names of a launcher's variables; "" for each variable that it does not set.

    A launcher with a `local_rank` starts any number of processes per node: `rank` and `size` count all processes,
    `local_size` the processes on this node, `nodes` the nodes. A launcher without one starts one process per node:
    `rank` and `size` count nodes, `hosts` lists the nodes in order, `own` names this node, and `master` has rank 0's
    address (rank 0 may lack it). `first`: the number of rank 0's node, if not 0. `line` starts `{n}` processes a node.
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

# Names that launchers give to the number of a process or node, the total, and the list of hosts or its file. Left out:
# CPUs (NPROCS), the elements of a job array, which are separate runs (…TASK_INDEX), and a matrix's rank (LORA_RANK).
_RANK = re.compile(r"(?:.*_)?(?<!LORA_)(?:RANK|RANKID|PROCID|PROCNO|NODE_?INDEX|NODENUM)|ALPS_APP_PE")
_SIZE = re.compile(r"(?:.*_)?(?:NUM_NODES|NODES_NUM|NNODES|NODE_COUNT|NHOSTS|WORLD_SIZE|NTASKS)|_CONDOR_NPROCS")
_LIST = re.compile(r"(?:.*_)?(?:NODE|HOST)_?(?:FILE|LIST|IPS)|(?:LSB|LSB_MCPU|SM|VC_.*)_HOSTS|CLUSTER_SPEC|TF_CONFIG")
# Slurm's variables are read in `slurm/`; variables of continuous integration number independent jobs.
_OTHERS = re.compile(r"SLURM_.*|(?:.*_)?(?:CI|CIRCLE)_.*")


@dataclass(frozen=True)
class Signs:
    """Signs in the variables of a run of several processes: this process's number, the total, and the hosts.

    `seen`: the variables with these signs. `unread`: variables that name a file which cannot be read in this container.
    """

    number: int | None
    count: int | None
    hosts: tuple[str, ...]
    seen: Mapping[str, str]
    unread: Mapping[str, str]


def signs_of(row: KnownLauncher, environ: Mapping[str, str], host: str) -> Signs:
    """Read the signs in the variables of a launcher that starts one process on each node."""
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
    """Read signs of several processes in the variables of any launcher; without signs, `seen` is empty."""
    names = sorted(name for name, value in environ.items() if value and not _OTHERS.fullmatch(name))
    ranks = {name: whole(environ[name]) for name in names if _RANK.fullmatch(name)}
    # Elastic jobs give a minimum and a maximum: 1:4.
    sizes = {name: whole(environ[name].rpartition(":")[2]) for name in names if _SIZE.fullmatch(name)}
    lists = {name: hosts_in(environ[name]) for name in names if _LIST.fullmatch(name)}
    # These two are signs even if they are 0, because their launchers do not report the number of processes.
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
    """Return the hosts that a variable lists, each once, and this host's name if the list marks it, else "".

    A list has names or addresses (10.0.0.1;10.0.0.2), perhaps each with a number of slots (n1 8 n2 8). It is text,
    JSON, a cluster of tasks (TF_CONFIG), or a file whose lines begin with a host. An unreadable list has no hosts.
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
    """Return the position of host `own` in a list, with or without the list's domains; None if it is not there."""
    short = [host.partition(".")[0] for host in hosts]
    return hosts.index(own) if own in hosts else short.index(own) if own in short else None
