"""Checks that torch, CUDA, driver and devices match, and that no module hides an installed one. Pure functions."""

import re
from collections.abc import Mapping
from typing import Any

from noether.common.errors import RequestError
from noether.common.numbers import counted
from noether.doctor.diagnosis import Diagnosis, Level, refused, skipped
from noether.doctor.host_facts import HostFacts
from noether.launch.detect.devices import find_devices
from noether.launch.detect.driver import Driver
from noether.launch.detect.placement import LaunchRequest

OLDEST_DRIVER = {13: (580, 65), 12: (525, 60), 11: (450, 80)}
"""Oldest Linux driver that runs every minor release of a CUDA major version (CUDA release notes, table "minor version
compatibility"): 580.65.06, 525.60.13, 450.80.02."""


def check_versions(facts: HostFacts, torch: Mapping[str, Any]) -> Diagnosis:
    """Lists the installed versions; an error if torch is not among them."""
    words = [f"{name} {number}" for name, number in facts.versions.items()]
    if "torch" not in facts.versions:
        fix = "pip install --constraint constraints.txt torch"
        return Diagnosis("versions", "error", ", ".join(words), "an installed torch", fix)
    words += [f"{name} {torch[key]}" for name, key in (("CUDA", "cuda"), ("NCCL", "nccl")) if torch.get(key)]
    return Diagnosis("versions", "ok", ", ".join(words))


def check_torch(torch: Mapping[str, Any], load: float = 0.0, cores: int = 1) -> Diagnosis:
    """Checks that `import torch` works in time; `load` counts this host's processes that compute or wait for a disk."""
    if torch.get("late"):
        # On a busy machine a sound torch may take minutes; on an idle one, its disk hangs.
        busy = load > cores
        seen = f"import torch: {torch['error']}" + (f"; the load is {load:.1f} on {cores} cores" if busy else "")
        expected = "an import in time (the first one from a network disk may take minutes)"
        level: Level = "warning" if busy else "error"
        return Diagnosis("torch", level, seen, expected, "noether doctor --timeout 300")
    if "error" in torch:
        expected = "an installed torch that can be imported"
        fix = "pip install --force-reinstall --constraint constraints.txt torch"
        return Diagnosis("torch", "error", f"import torch: {torch['error']}", expected, fix)
    if not torch["gloo"]:
        wanted = "a torch with distributed support"
        return Diagnosis("torch", "error", "torch without gloo", wanted, "pip install torch")
    return Diagnosis("torch", "ok", f"torch {torch['version']} imports")


def check_driver(facts: HostFacts, torch: Mapping[str, Any]) -> Diagnosis:
    """Compares the NVIDIA driver with the CUDA that torch was built for."""
    driver, cuda = facts.driver, str(torch.get("cuda", ""))
    if driver is None:
        fix = "nvidia-smi      (if it hangs too, the GPU or the driver needs a reset)"
        return Diagnosis("driver", "error", "the NVIDIA driver does not answer", "an answer within seconds", fix)
    if refusal := driver.refusal():
        return refused("driver", refusal)
    if driver.gpus is None:
        if driver.nodes:
            seen = f"/dev/{driver.nodes[0]} exists, but NVML says: {driver.error or 'nothing'}"
            fix = "nvidia-smi      (in a container: docker run --gpus all, apptainer exec --nv)"
            return Diagnosis("driver", "error", seen, "a driver that lists its GPUs", fix)
        if cuda:
            seen = f"no NVIDIA driver ({driver.error}); torch is built for CUDA {cuda}"
            fix = "docker run --gpus all …, apptainer exec --nv …      (accelerator=cpu if there is no GPU)"
            return Diagnosis("driver", "warning", seen, "a driver, if this host has a GPU", fix)
        return Diagnosis("driver", "ok", "no NVIDIA GPU here")
    seen = f"driver {driver.version}, {counted(len(driver.gpus), 'GPU')}"
    if "error" in torch or not torch:
        return Diagnosis("driver", "ok", seen)
    if not cuda:
        return Diagnosis("driver", "ok", f"{seen}; torch is built without CUDA")
    oldest = OLDEST_DRIVER.get(int(cuda.partition(".")[0]))
    here = tuple(int(number) for number in re.findall(r"\d+", driver.version)[:2])
    if oldest and here and here < oldest:
        fits = next((major for major, number in OLDEST_DRIVER.items() if here >= number), None)
        wanted = f"driver {oldest[0]}.{oldest[1]} or newer for CUDA {cuda}"
        fix = f"a torch built for CUDA {fits}.x, or a newer driver" if fits else "a newer driver"
        return Diagnosis("driver", "error", f"{seen}; torch is built for CUDA {cuda}", wanted, fix)
    return Diagnosis("driver", "ok", f"{seen}; torch is built for CUDA {cuda}")


