"""Places a run on one machine without a scheduler: this process starts a worker for each chosen device."""

from collections.abc import Mapping

from noether.common.numbers import counted
from noether.launch.detect.devices import DeviceInventory, choose_devices
from noether.launch.detect.launch_context import LaunchContext
from noether.launch.detect.placement import Device, Endpoint, LaunchRequest, Placement, Worker
from noether.launch.detect.rendezvous import port_of


def local_placement(request: LaunchRequest, here: LaunchContext) -> Placement:
    """Place the run on this machine. This launcher accepts any environment, so it is tried last.

    Raises:
        RequestError: the devices are not here, or two different ports are asked for.
    """
    inventory = here.inventory
    devices = choose_devices(inventory, request.devices)
    count = len(devices)
    endpoint, endpoint_reason = local_endpoint(request.master_port, here.environ)
    warnings = [] if request.nodes == 1 else _unused_node_variables(here.environ)
    if inventory.kind == "cpu" and count > inventory.cpus.count:
        warnings.append(f"{count} CPU workers share {inventory.cpus.count} cores: slower than one per core")
    return Placement(
        launcher="local",
        world_size=count,
        nodes=(here.host,),
        node_rank=0,
        workers=tuple(Worker(rank, rank, 0, device) for rank, device in enumerate(devices)),
        endpoint=endpoint,
        restarts=0,
        reasons={
            "launcher": "no scheduler or launcher started this process",
            "world_size": f"{counted(count, 'worker')} on one machine",
            "nodes": "this machine alone",
            "node_rank": "the only machine",
            "workers": _workers_reason(inventory, devices, request.devices),
            "endpoint": endpoint_reason,
            "restarts": "nothing on this machine restarts a run automatically",
            "local_world_size": "every worker is on this machine",
        },
        warnings=tuple(warnings),
    )


def _unused_node_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a warning if variables indicate several nodes but nothing says how many ranks there are.

    Without it, each node would silently train alone.
    """
    # Names for a node's number and for the number of nodes, and the values that mean one node.
    lone = {"NODE_RANK": "", "GROUP_RANK": "", "PET_NODE_RANK": "", "PET_NNODES": "1", "NNODES": "1"}
    found = {name: environ[name] for name in lone if environ.get(name, lone[name]) != lone[name]}
    if not found:
        return []
    master = environ.get("MASTER_ADDR", "")
    shown = ", ".join(
        f"{name}={value}" for name, value in (found | ({"MASTER_ADDR": master} if master else {})).items()
    )
    numbers = {name: value for name, value in found.items() if value.isdigit()}
    rank = next((value for name, value in numbers.items() if name.endswith("RANK")), "0")
    count = next((value for name, value in numbers.items() if name.endswith("NNODES")), "2")
    how = f"--nodes {count} --node-rank {rank} --master-addr {master or 'HOST'}"
    return [f"{shown}, but RANK, WORLD_SIZE and nodes are not set: this machine trains alone ({how} to use all nodes)"]


def _workers_reason(inventory: DeviceInventory, devices: tuple[Device, ...], setting: str | None) -> str:
    count, there = len(devices), len(inventory.devices)
    if inventory.kind == "cpu":
        asked = f"devices={setting}: " if setting is not None else ""
        return f"{asked}{counted(count, 'CPU worker')} ({inventory.evidence})"
    if setting is None:
        return f"all {there} visible devices ({inventory.evidence})" if there > 1 else inventory.evidence
    return f"{count} of {there} visible devices chosen by devices={setting} ({inventory.evidence})"


def local_endpoint(master_port: int | None, environ: Mapping[str, str]) -> tuple[Endpoint, str]:
    """Return where the ranks of one machine meet, and why: the loopback address, which always resolves.

    The port is `master_port`, else MASTER_PORT, else 0, which means a free one that is reserved from the start.

    Raises:
        RequestError: a value is not a port, or two different ports are asked for.
    """
    port, source, reason = port_of(master_port, environ, (0, "this process reserves a free port at the start"))
    return Endpoint("127.0.0.1", port, source), f"every rank is on this machine; {reason}"
