"""Places a run on several machines without a scheduler: the same command is started by hand on each of them.

    hostA$ noether train --nodes 2 --node-rank 0 --master-addr hostA
    hostB$ noether train --nodes 2 --node-rank 1 --master-addr hostA

Each machine starts a worker on each of its chosen devices; all must have the same number. The ranks meet at
`master_addr`, else MASTER_ADDR, on port `master_port`, else MASTER_PORT, else 29500; the port must be the same on every
machine.
"""

from noether.common.errors import RequestError
from noether.common.numbers import counted
from noether.launch.detect.devices import choose_devices
from noether.launch.detect.endpoint import is_loopback
from noether.launch.detect.launch_context import LaunchContext
from noether.launch.detect.placement import Endpoint, LaunchRequest, Placement, Worker
from noether.launch.detect.rendezvous import asked_address, port_of

COMMAND = "noether train --nodes 2 --node-rank 0 --master-addr HOST      (--node-rank 1 on the other machine)"


def multinode_placement(request: LaunchRequest, here: LaunchContext) -> Placement | None:
    """Place this machine's workers among those of `nodes` machines; return None if `nodes` is not set or 1.

    Raises:
        RequestError: `nodes`, `node_rank` and `master_addr` do not fit together.
    """
    if request.nodes is None or request.nodes == 1:
        _refuse_leftovers(request)
        return None
    master, source = asked_address(request.master_addr, here.environ)
    nodes, node_rank = _checked(request, master)
    devices = choose_devices(here.inventory, request.devices)
    each = len(devices)
    port, asked_by, port_reason = port_of(request.master_port, here.environ)
    names = node_names(nodes, node_rank, here.host, master)
    warnings = []
    if is_loopback(master):
        warnings.append(f"{source}={master} means each machine itself: this works only with all {nodes} nodes here")
    workers = f"{counted(each, 'device')} here and, presumably, on each of the other nodes"
    return Placement(
        launcher="multinode",
        world_size=nodes * each,
        nodes=names,
        node_rank=node_rank,
        workers=tuple(Worker(node_rank * each + i, i, node_rank, device) for i, device in enumerate(devices)),
        endpoint=Endpoint(master, port, asked_by),
        restarts=0,
        reasons={
            "launcher": f"nodes={nodes}, and no launcher started this process",
            "world_size": f"{nodes} nodes × {counted(each, 'worker')}",
            "nodes": f"nodes={nodes}, {source}={master}",
            "node_rank": f"node_rank={node_rank}",
            "workers": f"{workers} ({here.inventory.evidence})",
            "endpoint": f"{source}={master}; {port_reason}",
            "restarts": "nothing on these machines restarts a run automatically",
            "local_world_size": "the workers of this process",
        },
        warnings=tuple(warnings),
    )


def _refuse_leftovers(request: LaunchRequest) -> None:
    for name, value in (("node_rank", request.node_rank), ("master_addr", request.master_addr)):
        # Allowed: node_rank=0, which is right for a single machine, and master_addr with nodes=1.
        if value and (name == "node_rank" or request.nodes is None):
            raise RequestError(
                "setting-without-nodes",
                f"{name} without nodes",
                seen=f"{name}={value}" + (f", nodes={request.nodes}" if request.nodes else ""),
                expected="nodes, node_rank and master_addr together, or none of them",
                fix=COMMAND,
            )


def _checked(request: LaunchRequest, master: str) -> tuple[int, int]:
    nodes, node_rank = request.nodes, request.node_rank
    asked = (("nodes", nodes), ("node_rank", node_rank), ("master_addr", master or None))
    seen = ", ".join(f"{name}={value}" for name, value in asked if value is not None)
    if nodes is None or node_rank is None or not master:
        missing = " and ".join(name for name, value in asked if value is None)
        raise RequestError(
            "nodes-without-setting", f"nodes={nodes} without {missing}", seen=seen, expected="all three", fix=COMMAND
        )
    if not 0 <= node_rank < nodes:
        raise RequestError(
            "node-rank-out-of-range",
            f"node_rank={node_rank} of {nodes} nodes",
            seen=seen,
            expected=f"0 to {nodes - 1}, each on one machine",
            fix=f"--node-rank {nodes - 1}",
        )
    return nodes, node_rank


def node_names(count: int, node_rank: int, host: str, master: str = "") -> tuple[str, ...]:
    """Return a name for each node: this host's, the master's if it is known, and "(node 3)" for the others."""
    names = [f"(node {index})" for index in range(count)]
    if master and not is_loopback(master):
        names[0] = master
    names[node_rank] = host
    return tuple(names)


def agree_on_nodes(request: LaunchRequest, count: int, node_rank: int | None, source: str) -> None:
    """Refuse settings that contradict a launcher that knows the number of nodes.

    `node_rank` is None if the launcher does not number the nodes; `source` is the launcher's evidence.

    Raises:
        RequestError: a setting differs from what the launcher says.
    """
    for name, asked, known in (("nodes", request.nodes, count), ("node_rank", request.node_rank, node_rank)):
        if asked is not None and known is not None and asked != known:
            raise RequestError(
                "setting-against-launcher",
                f"{name}={asked}, but the launcher says {known}",
                seen=f"{name}={asked}, {source}",
                expected=f"{name}={known}, or not set, as the launcher knows it",
                fix=f"leave {name} out",
            )
