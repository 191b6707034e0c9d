"""Place a process that mpirun, mpiexec, jsrun or `flux run` started, by the variables that `launchers.py` lists.

Each process is one rank, but a process that is alone starts a worker on each of its devices. MPI itself is not used.
The ranks meet at torch's own store, at the first of these addresses that applies:
- `master_addr`;
- 127.0.0.1, if every rank is on this machine;
- MASTER_ADDR (`mpirun -x MASTER_ADDR=hostA`);
- with Open MPI, the machine of mpirun (OMPI_MCA_orte_hnp_uri in version 4, PMIX_SERVER_URI in 5), if rank 0 is there.
The port is `master_port` or MASTER_PORT. If neither is set, it is derived from mpirun's job number (Open MPI), or from
mpiexec's control port (Hydra, if its proxy is a visible parent process). If neither can be read, it is 29500.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from noether.common.errors import RequestError
from noether.common.numbers import whole_number
from noether.launch.detect.binding import UNCOUNTED, LaunchedTask, agree_with_rank_variables, bind_devices
from noether.launch.detect.endpoint import asked_address, derived, port_of, refuse_loopback
from noether.launch.detect.launchers import LAUNCHERS
from noether.launch.detect.local import agree_on_nodes, local_endpoint, node_names
from noether.launch.detect.placement import Endpoint, LaunchContext, LaunchRequest, Placement, as_pairs
from noether.launch.detect.process_facts import ProcessFacts
from noether.launch.detect.slurm.step import restart_count

# 160366592.1;tcp://192.0.2.2,198.51.100.2:37633;tcp6://…  (job.daemon; mpirun itself is daemon 0)
_ORTE_URI = re.compile(r"([0-9]{1,18})\.([0-9]{1,9});(?:tcp://([0-9.]+)[,:])?")
# prterun-hostA-12345@0.1;tcp4://…  (host and process of mpirun, daemon)
_PRRTE_URI = re.compile(r"[a-z]+-(.+)-([0-9]{1,18})@[0-9]+\.([0-9]{1,9});")
# hydra_pmi_proxy --control-port hostA:46375 … is the parent of Hydra's processes, on every machine with the same port.
_HYDRA_PROXY = re.compile(r"\S*hydra_\w*proxy .*--control-port \S+:([0-9]{1,5})(?:\s|$)")


@dataclass(frozen=True)
class MpiDaemon:
    """Open MPI's daemon on this node, as the variable `source` describes it.

    `master`: the host that runs mpirun, or "" if the variable does not contain it. `job`: mpirun's id for the run.
    """

    number: int
    master: str
    source: str
    job: int


@dataclass(frozen=True, kw_only=True)
class MpiProcess(LaunchedTask):
    """One process that mpirun started.

    `nodes`: the number of nodes; with `counted=False`, it is a guess. `daemon`: None if this is not Open MPI.
    """

    family: str
    nodes: int
    counted: bool
    daemon: MpiDaemon | None


def mpi_process(environ: Mapping[str, str]) -> MpiProcess | None:
    """Read this process's place in an MPI job from its variables; return None if MPI did not start it.

    srun also sets some variables of PMI and PALS, but not the local size. Its tasks get None: `slurm/` places them.
    RequestError: some of the variables are missing, or they contradict each other.
    """
    row = next((row for row in LAUNCHERS if row.local_rank and environ.get(row.rank)), None)
    if row is None:
        return None
    if row.name in ("Hydra", "PALS") and not environ.get(row.local_size) and environ.get("SLURM_JOB_ID"):
        return None
    family = row.name
    names = [name for name in (row.rank, row.size, row.local_rank, row.local_size or row.nodes) if name]
    if missing := [name for name in names if not environ.get(name)]:
        raise RequestError(
            "mpi-variables-missing", f"{family} started this process, but some of its variables are missing",
            seen=f"{names[0]}={environ[names[0]]}, " + ", ".join(f"no {name}" for name in missing),
            expected=", ".join(names),
            fix="pass every OMPI_*, PMI_*, MPI_* and PMIX_* variable (or the launcher's own) into the container",
        )  # fmt: skip
    rank, count, local_rank, local_count = (whole_number(environ, name) for name in names)
    nodes = whole_number(environ, row.nodes, 1) if environ.get(row.nodes) else None
    if not row.local_size:  # `local_count` is then the node count; assume that ranks are spread evenly.
        local_count = -(-count // local_count)
    if rank >= count or local_rank >= local_count or local_count > count:
        raise RequestError("mpi-variables-contradict", f"{family}'s variables contradict each other",
                           seen=as_pairs({name: environ[name] for name in names}),
                           expected="a rank that is below the size, and a local size that is not above the size",
                           fix="mpirun -n 2 noether train …")  # fmt: skip
    daemon = _daemon(environ) if family == "Open MPI" else None
    if local_count == count:
        node_rank, nodes = 0, 1
    else:
        # mpirun can distribute ranks over the nodes in any order (--map-by), so Hydra's `node_rank` is only a label.
        node_rank = daemon.number if daemon else rank // local_count
    return MpiProcess(
        rank=rank, count=count, local_rank=local_rank, local_count=local_count, node_rank=node_rank,
        seen=f"{family}: rank {rank} of {count}, local rank {local_rank} of {local_count}",
        # If there are several processes, none knows how many devices other nodes have, so each runs only one rank.
        may_spawn=count == 1, bound=bool(environ.get("CUDA_VISIBLE_DEVICES")), line=row.line,
        nodes=max(-(-count // local_count) if nodes is None else nodes, node_rank + 1),
        family=family, counted=nodes is not None, daemon=daemon,
    )  # fmt: skip


def _daemon(environ: Mapping[str, str]) -> MpiDaemon | None:
    head = _ORTE_URI.match(environ.get("OMPI_MCA_orte_hnp_uri", ""))
    local = _ORTE_URI.match(environ.get("OMPI_MCA_orte_local_daemon_uri", ""))
    if head and local:
        return MpiDaemon(int(local[2]), head[3] or "", "OMPI_MCA_orte_hnp_uri", int(head[1]))
    for name in sorted(name for name in environ if name.startswith("PMIX_SERVER_URI")):
        if match := _PRRTE_URI.match(environ[name]):
            return MpiDaemon(int(match[3]), match[1], name, int(match[2]))
    return None


def mpi_placement(request: LaunchRequest, here: LaunchContext) -> Placement | None:
    """Place a process of an MPI launcher; return None if no such launcher started this process.

    RequestError: the variables contradict each other or this node's devices, or do not show where rank 0 is.
    """
    environ = here.environ
    if (process := mpi_process(environ)) is None:
        return None
    binding = bind_devices(process, here.inventory, request.devices)
    if process.counted:
        agree_on_nodes(request, process.nodes, None, process.seen)
    also = agree_with_rank_variables(environ, process, binding.world_size)
    endpoint, restarts = _endpoint(request, environ, process, here.facts), restart_count(environ)
    reasons = {
        "launcher": process.seen + (f"; {also} agree" if also else ""),
        "world_size": f"{process.count} processes of mpirun",
        "nodes": f"{process.nodes} nodes" if process.counted else "unknown: guessed from the ranks on this node",
        "node_rank": f"number {process.node_rank} of mpirun's daemons" if process.daemon else "only a label",
        "workers": f"rank {process.rank}, local rank {process.local_rank}",
        "local_world_size": f"{process.local_count} processes of mpirun on this node",
    }
    nodes = node_names(process.nodes, process.node_rank, here.host, endpoint[0].host)
    return binding.placed("mpi", nodes, endpoint, restarts if restarts[0] else UNCOUNTED, reasons)


def _derived_port(process: MpiProcess, facts: ProcessFacts) -> tuple[int, str] | None:
    """Return a port that is the same in every process, and the reason; None if there is nothing to derive it from."""
    if process.daemon is not None:
        return derived(process.daemon.job, 0, f"mpirun's job {process.daemon.job}")
    proxies = (_HYDRA_PROXY.match(line) for line in facts.ancestors if process.family == "Hydra")
    return next((derived(int(found[1]), 0, f"mpiexec's control port {found[1]}") for found in proxies if found), None)


def _endpoint(
    request: LaunchRequest, environ: Mapping[str, str], process: MpiProcess, facts: ProcessFacts
) -> tuple[Endpoint, str]:
    if process.count == 1:
        return local_endpoint(request.master_port, environ)
    address, source = asked_address(request.master_addr, environ)
    refuse_loopback(address, source, process.nodes)
    port, asked_by, port_reason = port_of(request.master_port, environ, _derived_port(process, facts))
    if process.local_count == process.count and source != "master_addr":
        return Endpoint("127.0.0.1", port, asked_by), f"every rank is on this machine; {port_reason}"
    if address:
        return Endpoint(address, port, asked_by), f"{source}={address}; {port_reason}"
    fix = "mpirun -x MASTER_ADDR=HOST noether train …      (the host of rank 0; mpiexec -genv MASTER_ADDR HOST)"
    daemon = process.daemon
    if daemon is None or not daemon.master:
        raise RequestError("mpi-no-master", "there are ranks on several machines, but no variable gives rank 0's host",
                           seen=f"{process.seen}, no MASTER_ADDR", expected="the host of rank 0", fix=fix)  # fmt: skip
    if process.rank == 0 and daemon.number != 0:
        raise RequestError(
            "mpi-rank-0-elsewhere", "rank 0 is not on the machine that runs mpirun, where the other ranks look for it",
            seen=f"{process.seen}, node {daemon.number}; mpirun runs on {daemon.master} ({daemon.source})",
            expected="rank 0 on the machine that runs mpirun, or MASTER_ADDR set to its host", fix=fix,
        )  # fmt: skip
    reason = f"{daemon.master} runs mpirun and rank 0 ({daemon.source}); {port_reason}"
    return Endpoint(daemon.master, port, asked_by), reason
