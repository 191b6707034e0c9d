"""What the doctor says of one host: a table of cases for each check."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from noether.common.container import container_engine
from noether.common.cpus import UsableCpus
from noether.config.compose import load_config
from noether.doctor.examine import find_place
from noether.doctor.host_checks import (
    check_cores,
    check_devices,
    check_driver,
    check_folder,
    check_imports,
    check_infiniband,
    check_locked_memory,
    check_shared_memory,
    check_torch,
    check_user,
    check_versions,
)
from noether.doctor.host_facts import (
    Driver,
    Folder,
    HostFacts,
    Infiniband,
    User,
    gather_facts,
    mount_of,
    read_host,
    wanted_folders,
)
from noether.doctor.report import Diagnosis, merged
from noether.launch.detect.driver import Gpu
from noether.launch.detect.limits import Limits

MIB, GIB = 1 << 20, 1 << 30
ACTIVE = Infiniband((("mlx5_0", "ACTIVE"),), ("rdma_cm", "uverbs0"), True)
TWO = (Gpu(0, "GPU-a"), Gpu(1, "GPU-b"))
FOLDER = Folder("triton cache", "/home/a/.triton", "TRITON_CACHE_DIR", True, "ext4", "/dev/sda", 9 * GIB)
OUTPUT = replace(FOLDER, purpose="output", fixed_by="output_path")
CUDA_13 = {"version": "2.13.0", "cuda": "13.0", "nccl": "2.28", "gloo": True}
CUDA_12 = CUDA_13 | {"cuda": "12.6"}
MISMATCH = Driver(error="Driver/library version mismatch", trouble="mismatch")
CPU_ONLY = CUDA_13 | {"cuda": "", "nccl": ""}
LATE = {"error": "no answer within 25 s", "late": True}
USER = User(1000, "ann", "/home/ann", True)


def shm(size: int | None, container: str = "", gpu_ranks: int = 2) -> Diagnosis:
    return check_shared_memory(HostFacts(shared_memory=size, container=container), gpu_ranks)


def cores(cpus: int, environ: dict[str, str], quota: float | None = None, ranks: int = 1) -> Diagnosis:
    return check_cores(HostFacts(cpus=UsableCpus(tuple(range(cpus)), cpus, quota)), environ, ranks, ranks)


def driver(found: Driver | None, torch: dict) -> Diagnosis:
    return check_driver(HostFacts(driver=found), torch)


def devices(
    gpus: tuple[Gpu, ...] | None, count: int, mask: str | None = None, why: str = "", torch: dict = CUDA_13
) -> Diagnosis:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    asked = {"count": count, "names": ["H200"] * count, "why": why}
    return check_devices(HostFacts(driver=Driver("580.65.06", gpus)), torch, asked, environ)


def infiniband(**changed) -> Diagnosis:
    return check_infiniband(HostFacts(infiniband=replace(ACTIVE, **changed)))


def folder(known: Folder, **changed) -> Diagnosis:
    return check_folder(replace(known, **changed))


def user(environ: dict[str, str] | None = None, **changed) -> Diagnosis:
    return check_user(HostFacts(user=replace(USER, **changed)), environ or {})


def shadowed(name: str, by: str) -> Diagnosis:
    return check_imports(HostFacts(shadows=((name, by),)))


CASES: dict[str, tuple[Diagnosis, str, str]] = {
    # name: the finding, its level, words of its seen or fix
    "shm-docker-default": (shm(64 * MIB, "docker"), "error", "docker run --shm-size=8g …      (or --ipc=host)"),
    "shm-docker-default-and-nothing-uses-it": (shm(64 * MIB, "docker", 1), "skipped", "two or more GPUs"),
    "shm-small": (shm(512 * MIB), "warning", "mount -o remount,size=8g /dev/shm"),
    "shm-large": (shm(8 * GIB), "ok", "8 GiB"),
    "infiniband-none": (check_infiniband(HostFacts(infiniband=Infiniband())), "ok", "none here"),
    "infiniband-works": (check_infiniband(HostFacts(infiniband=ACTIVE)), "ok", "mlx5_0 ACTIVE"),
    "infiniband-cable-out": (infiniband(ports=(("mlx5_0", "DOWN"),)), "warning", "mlx5_0 DOWN"),
    "infiniband-not-passed-into-the-container": (
        infiniband(nodes=()),
        "warning",
        "--device /dev/infiniband --cap-add IPC_LOCK",
    ),
    "infiniband-without-its-library": (infiniband(has_verbs=False), "warning", "apt-get install rdma-core"),
    "memlock-small-and-infiniband": (
        check_locked_memory(HostFacts(memlock=8 * MIB, infiniband=ACTIVE)),
        "error",
        "ulimit -l unlimited",
    ),
    "memlock-small-and-nothing-needs-it": (check_locked_memory(HostFacts(memlock=8 * MIB)), "ok", "8 MiB"),
    "memlock-unlimited": (check_locked_memory(HostFacts(memlock=-1, infiniband=ACTIVE)), "ok", "unlimited"),
    "more-threads-than-cores": (cores(2, {"OMP_NUM_THREADS": "8"}), "warning", "unset OMP_NUM_THREADS"),
    "threads-that-are-no-number": (cores(2, {"OMP_NUM_THREADS": "many"}), "warning", "unset OMP_NUM_THREADS"),
    "threads-by-nesting-level": (cores(4, {"OMP_NUM_THREADS": "4,2"}), "ok", "OMP_NUM_THREADS=4"),
    "quota-below-the-cores": (cores(64, {}, 4.0, 2), "ok", "a quota of 4; 2 ranks here, threads of each: 2"),
    "user-known": (user(), "ok", "ann"),
    "user-without-passwd-entry": (user(uid=4711, name=""), "warning", "export USER=uid4711"),
    "user-without-passwd-entry-but-USER": (user({"USER": "a"}, name=""), "ok", ""),
    "home-that-is-not-there": (user(home_exists=False), "warning", "export HOME=/tmp"),
    "user-directory-hangs": (check_user(HostFacts(), {}), "skipped", "directory service"),
    "cache-on-nfs": (
        folder(FOLDER, kind="nfs4", source="filer:/home"),
        "warning",
        "export TRITON_CACHE_DIR=/tmp/cache-$(id -u)",
    ),
    "output-on-nfs-is-fine": (folder(OUTPUT, kind="nfs4"), "ok", "nfs4"),
    "file-system-hangs": (folder(OUTPUT, answered=False), "error", "does not answer"),
    "output-read-only": (folder(OUTPUT, refusal="Read-only file system (/runs)"), "error", "output_path=FOLDER"),
    "cache-read-only": (folder(FOLDER, refusal="Permission denied (/)"), "warning", "TRITON_CACHE_DIR"),
    "disk-nearly-full": (folder(OUTPUT, free=500 * MIB), "warning", "500 MiB free"),
    "disk-full": (folder(OUTPUT, free=3 * MIB), "error", "3 MiB free"),
    "torch-missing": (check_versions(HostFacts(versions={"noether": "1"}), {}), "error", "pip install"),
    "versions": (check_versions(HostFacts(versions={"torch": "2.13"}), CUDA_13), "ok", "CUDA 13.0, NCCL 2.28"),
    "torch-broken": (check_torch({"error": "ImportError: libcudart.so"}), "error", "libcudart.so"),
    "torch-late-on-a-busy-machine": (check_torch(LATE, 7.3, 2), "warning", "the load is 7.3 on 2 cores"),
    "torch-late-on-an-idle-machine": (check_torch(LATE, 0.2, 2), "error", "noether doctor --timeout 300"),
    "torch-without-gloo": (check_torch(CUDA_13 | {"gloo": False}), "error", "without gloo"),
    "torch-works": (check_torch(CUDA_13), "ok", "2.13.0"),
    "driver-too-old-for-cuda-13": (
        driver(Driver("550.54.14", TWO), CUDA_13),
        "error",
        "a torch built for CUDA 12.x, or a newer driver",
    ),
    "driver-at-the-limit-of-cuda-13": (driver(Driver("580.65.06", TWO), CUDA_13), "ok", "580.65.06"),
    "driver-for-cuda-12": (driver(Driver("525.60.13", TWO), CUDA_12), "ok", "CUDA 12.6"),
    "driver-hangs": (driver(None, CUDA_13), "error", "does not answer"),
    "driver-not-passed-into-the-container": (
        driver(Driver(error="Driver Not Loaded", nodes=("nvidia0",)), CUDA_13),
        "error",
        "--gpus all",
    ),
    "cuda-torch-without-a-gpu": (driver(Driver(error="Not Found"), CUDA_13), "warning", "accelerator=cpu"),
    "no-gpu-and-none-wanted": (driver(Driver(error="Not Found"), CPU_ONLY), "ok", "no NVIDIA GPU"),
    "gpu-and-a-torch-for-cpus": (driver(Driver("580.65.06", TWO), CPU_ONLY), "ok", "built without CUDA"),
    "a-torch-for-cpus-sees-no-gpu": (devices(TWO, 0, torch=CPU_ONLY), "skipped", "it is built without CUDA"),
    "driver-of-another-version": (driver(MISMATCH, CUDA_13), "error", "[driver-mismatch]"),
    "devices-agree": (devices(TWO, 2), "ok", "torch sees 2 (H200)"),
    "mask-cut-by-cuda": (devices(TWO, 1, "0,7"), "error", "unset CUDA_VISIBLE_DEVICES"),
    "torch-sees-fewer": (devices(TWO, 1), "error", "the driver lists 2"),
    "a-device-that-fails": (devices(TWO, 2, None, "CUDA error: no kernel image"), "error", "no kernel image"),
    "mask-hides-all": (devices(TWO, 0, "NoDevFiles"), "ok", "NoDevFiles"),
    "mig": (devices((Gpu(0, "GPU-a", ("MIG-1", "MIG-2")),), 1), "ok", "torch sees 1"),
    "no-devices": (devices(None, 0), "ok", "the CPU only"),
    "torch-hangs-on-a-gpu": (
        check_devices(HostFacts(driver=Driver("580", TWO)), CUDA_13, {"error": "no answer within 10 s"}, {}),
        "error",
        "no answer within 10 s",
    ),
    "pythonpath-hides-the-standard-library": (shadowed("random", "/home/a/scripts"), "warning", "unset PYTHONPATH"),
    "user-site-hides-torch": (
        shadowed("torch", "/home/a/.local/lib/python3.11/site-packages"),
        "warning",
        "export PYTHONNOUSERSITE=1",
    ),
    "imports-clean": (check_imports(HostFacts(shadows=())), "ok", "nothing"),
}


@pytest.mark.parametrize(("finding", "level", "words"), CASES.values(), ids=CASES.keys())
def test_what_is_said(finding: Diagnosis, level: str, words: str) -> None:
    assert finding.level == level, finding
    assert words in f"{finding.seen} {finding.fix}"
    if level == "error":
        assert finding.expected or finding.fix


def test_what_a_plan_says_of_this_host_is_found(monkeypatch) -> None:
    monkeypatch.setattr("noether.launch.plan.most_processes", lambda: 12)
    monkeypatch.setattr("noether.launch.plan.shared_memory_size", lambda: 100 * MIB)
    monkeypatch.setattr("noether.launch.detect.resolve.read_limits", lambda: Limits(64, None))
    _, found = find_place(load_config(["accelerator=cpu", "devices=3", "num_workers=1"]), HostFacts(host="box"))
    said = {finding.check: (finding.level, finding.seen) for finding in found if finding.level != "ok"}
    assert {check: level for check, (level, _) in said.items()} == {
        "launch": "warning",
        "processes": "error",
        "loaders": "error",
        "batch": "warning",
    }
    for check, words in (("launch", "open files"), ("loaders", "100 MiB"), ("batch", "3 ranks")):
        assert words in said[check][1]


@pytest.mark.parametrize(
    ("accelerator", "driver", "check", "code"),
    [
        pytest.param("auto", MISMATCH, "launch", "driver-mismatch", id="another-version"),
        pytest.param("auto", Driver(error="no answer", trouble="hangs"), "launch", "driver-hangs", id="hangs"),
        pytest.param(
            "auto", Driver("580.65.06", TWO), "software", "torch-without-cuda", id="gpus-and-a-torch-for-cpus"
        ),
        pytest.param("cpu", Driver("580.65.06", TWO), "", "", id="which-is-no-matter-on-cpus"),
    ],
)
def test_what_train_refuses_of_driver_and_torch_is_found(
    accelerator: str, driver: Driver, check: str, code: str, monkeypatch
) -> None:
    monkeypatch.setattr("noether.training.preflight.runpy.run_path", lambda path: {"__version__": "2.13.0+cpu"})
    _, found = find_place(load_config([f"accelerator={accelerator}"]), HostFacts(host="box", driver=driver))
    errors = [(finding.check, finding.seen) for finding in found if finding.level == "error"]
    assert [one for one, _ in errors] == ([check] if check else [])
    assert all(f"[{code}]" in seen for _, seen in errors)


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda rw
30 22 0:40 / /home rw shared:5 master:1 - nfs4 filer:/export/home rw
31 30 0:41 / /home/with\\040blank rw - lustre 10.0.0.1@o2ib:/scratch rw
32 22 0:42 / /home/ann/local rw - fuse.sshfs me@there: rw
33 22 0:43 / /home/ann/local rw - tmpfs tmpfs rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/var/tmp", "ext4", False),
        ("/home/ann/.cache", "nfs4", True),
        ("/home/with blank/x", "lustre", True),
        ("/home/ann/local/x", "tmpfs", False),
        ("/homes", "ext4", False),
        ("relative", "", False),
    ],
    ids=["root", "nfs-home", "blank-in-the-name", "mounted-over", "same-beginning", "on-no-mount"],
)
def test_the_mount_of_a_path(path: str, kind: str, network: bool) -> None:
    folder = Folder("home", path, "", True, *mount_of(Path(path), MOUNTS))
    assert (folder.kind, folder.on_network) == (kind, network)


def test_findings_of_several_hosts_become_one_and_the_worst_is_first() -> None:
    on = [replace(Diagnosis("user", "ok", "ann"), hosts=(host,), ranks=(rank,)) for rank, host in enumerate("ab")]
    bad = Diagnosis("store", "error", "broken")
    assert merged([*on, bad]) == [bad, replace(on[0], hosts=("a", "b"), ranks=(0, 1))]


def test_the_facts_of_this_host_come_from_a_process_of_their_own(tmp_path: Path) -> None:
    facts, found = read_host(load_config([f"output_path={tmp_path / 'new' / 'runs'}"]), 15.0)
    assert found == []
    assert facts.host == socket.gethostname()
    assert None not in (facts.cpus, facts.driver, facts.shadows, facts.user)
    folder = facts.folders[0]
    assert (folder.purpose, folder.answered, folder.refusal) == ("output", True, "")
    assert folder.free > 0
    assert not (tmp_path / "new").exists()


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    facts = gather_facts([("output", str(tmp_path / "file" / "runs"), "output_path")])
    assert facts.folders[0].refusal


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        ([".dockerenv"], {}, "docker"),
        ([".dockerenv", "run/.containerenv"], {}, "podman"),
        ([], {"APPTAINER_CONTAINER": "/a.sif"}, "apptainer"),
        ([".singularity.d/x"], {}, "apptainer"),
        ([], {}, ""),
    ],
)
def test_container_kinds(files: list[str], environ: dict[str, str], kind: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert container_engine(environ, tmp_path) == kind


def test_caches_are_where_their_variables_say() -> None:
    named = {"HOME": "/h", "TRITON_CACHE_DIR": "/t", "MPLCONFIGDIR": "/m", "USER": "ann"}
    folders = {purpose: path for purpose, path, _ in wanted_folders(Path("/out"), named)}
    assert folders == {
        "output": "/out",
        "data cache": "/h/.cache",
        "triton cache": "/t",
        "inductor cache": "/tmp/torchinductor_ann",
        "CUDA cache": "/h/.nv/ComputeCache",
        "matplotlib cache": "/m",
    }