def check_devices(
    facts: HostFacts, torch: Mapping[str, Any], devices: Mapping[str, Any], environ: Mapping[str, str]
) -> Diagnosis:
    """Checks that the driver, CUDA_VISIBLE_DEVICES and torch agree about the devices."""
    if "error" in devices or not devices:
        why = devices.get("error", "torch could not be imported")
        level: Level = "error" if facts.driver is not None and facts.driver.gpus else "skipped"
        fix = "nvidia-smi      (if it hangs, the GPU needs a reset)" if level == "error" else ""
        return Diagnosis("devices", level, f"torch cannot list its devices: {why}", fix=fix)
    listed = len(facts.driver.gpus) if facts.driver and facts.driver.gpus is not None else 0
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    masked = "CUDA_VISIBLE_DEVICES is not set" if mask is None else f"CUDA_VISIBLE_DEVICES={mask}"
    seen = f"the driver lists {listed}, {masked}, torch sees {devices['count']}"
    if not listed and not devices["count"]:
        return Diagnosis("devices", "ok", "the CPU only")
    if not torch["cuda"]:
        return skipped("devices", f"{seen}: it is built without CUDA")
    if devices["why"]:
        fix = "unset CUDA_VISIBLE_DEVICES" if mask is not None else "nvidia-smi"
        return Diagnosis("devices", "error", f"{seen}: {devices['why']}", "devices that torch can use", fix)
    divided = bool(facts.driver and facts.driver.gpus and any(gpu.mig_uuids for gpu in facts.driver.gpus))
    try:
        inventory = find_devices(LaunchRequest(), environ, (facts.driver or Driver()).listed)
    except RequestError as error:
        return refused("devices", error)
    allowed = len(inventory.devices) if inventory.kind == "cuda" else 0
    if devices["count"] != allowed and listed and not divided:
        fix = "unset CUDA_VISIBLE_DEVICES" if mask is not None else "nvidia-smi -q"
        return Diagnosis("devices", "error", seen, f"{allowed} devices in torch", fix)
    names = ", ".join(dict.fromkeys(devices["names"]))
    return Diagnosis("devices", "ok", f"{seen} ({names})" if names else seen)


def check_imports(facts: HostFacts) -> Diagnosis:
    """Finds modules in PYTHONPATH or ~/.local that hide standard or installed ones."""
    if "shadows" in facts.unanswered:
        return skipped("imports", "a folder of PYTHONPATH or ~/.local does not answer")
    if not facts.shadows:
        return Diagnosis("imports", "ok", "nothing in PYTHONPATH or ~/.local hides an installed module")
    folders = list(dict.fromkeys(folder for _, folder in facts.shadows))
    names = [name for name, _ in facts.shadows]
    seen = f"{', '.join(names[:6])}{' …' if len(names) > 6 else ''} from {', '.join(folders)}"
    local = all("/.local/" in folder for folder in folders)
    fix = "export PYTHONNOUSERSITE=1" if local else "unset PYTHONPATH"
    return Diagnosis("imports", "warning", seen, "the installed modules, which these hide", fix)
