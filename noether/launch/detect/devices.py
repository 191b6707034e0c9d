"""Find this process's devices: those in the driver's list that CUDA_VISIBLE_DEVICES and `devices` allow."""

import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from noether.common.container import container_line
from noether.common.cpus import read_cpus
from noether.common.errors import RequestError
from noether.common.numbers import counted, first_of, whole
from noether.launch.detect.driver import Gpu
from noether.launch.detect.placement import Device, DeviceInventory, LaunchRequest
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts

# The variables of the step come before those of the job. A value is either a count of GPUs or a list of GPU indices;
# the count 0 means no GPU, and the index 0 means the first GPU.
GRANTING = {
    "SLURM_STEP_GPUS": "list", "SLURM_JOB_GPUS": "list", "SLURM_GPUS_ON_NODE": "number",
    "SLURM_GPUS_PER_NODE": "number", "SLURM_GPUS_PER_TASK": "number", "NVIDIA_VISIBLE_DEVICES": "list",
}  # fmt: skip
# Masks that hide every device: CUDA defines "" and "-1"; Slurm sets NoDevFiles in a step without GPUs.
NO_DEVICES = ("", "-1", "NoDevFiles")
# "all" does not show that GPUs were granted, because images set it by default.
NOT_GRANTED = (*NO_DEVICES, "0", "void", "none", "all")
AMD_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def granted_gpus(environ: Mapping[str, str], facts: ProcessFacts) -> str:
    """Return the evidence that this process was given NVIDIA GPUs, such as "SLURM_STEP_GPUS=0,1", or "".

    A mask that hides every device (an empty CUDA_VISIBLE_DEVICES, NoDevFiles) was set on purpose: the result is "".
    """
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    # In a step, Slurm sets the masks of every vendor, unless Flags in gres.conf names one vendor.
    if facts.amd_driver or (mask is None and any(environ.get(name) for name in AMD_VARIABLES)):
        return ""
    if mask is not None:
        return "" if mask.strip() in NO_DEVICES else f"CUDA_VISIBLE_DEVICES={mask}"
    for name, kind in GRANTING.items():
        value = environ.get(name, "")
        if value not in NOT_GRANTED or (value == "0" and kind == "list"):
            return f"{name}={value}"
    return "the kernel has NVIDIA GPUs (/proc/driver/nvidia/gpus)" if facts.nvidia_kernel else ""


def how_to_have_gpus(environ: Mapping[str, str], facts: ProcessFacts) -> str:
    """Return the fix for missing GPUs: the container's command with its GPU option, else one to check the driver."""
    option = "--nv" if facts.container == "apptainer" else "--gpus all"
    return container_line(facts.container, environ, option) or "nvidia-smi      (says why the driver does not answer)"


def refuse_silent_cpu(environ: Mapping[str, str], facts: ProcessFacts, absence: str) -> None:
    """Raise RequestError if `accelerator=auto` found only the CPU although GPUs were granted to this process.

    `absence`: why no device was found ("no NVIDIA driver answers, …"). The error offers two fixes: make the GPUs
    visible, or set accelerator=cpu.
    """
    if not (granted := granted_gpus(environ, facts)):
        return
    inside = f", in a {facts.container} container" if facts.container else ""
    raise RequestError(
        "granted-gpus-do-not-answer", "GPUs were granted to this process, but none answers",
        seen=(absence if granted in absence else f"{granted}; {absence}") + inside,
        expected="the NVIDIA driver" + (" in the container" if facts.container else "") + ", or accelerator=cpu",
        fix=f"{how_to_have_gpus(environ, facts)}\n"
        "accelerator=cpu      (or CUDA_VISIBLE_DEVICES= before the command: to use the CPU anyway)",
    )  # fmt: skip


GpuDriver = Callable[[], Sequence[Gpu] | None]
"""A function that lists the GPUs in the driver's order, or returns None if no driver answers. It can also return a
fixed list, for a machine without GPUs. RequestError: there is a driver, but it does not work."""


