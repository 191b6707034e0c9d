"""Place a run on this machine alone, a run started by hand on several machines, and the pods of a Kubernetes Job.

For a run by hand, the user starts these commands; all machines must have the same number of devices:

    hostA$ noether train --nodes 2 --node-rank 0 --master-addr hostA
    hostB$ noether train --nodes 2 --node-rank 1 --master-addr hostA

A pod of an Indexed Job has its index in JOB_COMPLETION_INDEX. No variable has the number of pods, so `nodes` must be
set. The pods JOB-0, JOB-1, … reach each other by name only through a headless Service, whose name must be the pods'
`subdomain`. Then /etc/hosts contains this pod's full name (JOB-1.SERVICE.NAMESPACE.svc.cluster.local), and rank 0's
name differs from it only in the index (Kubernetes' documentation, "Job" and "DNS for Services and Pods").
"""

from collections.abc import Mapping
from dataclasses import replace

from noether.common.errors import RequestError
from noether.common.numbers import counted, first_of, whole_number
from noether.launch.detect.devices import choose_devices
from noether.launch.detect.endpoint import asked_address, is_loopback, port_of, refuse_loopback
from noether.launch.detect.launchers import LAUNCHERS, foreign_signs, signs_of
from noether.launch.detect.placement import Endpoint, LaunchContext, LaunchRequest, Placement, Worker, as_pairs


def local_placement(request: LaunchRequest, here: LaunchContext) -> Placement:
    """Place the run on this machine alone. This launcher accepts any environment, so the others are tried before it.

    RequestError: requested devices are missing, or two different ports are set.
    """
    inventory = here.inventory
    devices = choose_devices(inventory, request.devices)
    count = len(devices)
    endpoint, endpoint_reason = local_endpoint(request.master_port, here.environ)
    unread = {} if request.nodes == 1 else foreign_signs(here.environ, here.host).unread
    warnings = [f"{as_pairs({name: unread[name]})} cannot be read here: if it lists other hosts, they are not used"
                for name in unread]  # fmt: skip
    if inventory.kind == "cpu" and count > inventory.cpus.count:
        warnings.append(f"{count} CPU workers share {inventory.cpus.count} cores: slower than one per core")
    return Placement(
        launcher="local", world_size=count, local_world_size=count, nodes=(here.host,), node_rank=0,
        workers=tuple(Worker(rank, rank, 0, device) for rank, device in enumerate(devices)),
        endpoint=endpoint, restarts=0, warnings=tuple(warnings),
        reasons={
            "launcher": "no scheduler or launcher started this process",
            "world_size": f"{counted(count, 'worker')} on one machine",
            "nodes": "this machine alone", "node_rank": "the only machine",
            "workers": _workers_reason(request, here, count),
            "endpoint": endpoint_reason,
            "restarts": "nothing on this machine restarts a run automatically",
            "local_world_size": "every worker is on this machine",
        },
    )  # fmt: skip


def _workers_reason(request: LaunchRequest, here: LaunchContext, count: int) -> str:
    inventory, setting, there = here.inventory, request.devices, len(here.inventory.devices)
    if inventory.kind == "cpu":
        asked = f"devices={setting}: " if setting is not None else ""
        return f"{asked}{counted(count, 'CPU worker')} ({inventory.evidence})"
    if setting is None:
        return f"all {there} visible devices ({inventory.evidence})" if there > 1 else inventory.evidence
    return f"{count} of {there} visible devices chosen by devices={setting} ({inventory.evidence})"


def local_endpoint(master_port: int | None, environ: Mapping[str, str]) -> tuple[Endpoint, str]:
    """Return the endpoint of ranks on one machine, and the reason: the loopback address, which always resolves.

    The port is `master_port`, else MASTER_PORT, else 0, which stands for any free port.
    RequestError: a value is not a port, or `master_port` and MASTER_PORT differ.
    """
    port, source, reason = port_of(master_port, environ, (0, "this process reserves a free port at the start"))
    return Endpoint("127.0.0.1", port, source), f"every rank is on this machine; {reason}"


COMMAND = "noether train --nodes 2 --node-rank 0 --master-addr HOST      (--node-rank 1 on the other machine)"


