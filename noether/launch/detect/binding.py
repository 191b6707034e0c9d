"""Assign devices to each task of a launcher, by comparing the tasks on this node with the devices that each task sees.

- One task per node with N devices (hybrid): the task starts N workers, whose ranks follow those of the task before it.
- N tasks per node, each of which sees N devices: each task uses the device whose index is its local rank.
- N tasks per node, each bound to one device by the launcher: each uses its device, with a warning about peer-to-peer.
- Any other combination is an error that shows what was seen, what was expected, and which line to change.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from noether.common.errors import RequestError
from noether.common.numbers import counted, whole
from noether.launch.detect.devices import choose_devices
from noether.launch.detect.placement import Device, DeviceInventory, Endpoint, Placement, Worker, as_pairs

UNCOUNTED = (0, "nothing counts how often this run was started")


@dataclass(frozen=True, kw_only=True)
class LaunchedTask:
    """One of the `count` processes that a launcher started for a run. Each launcher has a subclass, with more fields.

    `local_rank`: the number of this task among the `local_count` tasks on this node. `most_local`: the largest number
    of tasks on any node, or None if the launcher does not report it; a device without a task then causes only a
    warning. `node_rank`: the index of this node.

    `may_spawn`: whether a task may run several ranks; torchrun's and mpirun's processes are one rank each.
    `bound`: whether a single visible device may belong to this task alone, not to all tasks on the node.
    `seen` and `line` are texts for errors: the evidence, and the line that sets `{n}` tasks per node.
    """

    rank: int
    count: int
    local_rank: int
    local_count: int
    node_rank: int
    seen: str
    line: str
    most_local: int | None = None
    may_spawn: bool = False
    bound: bool = False


@dataclass(frozen=True)
class Binding:
    """The workers of one task, and the resulting counts of ranks in the run and on this node."""

    task: LaunchedTask
    workers: tuple[Worker, ...]
    world_size: int
    local_world_size: int
    reason: str
    warnings: tuple[str, ...] = ()

    def placed(
        self,
        launcher: str,
        nodes: tuple[str, ...],
        endpoint: tuple[Endpoint, str],
        restarts: tuple[int, str],
        reasons: dict[str, str],
    ) -> Placement:
        """Return the task's placement. The reasons in `endpoint` and `restarts` are inserted before the last reason."""
        *others, last = {**reasons, "workers": f"{reasons['workers']}; {self.reason}"}.items()
        return Placement(
            launcher, self.world_size, nodes, self.task.node_rank, self.workers, endpoint[0], restarts[0],
            dict([*others, ("endpoint", endpoint[1]), ("restarts", restarts[1]), last]),
            self.local_world_size, self.warnings,
        )  # fmt: skip


def bind_devices(
    task: LaunchedTask, inventory: DeviceInventory, setting: str | None, device_counts: tuple[int, ...] | None = None
) -> Binding:
    """Assign devices to a task; this determines the task's ranks.

    `setting`: the setting `devices` as the user wrote it; on a CPU, the worker count of each task that may spawn.
    `device_counts`: the number of devices that each task of the run sees; None if every task sees the same number.

    RequestError: the number of tasks does not match the number of devices.
    """
    if inventory.kind == "cpu":
        return _bind_cpu(task, inventory, setting)
    if task.may_spawn and (task.most_local or task.local_count) == 1:
        devices = choose_devices(inventory, setting)
        each = ", one device each" if len(devices) == 1 else f": a worker on each of its {len(devices)} devices"
        return _spawned(task, devices, f"one task per node{each} ({inventory.evidence})", device_counts)
    if len(inventory.devices) == 1 and task.local_count > 1:
        return _bind_only_device(task, inventory, setting)
    devices = choose_devices(inventory, setting)
    idle = len(devices) - task.local_count
    if idle < 0 or (idle and task.most_local not in (None, len(devices))):
        raise _mismatch(task, inventory, len(devices), setting)
    warnings = []
    if idle:
        warnings.append(
            f"{idle} of this node's {len(devices)} visible devices {'is' if idle == 1 else 'are'} not used: "
            f"{counted(task.local_count, 'task')} here ({task.seen})"
        )
    device = devices[task.local_rank]
    reason = f"device {task.local_rank} of {len(devices)}, by local rank ({inventory.evidence})"
    return _one(task, device, reason, warnings)