def find_devices(
    request: LaunchRequest,
    environ: Mapping[str, str],
    nvml: GpuDriver,
    facts: ProcessFacts = NOTHING_KNOWN,
    *,
    system: str | None = None,
) -> DeviceInventory:
    """Find the devices that this process may use, without torch and without initialising CUDA.

    The accelerator "gpu" requires CUDA; "auto" uses CUDA, else the GPU of an Apple silicon machine, else the CPU.
    Device indices can differ from NVML's, because CUDA lists the fastest GPU first and NVML sorts by PCI address. This
    does no harm, because only the number of devices matters here.
    `visible_devices`: the mask of another machine; if set, the driver and CUDA_VISIBLE_DEVICES are ignored. `system`:
    "Linux-x86_64", "Darwin-arm64", …; None stands for this machine's system.

    RequestError: the accelerator is missing, GPUs were granted but none answers, or the mask names a missing device.
    """
    accelerator, visible_devices = request.accelerator, request.visible_devices
    cpus, system = read_cpus(), system or f"{platform.system()}-{platform.machine()}"
    apple = system == "Darwin-arm64"
    if accelerator == "mps" and not apple:
        raise RequestError("mps-not-here", "accelerator=mps needs an Apple silicon machine", seen=system,
                           expected="Darwin-arm64", fix="accelerator=auto")  # fmt: skip
    absence = f"accelerator={accelerator}"
    if accelerator in ("auto", "gpu"):
        devices, evidence = _cuda_devices(environ, nvml, visible_devices)
        if devices:
            return DeviceInventory("cuda", devices, evidence, cpus)
        absence = evidence
    if accelerator == "gpu":
        container = how_to_have_gpus(environ, facts) + "\n" if facts.container else ""
        raise RequestError("no-gpu-visible", "accelerator=gpu, but no GPU is visible", seen=absence,
                           expected="at least one CUDA device",
                           fix=container + ("accelerator=mps" if apple else "accelerator=cpu"))  # fmt: skip
    if accelerator == "auto" and visible_devices is None and not apple:
        refuse_silent_cpu(environ, facts, absence)
    if accelerator == "mps" or (accelerator == "auto" and apple):
        return DeviceInventory("mps", (Device("mps"),), "the GPU of this Apple silicon machine", cpus)
    return DeviceInventory("cpu", (Device("cpu"),), f"{absence}; {cpus}", cpus)


def _cuda_devices(
    environ: Mapping[str, str], nvml: GpuDriver, visible_devices: str | None
) -> tuple[tuple[Device, ...], str]:
    """Return the visible CUDA devices and the evidence for them, or () and the reason why there are none."""
    if visible_devices is not None:
        source = f"--visible-devices {visible_devices}"
        return read_mask(visible_devices, None, source), source
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    gpus = nvml()
    masked = "CUDA_VISIBLE_DEVICES is not set" if mask is None else f"CUDA_VISIBLE_DEVICES={mask}"
    if gpus is None:
        return (), f"no NVIDIA driver answers, {masked}"
    if not gpus:
        return (), f"the NVIDIA driver lists no GPU, {masked}"
    devices = None if mask is None else read_mask(mask, gpus, masked)
    chosen = gpus if devices is None else [gpu for device in devices for gpu in gpus if gpu.is_called(device.name)]
    _refuse_faulty(chosen, gpus, masked)
    instances = [uuid for gpu in chosen for uuid in gpu.mig_uuids]
    if instances:  # CUDA shows one instance and no other device (MIG user guide, "CUDA Device Enumeration").
        shown = f"the first of {len(instances)} MIG instances: CUDA shows a process only one"
        return (Device("cuda", 0, instances[0]),), shown if mask is None else f"{masked}: {shown}"
    if devices is not None:
        return devices, masked
    found = f"{counted(len(gpus), 'GPU')} listed by the NVIDIA driver, {masked}"
    return tuple(Device("cuda", gpu.index, str(gpu.index)) for gpu in gpus), found