def multinode_placement(request: LaunchRequest, here: LaunchContext) -> Placement | None:
    """Place this machine's workers in a run on `nodes` machines; return None if the setting `nodes` is None or 1.

    RequestError: `nodes`, `node_rank` and `master_addr` contradict each other, or one of them is missing.
    """
    if request.nodes is None or request.nodes == 1:
        _refuse_leftovers(request)
        return None
    master, source = asked_address(request.master_addr, here.environ)
    nodes, node_rank = _checked(request, master)
    devices = choose_devices(here.inventory, request.devices)
    each = len(devices)
    port, asked_by, port_reason = port_of(request.master_port, here.environ)
    here_only = f"{source}={master} means each machine itself: this works only with all {nodes} nodes here"
    workers = f"{counted(each, 'device')} here and, presumably, on each of the other nodes"
    return Placement(
        launcher="multinode", world_size=nodes * each, local_world_size=each,
        nodes=node_names(nodes, node_rank, here.host, master), node_rank=node_rank,
        workers=tuple(Worker(node_rank * each + i, i, node_rank, device) for i, device in enumerate(devices)),
        endpoint=Endpoint(master, port, asked_by), restarts=0, warnings=(here_only,) if is_loopback(master) else (),
        reasons={
            "launcher": f"nodes={nodes}, and no launcher started this process",
            "world_size": f"{nodes} nodes × {counted(each, 'worker')}",
            "nodes": f"nodes={nodes}, {source}={master}", "node_rank": f"node_rank={node_rank}",
            "workers": f"{workers} ({here.inventory.evidence})",
            "endpoint": f"{source}={master}; {port_reason}",
            "restarts": "nothing on these machines restarts a run automatically",
            "local_world_size": "the workers of this process",
        },
    )  # fmt: skip


def _refuse_leftovers(request: LaunchRequest) -> None:
    for name, value in (("node_rank", request.node_rank), ("master_addr", request.master_addr)):
        # On a single machine, node_rank=0 is allowed, and with nodes=1 master_addr is allowed too.
        if value and (name == "node_rank" or request.nodes is None):
            raise RequestError("setting-without-nodes", f"{name} is set, but nodes is not",
                               seen=f"{name}={value}" + (f", nodes={request.nodes}" if request.nodes else ""),
                               expected="nodes, node_rank and master_addr together, or none of them",
                               fix=COMMAND)  # fmt: skip


def _checked(request: LaunchRequest, master: str) -> tuple[int, int]:
    nodes, node_rank = request.nodes, request.node_rank
    asked = {"nodes": nodes, "node_rank": node_rank, "master_addr": master or None}
    seen = as_pairs({name: value for name, value in asked.items() if value is not None})
    if nodes is None or node_rank is None or not master:
        missing = " and ".join(name for name, value in asked.items() if value is None)
        raise RequestError("nodes-without-setting", f"nodes={nodes}, but no {missing}", seen=seen,
                           expected="nodes, node_rank and master_addr together", fix=COMMAND)  # fmt: skip
    if not 0 <= node_rank < nodes:
        raise RequestError("node-rank-out-of-range", f"node_rank={node_rank}, but {nodes} nodes", seen=seen,
                           expected=f"0 to {nodes - 1}, a different value on each machine",
                           fix=f"--node-rank {nodes - 1}")  # fmt: skip
    return nodes, node_rank


def node_names(count: int, node_rank: int, host: str, master: str = "") -> tuple[str, ...]:
    """Return a name for each node: the real name of this host and of the master, "(node 3)" for an unknown name."""
    names = [f"(node {index})" for index in range(count)]
    if master and not is_loopback(master):
        names[0] = master
    names[node_rank] = host
    return tuple(names)


def agree_on_nodes(request: LaunchRequest, count: int, node_rank: int | None, source: str) -> None:
    """Raise RequestError if `nodes` or `node_rank` in the settings contradicts the launcher's own values.

    `count`, `node_rank`: the launcher's values; `node_rank` is None if it is unknown. `source`: the evidence for them.
    """
    for name, asked, known in (("nodes", request.nodes, count), ("node_rank", request.node_rank, node_rank)):
        if asked is not None and known is not None and asked != known:
            raise RequestError("setting-against-launcher", f"{name}={asked}, but the launcher says {known}",
                               seen=f"{name}={asked}, {source}",
                               expected=f"{name}={known}, or no such setting, because the launcher knows it",
                               fix=f"leave {name} out")  # fmt: skip


def cluster_placement(request: LaunchRequest, here: LaunchContext) -> Placement | None:
    """Place this node's workers if a known launcher started one process on each node; otherwise return None.

    RequestError: a setting contradicts the launcher. Missing variables give None and are left to `refuse_unknown`.
    """
    rows = (row for row in LAUNCHERS if not row.local_rank)
    row = next((row for row in rows if here.environ.get(row.rank) or here.environ.get(row.hosts)), None)
    if row is None or request.nodes == 1:
        return None
    signs = signs_of(row, here.environ, here.host)
    count, number = signs.count or 1, signs.number
    address, source = asked_address(request.master_addr, here.environ)
    known = here.environ.get(row.master) or next(iter(signs.hosts), "") or (here.host if number == 0 else "")
    if number is None or count == 1 or not (address or known):
        return None
    agree_on_nodes(request, count, number, as_pairs(signs.seen))
    refuse_loopback(address, source, count)
    named = f"{source}={address}" if address else f"{known}, which {row.name} names as the first node"
    return _joined(request, here, row.name, (count, number), (address or known, named), as_pairs(signs.seen))


