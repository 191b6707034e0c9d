"""Places a pod of Kubernetes' Indexed Job: JOB_COMPLETION_INDEX is its number, `nodes` says how many pods there are.

The pods are called JOB-0, JOB-1, … Other pods reach them by name only through a headless Service: with the pod's
`subdomain` set to its name, /etc/hosts has this pod's full name (JOB-1.SERVICE.NAMESPACE.svc.cluster.local), and
rank 0's differs in the number alone. The number of pods is in no variable: it is the setting `nodes`.

Source: Kubernetes' documentation, "Job" (completion mode) and "DNS for Services and Pods" (hostname and subdomain).
"""

from dataclasses import replace

from noether.common.errors import RequestError
from noether.launch.detect.launch_context import LaunchContext, whole_number
from noether.launch.detect.nodes import agree_on_nodes, multinode_placement
from noether.launch.detect.placement import LaunchRequest, Placement
from noether.launch.detect.rendezvous import asked_address, port_of, refuse_loopback

INDEX = "JOB_COMPLETION_INDEX"
OWN_RUNS = "nodes=1 'run_id=NAME-$(JOB_COMPLETION_INDEX)'      (each pod trains a run of its own)"


def kubernetes_placement(request: LaunchRequest, here: LaunchContext) -> Placement | None:
    """Place this pod's workers among those of the Job; return None outside of one, or if each pod is its own run.

    Raises:
        RequestError: nothing says how many pods there are or where rank 0 is, or a setting contradicts the index.
    """
    if not here.environ.get(INDEX) or request.nodes == 1:
        return None
    index, seen = whole_number(here.environ, INDEX), f"{INDEX}={here.environ[INDEX]}, pod {here.host}"
    if request.nodes is None:
        raise RequestError(
            "pods-not-counted",
            "this is a pod of an Indexed Job, but nothing says how many pods train together",
            seen=f"{seen}, nodes is not set",
            expected="nodes, with the Job's number of completions",
            fix=f"nodes=N      (completions: N and parallelism: N in the Job)\n{OWN_RUNS}",
        )
    if index >= request.nodes:
        raise RequestError(
            "pod-index-too-high",
            f"pod {index} of {request.nodes}: the Job has more pods than nodes says",
            seen=f"{seen}, nodes={request.nodes}",
            expected="the same number for nodes, completions and parallelism",
            fix=f"nodes={index + 1}      (or more: the Job's completions)",
        )
    agree_on_nodes(request, request.nodes, index, seen)
    master, source = _master(request, here, index, seen)
    placed = multinode_placement(replace(request, node_rank=index, master_addr=master), here)
    assert placed is not None  # There are two nodes or more.
    stem = here.host.partition(".")[0].removesuffix(f"-{index}")
    reasons = {
        "launcher": f"a pod of Kubernetes' Indexed Job: {seen}",
        "nodes": f"nodes={request.nodes}; the Job names its pods by their index",
        "node_rank": f"{INDEX}={index}",
        "endpoint": f"{source}; {port_of(request.master_port, here.environ)[2]}",
        "restarts": "Kubernetes does not number the starts of a Job's pods",
    }
    return replace(
        placed,
        launcher="kubernetes",
        nodes=tuple(here.host if node == index else f"{stem}-{node}" for node in range(request.nodes)),
        reasons={**placed.reasons, **reasons},
    )


def _master(request: LaunchRequest, here: LaunchContext, index: int, seen: str) -> tuple[str, str]:
    address, source = asked_address(request.master_addr, here.environ)
    if address:
        refuse_loopback(address, source, request.nodes or 1)
        return address, f"{source}={address}"
    pod, _, domain = here.facts.full_name.partition(".")
    if domain and pod.endswith(f"-{index}"):
        return f"{pod.removesuffix(str(index))}0.{domain}", f"this pod is {here.facts.full_name} (/etc/hosts)"
    raise RequestError(
        "pods-not-reachable",
        "this is a pod of an Indexed Job, but other pods cannot be reached by name",
        seen=f"{seen}, without a domain in /etc/hosts",
        expected="a headless Service, which gives the Job's pods names",
        fix="subdomain: SERVICE      (in the Job's template.spec; the Service has clusterIP: None and\n"
        "publishNotReadyAddresses: true, as in examples/kubernetes/indexed-job.yaml; or master_addr=ADDRESS)",
    )