def _refuse_faulty(chosen: Sequence[Gpu], gpus: Sequence[Gpu], masked: str) -> None:
    faulty = [gpu for gpu in chosen if gpu.fault]
    if not faulty:
        return
    rest = ",".join(str(gpu.index) for gpu in gpus if not gpu.fault)
    raise RequestError("gpu-lost", f"GPU {', '.join(str(gpu.index) for gpu in faulty)} of {len(gpus)} does not answer",
                       seen=f"NVML says: {faulty[0].fault}; {masked}", expected="an answer from every GPU",
                       fix=(f"export CUDA_VISIBLE_DEVICES={rest}      (or " if rest else "accelerator=cpu      (or ")
                       + "another machine: this one needs a restart)")  # fmt: skip


def read_mask(mask: str, gpus: Sequence[Gpu] | None, source: str) -> tuple[Device, ...]:
    """Read a CUDA mask, which lists GPU indices, GPU UUIDs or their unique beginnings, or a single MIG id.

    Return one device per entry, in the mask's order, or () for "", "-1" and "NoDevFiles". `gpus`: the driver's list;
    if None, for a plan for another machine, entries are not looked up. `source`: the mask's name in error messages.

    RequestError: an entry is invalid (CUDA would ignore it and all later entries) or repeated.
    """
    if mask.strip() in NO_DEVICES:
        return ()
    entries = [entry.strip() for entry in mask.split(",")]
    kinds = {_entry_kind(entry) for entry in entries}
    listed = [" ".join((str(gpu.index), gpu.uuid, *gpu.mig_uuids)) for gpu in gpus or ()]
    there = "any machine's devices" if gpus is None else f"the driver lists {first_of(listed, 8, '; ')}"

    def refuse(code: str, summary: str, expected: str, fix: str = "unset CUDA_VISIBLE_DEVICES") -> RequestError:
        fix = fix if gpus is not None else "--visible-devices 0,1"
        return RequestError(code, summary, seen=f"{source}, {there}", expected=expected, fix=fix)

    if "" in kinds:
        wrong = next(entry for entry in entries if not _entry_kind(entry))
        raise refuse(
            "mask-entry-invalid", f"the device mask names {wrong!r}",
            "indices, GPU-… UUIDs or a MIG-… id, separated by commas",
        )  # fmt: skip
    if len(kinds) > 1:
        raise refuse("mask-mixes-kinds", "the device mask mixes indices, UUIDs and MIG ids", "entries of one kind")
    if kinds == {"mig"} and len(entries) > 1:
        # CUDA would show only one of the instances without an error, and NCCL cannot connect instances of one GPU.
        raise refuse(
            "mask-of-several-migs", "the device mask names several MIG instances, but CUDA shows a process only one",
            "one MIG id", f"CUDA_VISIBLE_DEVICES={entries[0]}",
        )  # fmt: skip
    found: list[str] = []
    names = [name for gpu in gpus or () for name in (gpu.uuid, *gpu.mig_uuids)]
    for entry in entries:
        matches = [entry] if gpus is None else _matching(entry, names)
        if gpus is not None and kinds == {"index"}:
            matches = [str(gpu.index) for gpu in gpus if gpu.index == whole(entry)]  # A lost GPU reports no UUID.
        if len(matches) != 1:
            what = "no device of this machine" if not matches else f"{len(matches)} devices"
            raise refuse("mask-names-no-device", f"in the device mask, {entry} names {what}", "one device per entry")
        if matches[0] in found:
            raise refuse("mask-names-device-twice", f"the device mask names {entry} twice", "each device once")
        found.append(matches[0])
    return tuple(Device("cuda", index, entry) for index, entry in enumerate(entries))


def _entry_kind(entry: str) -> str:
    if entry.isascii() and entry.isdigit():
        return "index"
    lowered = entry.lower()
    return "gpu" if lowered.startswith("gpu-") else "mig" if lowered.startswith("mig-") else ""