def _joined(
    request: LaunchRequest, here: LaunchContext, name: str, place: tuple[int, int], master: tuple[str, str], seen: str
) -> Placement:
    """Place a node's workers. `place`: node count and node index. `master`: rank 0's address and the reason for it."""
    placed = multinode_placement(replace(request, nodes=place[0], node_rank=place[1], master_addr=master[0]), here)
    assert placed is not None
    reasons = {
        "launcher": f"{name}: {seen}", "nodes": f"{place[0]} nodes ({seen})", "node_rank": f"node {place[1]} ({seen})",
        "endpoint": f"{master[1]}; {port_of(request.master_port, here.environ)[2]}",
        "restarts": "nothing counts how often this run was started",
    }  # fmt: skip
    return replace(placed, launcher=name, reasons={**placed.reasons, **reasons})


def refuse_unknown(request: LaunchRequest, here: LaunchContext) -> None:
    """Raise RequestError if variables show several processes of an unknown launcher, but `nodes` is not set."""
    signs = foreign_signs(here.environ, here.host)
    if request.nodes is not None or not signs.seen:
        return
    master = here.environ.get("MASTER_ADDR") or next(iter(signs.hosts), "HOST")
    number = "K" if signs.number is None else signs.number
    raise RequestError(
        "launcher-not-known", "variables show that several processes were started, but this one would train alone",
        seen=as_pairs(signs.seen) + (f"; hosts {first_of(signs.hosts, 4)}" if signs.hosts else ""),
        expected="the variables of a launcher that noether knows, or these settings on each node",
        fix=f"noether train --nodes {signs.count or 'N'} --node-rank {number} --master-addr {master}      (each node "
        "with its own number;\nor nodes=1, to train in this process alone)",
    )  # fmt: skip


INDEX = "JOB_COMPLETION_INDEX"
OWN_RUNS = "nodes=1 'run_id=NAME-$(JOB_COMPLETION_INDEX)'      (each pod trains its own run)"


def kubernetes_placement(request: LaunchRequest, here: LaunchContext) -> Placement | None:
    """Place this pod's workers in the run of an Indexed Job; return None outside a Job, or if each pod is its own run.

    RequestError: the number of pods or rank 0's host is unknown, or a setting contradicts the pod's index.
    """
    if not here.environ.get(INDEX) or request.nodes == 1:
        return None
    index, seen = whole_number(here.environ, INDEX), f"{INDEX}={here.environ[INDEX]}, pod {here.host}"
    if request.nodes is None:
        raise RequestError("pods-not-counted",
                           "this is a pod of an Indexed Job, but nothing says how many pods train together",
                           seen=f"{seen}, nodes is not set", expected="nodes=N, where N is the Job's `completions`",
                           fix=f"nodes=N      (completions: N and parallelism: N in the Job)\n{OWN_RUNS}")  # fmt: skip
    if index >= request.nodes:
        raise RequestError("pod-index-too-high",
                           f"pod {index} of {request.nodes}: the Job has more pods than nodes says",
                           seen=f"{seen}, nodes={request.nodes}",
                           expected="the same number for nodes, completions and parallelism",
                           fix=f"nodes={index + 1}      (or more: the Job's completions)")  # fmt: skip
    agree_on_nodes(request, request.nodes, index, seen)
    master, source = _master(request, here, index, seen)
    placed = _joined(request, here, "kubernetes", (request.nodes, index), (master, source), seen)
    stem = here.host.partition(".")[0].removesuffix(f"-{index}")
    names = (here.host if node == index else f"{stem}-{node}" for node in range(request.nodes))
    return replace(placed, nodes=tuple(names))


def _master(request: LaunchRequest, here: LaunchContext, index: int, seen: str) -> tuple[str, str]:
    address, source = asked_address(request.master_addr, here.environ)
    if address:
        refuse_loopback(address, source, request.nodes or 1)
        return address, f"{source}={address}"
    pod, _, domain = here.facts.full_name.partition(".")
    if domain and pod.endswith(f"-{index}"):
        return f"{pod.removesuffix(str(index))}0.{domain}", f"this pod is {here.facts.full_name} (/etc/hosts)"
    raise RequestError(
        "pods-not-reachable", "this is a pod of an Indexed Job, but other pods cannot be reached by name",
        seen=f"{seen}, without a domain in /etc/hosts", expected="a headless Service, which gives the Job's pods names",
        fix="subdomain: SERVICE      (in the Job's template.spec; the Service has clusterIP: None and\n"
        "publishNotReadyAddresses: true, as in examples/kubernetes/indexed-job.yaml; or master_addr=ADDRESS)",
    )  # fmt: skip