def _bind_cpu(task: LaunchedTask, inventory: DeviceInventory, setting: str | None) -> Binding:
    devices = choose_devices(inventory, setting)
    if task.may_spawn:
        threads = f"{counted(task.local_count, 'task')} on this node, {inventory.evidence}"
        each = "one CPU worker" if setting is None else f"devices={setting}: {len(devices)} CPU workers in each task"
        cpus = tuple(Device("cpu", task.local_rank * len(devices) + device.index) for device in devices)
        return _spawned(task, cpus, f"{each} ({threads})")
    if len(devices) not in (1, task.local_count):
        raise _mismatch(task, inventory, len(devices), setting)
    reason = f"one CPU worker for each process ({inventory.evidence})"
    return _one(task, Device("cpu", task.local_rank), reason, [])


def _bind_only_device(task: LaunchedTask, inventory: DeviceInventory, setting: str | None) -> Binding:
    """Assign to this task the only device that it sees, on a node with several tasks."""
    if not task.bound:
        raise _mismatch(task, inventory, 1, setting)
    # With four tasks of one device each, devices=4 or a list of four devices describes the whole node, not this task.
    named = [entry.strip() for entry in (setting or "").split(",") if entry.strip()]
    if (len(named) if "," in (setting or "") else whole("".join(named))) != task.local_count:
        choose_devices(inventory, setting)
    warning = (
        f"each of the {task.local_count} tasks on this node sees only one device: NCCL may be unable to use "
        "peer-to-peer, which is slower; let each task see all devices (--gpus-per-node, no --gpus-per-task)"
    )
    reason = f"the one device that this task sees ({inventory.evidence})"
    return _one(task, inventory.devices[0], reason, [warning])


def _one(task: LaunchedTask, device: Device, reason: str, warnings: list[str]) -> Binding:
    worker = Worker(task.rank, task.local_rank, task.node_rank, device)
    return Binding(task, (worker,), task.count, task.local_count, reason, tuple(warnings))


def _spawned(
    task: LaunchedTask, devices: tuple[Device, ...], reason: str, counts: tuple[int, ...] | None = None
) -> Binding:
    each = len(devices)
    if counts is not None and counts[task.rank] != each:
        raise RequestError(
            "devices-against-launcher", f"{each} devices on this node, but the launcher gave it {counts[task.rank]}",
            seen=f"{reason}; {task.seen}", expected=f"{counts[task.rank]} devices (other nodes rely on it)",
            fix=f"devices={each} on every node, or do not set CUDA_VISIBLE_DEVICES yourself",
        )  # fmt: skip
    first = task.rank * each if counts is None else sum(counts[: task.rank])
    world = task.count * each if counts is None else sum(counts)
    workers = tuple(
        Worker(first + index, task.local_rank * each + index, task.node_rank, device)
        for index, device in enumerate(devices)
    )
    return Binding(task, workers, world, task.local_count * each, reason)


def _mismatch(task: LaunchedTask, inventory: DeviceInventory, devices: int, setting: str | None) -> RequestError:
    chosen = f", devices={setting}" if setting is not None else ""
    tasks = counted(task.local_count, "task")
    found = counted(devices, "visible device" if inventory.kind == "cuda" else f"{inventory.kind} device")
    by_setting = setting is not None and (inventory.kind != "cuda" or devices < len(inventory.devices))
    fix = f"devices={task.local_count}" if by_setting else task.line.format(n=devices)
    return RequestError("tasks-against-devices", f"{tasks} on this node but {found}",
                        seen=f"{task.seen}, {inventory.evidence}{chosen}",
                        expected="one task per device, or one task per node", fix=fix)  # fmt: skip


def agree_with_rank_variables(environ: Mapping[str, str], task: LaunchedTask, world_size: int) -> str:
    """Return the rank variables that are set, as text, or "". RequestError: a variable contradicts the launcher.

    A job script (`export WORLD_SIZE=$SLURM_NTASKS`) or enroot's 50-slurm-pytorch hook can set these variables.
    WORLD_SIZE can be the count of processes or of ranks.
    """
    allowed = {
        "RANK": {str(task.rank)},
        "WORLD_SIZE": {str(task.count), str(world_size)},
        "LOCAL_RANK": {str(task.local_rank)},
    }
    found = {name: environ[name] for name in allowed if environ.get(name)}
    shown = as_pairs(found)
    for name, value in found.items():
        if value not in allowed[name]:
            raise RequestError("variable-contradicts-launcher", f"{name}={value} contradicts the launcher",
                               seen=f"{shown}, {task.seen}",
                               expected=f"{name}={' or '.join(sorted(allowed[name]))}, or not set",
                               fix=f"unset {' '.join(found)}")  # fmt: skip
    return shown