def _matching(text: str, names: Sequence[str]) -> list[str]:
    """Return the name that equals `text`, else all names that begin with it; upper and lower case count as equal."""
    beginning = [name for name in names if name.lower().startswith(text.lower())]
    return [name for name in beginning if len(name) == len(text)] or beginning


def choose_devices(inventory: DeviceInventory, devices: str | None) -> tuple[Device, ...]:
    """Choose from the visible devices by the setting `devices`, in the order in which it names them.

    Each chosen device gets one worker. None chooses every device; the CPU is one device, whose worker uses all threads.
    "2" chooses the first two devices. A list ("0,1", or "2," for a single device) contains indices within the mask, or
    the mask's own names. On a CPU, the number of entries is the number of workers.
    RequestError: too many devices, a missing or repeated device, or more than two CPU workers per core.
    """
    if devices is None:
        return inventory.devices
    entries = [entry.strip() for entry in devices.split(",")]
    is_number = len(entries) == 1
    if not is_number and entries[-1] == "":
        entries.pop()
    numbers = [number for number in map(whole, entries) if number is not None]
    if devices in ("all", "auto", "-1"):  # Lightning and others use these for all devices.
        raise RequestError("every-device-is-null", f"devices={devices} chooses no device", seen=f"devices={devices}",
                           expected="null for all visible devices, a number, or a list such as 0,1",
                           fix="devices=null")  # fmt: skip
    refuse = partial(_choice_error, inventory=inventory, devices=devices)
    if not entries or "" in entries or (is_number and (not numbers or numbers[0] == 0)):
        raise refuse("no-device-chosen", f"devices={devices} chooses no device")
    if len(set(entries)) < len(entries):
        raise refuse("device-chosen-twice", f"devices={devices} names a device twice")
    if inventory.kind == "cpu" and len(numbers) < len(entries):
        raise refuse("devices-not-a-number", f"devices={devices} is not a number of CPU workers")
    if inventory.kind == "cpu":
        count, cores = numbers[0] if is_number else len(entries), inventory.cpus.count
        if count > 2 * cores:
            raise refuse("too-many-cpu-workers", f"{count} CPU workers for {cores} cores")
        return tuple(Device("cpu", index) for index in range(count))
    if is_number:
        if numbers[0] > len(inventory.devices):
            raise refuse("too-few-devices", f"devices={devices} requests more than are visible")
        return inventory.devices[: numbers[0]]
    chosen = tuple(_named(entry, inventory, devices) for entry in entries)
    if len(set(chosen)) < len(chosen):
        raise refuse("device-chosen-twice", f"devices={devices} names a device twice")
    return chosen


def _named(entry: str, inventory: DeviceInventory, devices: str) -> Device:
    if (number := whole(entry)) is not None:
        matches = [device for device in inventory.devices if device.index == number]
    else:
        names = _matching(entry, [device.name for device in inventory.devices])
        matches = [device for device in inventory.devices if device.name in names]
    if len(matches) != 1:
        problem = f"devices={devices} names {entry}, which is not visible here"
        raise _choice_error("no-such-device", problem, inventory, devices)
    return matches[0]


def _choice_error(code: str, summary: str, inventory: DeviceInventory, devices: str) -> RequestError:
    count = len(inventory.devices)
    if inventory.kind == "cpu":
        there = f"1 CPU ({inventory.evidence})"
        expected = f"1 to {2 * inventory.cpus.count} CPU workers: a number, or a list such as 0,1"
        fix = f"devices={inventory.cpus.count}"
    else:
        named = [
            f"{device.index}" + (f" ({device.name})" if device.name not in ("", str(device.index)) else "")
            for device in inventory.devices
        ]
        there = f"{counted(count, f'visible {inventory.kind} device')}: {', '.join(named)} ({inventory.evidence})"
        expected = f"a number from 1 to {count}, or a list of different indices from 0 to {count - 1}"
        fix = f"devices={count}"
    return RequestError(code, summary, seen=f"devices={devices}, {there}", expected=expected, fix=fix)
