"""The doctor's findings about a host, its GPUs and networks, several hosts, and the connection of their ranks."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from processes import lay

from noether.common.container import container_engine
from noether.common.cpus import UsableCpus
from noether.config.compose import load_config
from noether.doctor import gpu_checks, host_facts
from noether.doctor import host_checks as host
from noether.doctor.examine import find_place
from noether.doctor.gpu_checks import Fabric, GpuHealth
from noether.doctor.host_facts import Driver, Folder, HostFacts, Infiniband, User
from noether.doctor.report import Diagnosis, merged
from noether.doctor.world_checks import check_agreement, check_bandwidth, check_chain, check_names, check_presence
from noether.launch.detect.driver import Gpu

MIB, GIB = 1 << 20, 1 << 30
ACTIVE = Infiniband((("mlx5_0", "ACTIVE"),), ("rdma_cm", "uverbs0"), True)
TWO = (Gpu(0, "GPU-a"), Gpu(1, "GPU-b"))
FOLDER = Folder("triton cache", "/home/a/.triton", "TRITON_CACHE_DIR", True, "ext4", "/dev/sda", 9 * GIB)
OUTPUT = replace(FOLDER, purpose="output", fixed_by="output_path")
CUDA_13 = {"version": "2.13.0", "cuda": "13.0", "nccl": "2.28", "gloo": True}
CUDA_12 = CUDA_13 | {"cuda": "12.6"}
OLD = Driver("550.54.14", TWO)
NOT_LOADED = Driver(error="Driver Not Loaded", nodes=("nvidia0",))
HOST_OF_TWO = HostFacts(driver=Driver("580", TWO))
USER_SITE = "/home/a/.local/lib/python3.11/site-packages"
MISMATCH = Driver(error="Driver/library version mismatch", trouble="mismatch")
CPU_ONLY = CUDA_13 | {"cuda": "", "nccl": ""}
LATE = {"error": "no answer within 25 s", "late": True}
WELL = {"ecc": True, "uncorrected": 0, "remap_pending": False, "remap_failed": False, "clock": 1900, "most_clock": 1980}
LINKED = GpuHealth(0, **WELL, links_up=18), GpuHealth(1, **WELL, links_up=17, links_down=1)
DOWN = "GPU 1: 1 of 18 NVLinks are down"
LOG = """\
[1] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[2] NVRM: Xid (PCI:0000:3b:00): 79, pid=12
[3] NVRM: Xid (PCI:0000:5e:00): 31, pid=77, name=python, Ch 00000008, intr 00000000. MMU Fault
"""
SLINGSHOT = Fabric(("cxi0", "cxi1"), (), True, True, "/opt/lib/libnccl-net.so")
EFA = Fabric((), ("efa_0",), True, False, "/opt/lib/libnccl-net-ofi.so")
SAME = {"noether": "1", "torch": "2.13", "python": "3.11", "devices": "cpu"}
FAST = {"backend": "gloo", "large_bytes": 16 << 20, "mb_per_s": 1000.0, "bus_mb_per_s": 1000.0, "small_us": 90.0}
SLOW = FAST | {"bus_mb_per_s": 11.0}
NODE_LATE = "ranks 2, 3 did not connect within 18 s (none from n2); ranks 0, 1 on n1 did"
RANK_LATE = "rank 1 did not connect within 18 s (other ranks of their hosts did)"
USER = User(1000, "ann", "/home/ann", True)


def shm(size: int | None, container: str = "", gpu_ranks: int = 2) -> Diagnosis:
    return host.check_shared_memory(HostFacts(shared_memory=size, container=container), gpu_ranks)


def cores(cpus: int, environ: dict[str, str], quota: float | None = None, ranks: int = 1) -> Diagnosis:
    return host.check_cores(HostFacts(cpus=UsableCpus(tuple(range(cpus)), cpus, quota)), environ, ranks, ranks)


def driver(found: Driver | None, torch: dict) -> Diagnosis:
    return host.check_driver(HostFacts(driver=found), torch)


def devices(gpus: tuple[Gpu, ...] | None, count: int, mask: str | None = None, why="", torch=CUDA_13) -> Diagnosis:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    asked = {"count": count, "names": ["H200"] * count, "why": why}
    return host.check_devices(HostFacts(driver=Driver("580.65.06", gpus)), torch, asked, environ)


def infiniband(**changed) -> Diagnosis:
    return host.check_infiniband(HostFacts(infiniband=replace(ACTIVE, **changed)))


def memlock(limit: int, network: Infiniband | None = None) -> Diagnosis:
    return host.check_locked_memory(HostFacts(memlock=limit, infiniband=network))


def folder(known: Folder, **changed) -> Diagnosis:
    return host.check_folder(replace(known, **changed))


def user(environ: dict[str, str] | None = None, **changed) -> Diagnosis:
    return host.check_user(HostFacts(user=replace(USER, **changed)), environ or {})


def shadowed(name: str, by: str) -> Diagnosis:
    return host.check_imports(HostFacts(shadows=((name, by),)))


def present(count: int, came: dict[int, tuple[str, list[int]]]) -> Diagnosis:
    return check_presence(count, ("n1", "n2")[: count // 2], came, 18)


def fabric(found: Fabric, **environ: str) -> Diagnosis:
    return gpu_checks.check_fabric(HostFacts(fabric=found), environ)


def gpu(reports: tuple[tuple[str, int], ...] | None = (), **changed) -> Diagnosis:
    """Return the finding about a GPU with changed health values; `reports` is the kernel's log."""
    return gpus(GpuHealth(0, **{**WELL, **changed}), reports=reports)


def gpus(*found: GpuHealth, reports: tuple[tuple[str, int], ...] | None = ()) -> Diagnosis:
    (finding,) = gpu_checks.check_gpu_health(HostFacts(gpu_health=found, xids=reports))
    return finding


CASES: dict[str, tuple[Diagnosis, str, str]] = {
    # name: the finding, its level, words that its `seen` or `fix` must contain
    "shm-docker-default": (shm(64 * MIB, "docker"), "error", "docker run --shm-size=8g …      (or --ipc=host)"),
    "shm-docker-default-and-nothing-uses-it": (shm(64 * MIB, "docker", 1), "skipped", "two or more GPUs"),
    "shm-small": (shm(512 * MIB), "warning", "mount -o remount,size=8g /dev/shm"),
    "shm-large": (shm(8 * GIB), "ok", "8 GiB"),
    "infiniband-none": (host.check_infiniband(HostFacts(infiniband=Infiniband())), "ok", "none here"),
    "infiniband-works": (host.check_infiniband(HostFacts(infiniband=ACTIVE)), "ok", "mlx5_0 ACTIVE"),
    "infiniband-cable-out": (infiniband(ports=(("mlx5_0", "DOWN"),)), "warning", "mlx5_0 DOWN"),
    "infiniband-not-in-the-container": (infiniband(nodes=()), "warning", "--device /dev/infiniband --cap-add IPC_LOCK"),
    "infiniband-without-its-library": (infiniband(has_verbs=False), "warning", "apt-get install rdma-core"),
    "memlock-small-and-infiniband": (memlock(8 * MIB, ACTIVE), "error", "ulimit -l unlimited"),
    "memlock-small-and-nothing-needs-it": (memlock(8 * MIB), "ok", "8 MiB"),
    "memlock-unlimited": (memlock(-1, ACTIVE), "ok", "unlimited"),
    "more-threads-than-cores": (cores(2, {"OMP_NUM_THREADS": "8"}), "warning", "unset OMP_NUM_THREADS"),
    "threads-that-are-no-number": (cores(2, {"OMP_NUM_THREADS": "many"}), "error", "unset OMP_NUM_THREADS"),
    "threads-by-nesting-level": (cores(4, {"OMP_NUM_THREADS": "4,2"}), "ok", "OMP_NUM_THREADS=4"),
    "quota-below-the-cores": (cores(64, {}, 4.0, 2), "ok", "a quota of 4; 2 ranks here, threads of each: 2"),
    "user-known": (user(), "ok", "ann"),
    "user-without-passwd-entry": (user(uid=4711, name=""), "warning", "export USER=uid4711"),
    "user-without-passwd-entry-but-USER": (user({"USER": "a"}, name=""), "ok", ""),
    "home-that-is-not-there": (user(home_exists=False), "warning", "export HOME=/tmp"),
    "user-directory-hangs": (host.check_user(HostFacts(), {}), "skipped", "directory service"),
    "cache-on-nfs": (folder(FOLDER, kind="nfs4"), "warning", "export TRITON_CACHE_DIR=/tmp/cache-$(id -u)"),
    "output-on-nfs-is-fine": (folder(OUTPUT, kind="nfs4"), "ok", "nfs4"),
    "file-system-hangs": (folder(OUTPUT, answered=False), "error", "does not answer"),
    "output-read-only": (folder(OUTPUT, refusal="Read-only file system (/runs)"), "error", "output_path=FOLDER"),
    "cache-read-only": (folder(FOLDER, refusal="Permission denied (/)"), "warning", "TRITON_CACHE_DIR"),
    "disk-nearly-full": (folder(OUTPUT, free=500 * MIB), "warning", "500 MiB free"),
    "disk-full": (folder(OUTPUT, free=3 * MIB), "error", "3 MiB free"),
    "torch-missing": (host.check_versions(HostFacts(versions={"noether": "1"}), {}), "error", "pip install"),
    "versions": (host.check_versions(HostFacts(versions={"torch": "2.13"}), CUDA_13), "ok", "CUDA 13.0, NCCL 2.28"),
    "torch-broken": (host.check_torch({"error": "ImportError: libcudart.so"}), "error", "libcudart.so"),
    "torch-late-on-a-busy-machine": (host.check_torch(LATE, 7.3, 2), "warning", "the load is 7.3 on 2 cores"),
    "torch-late-on-an-idle-machine": (host.check_torch(LATE, 0.2, 2), "error", "noether doctor --timeout 300"),
    "torch-without-gloo": (host.check_torch(CUDA_13 | {"gloo": False}), "error", "without gloo"),
    "torch-works": (host.check_torch(CUDA_13), "ok", "2.13.0"),
    "driver-too-old": (driver(OLD, CUDA_13), "error", "a torch built for CUDA 12.x, or a newer driver"),
    "driver-at-the-limit-of-cuda-13": (driver(Driver("580.65.06", TWO), CUDA_13), "ok", "580.65.06"),
    "driver-for-cuda-12": (driver(Driver("525.60.13", TWO), CUDA_12), "ok", "CUDA 12.6"),
    "driver-hangs": (driver(None, CUDA_13), "error", "does not answer"),
    "driver-not-in-the-container": (driver(NOT_LOADED, CUDA_13), "error", "--gpus all"),
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
    "torch-hangs-on-a-gpu": (host.check_devices(HOST_OF_TWO, CUDA_13, {"error": "late"}, {}), "error", "late"),
    "pythonpath-hides-the-standard-library": (shadowed("random", "/home/a/scripts"), "warning", "unset PYTHONPATH"),
    "user-site-hides-torch": (shadowed("torch", USER_SITE), "warning", "export PYTHONNOUSERSITE=1"),
    "imports-clean": (host.check_imports(HostFacts(shadows=())), "ok", "nothing"),
    "all-came": (present(4, {0: ("n1", [0, 1]), 1: ("n2", [2, 3])}), "ok", "all 4 ranks, on n1, n2"),
    "a-node-is-missing": (present(4, {0: ("n1", [0, 1])}), "error", NODE_LATE),
    "one-rank-of-a-host-is-missing": (present(2, {0: ("n1", [0])}), "error", RANK_LATE),
    "alike": (check_agreement({"n1": SAME, "n2": SAME}), "ok", "same"),
    "another-torch": (check_agreement({"n1": SAME, "n2": SAME | {"torch": "2.12"}}), "error", "torch 2.12 on n2"),
    "other-devices": (check_agreement({"n1": SAME, "n2": SAME | {"devices": "cuda"}}), "error", "accelerator=cpu"),
    "another-python": (check_agreement({"n1": SAME, "n2": SAME | {"python": "3.12"}}), "warning", "python 3.12 on n2"),
    "an-image-on-one-host": (check_agreement({"n1": SAME | {"image": "a"}, "n2": SAME}), "warning", "image none on n2"),
    "two-machines-with-one-name": (check_names({0: ("node", "a"), 1: ("node", "b")}), "error", "nodes 0, 1"),
    "two-names-on-one-machine": (check_names({0: ("n1", "a"), 1: ("n2", "a")}), "ok", "2 host names"),
    "network-fast": (check_bandwidth([FAST], 2), "ok", "bus 1000 MB/s"),
    "network-slow": (check_bandwidth([FAST, SLOW], 2), "warning", "export GLOO_SOCKET_IFNAME=INTERFACE"),
    "slow-but-on-one-host": (check_bandwidth([SLOW], 1), "ok", "11 MB/s"),
    "well": (gpu(), "ok", "1900 of 1980 MHz"),
    "log-that-may-not-be-read": (gpu(None), "ok", "the kernel log cannot be read"),
    "idle-gpu-has-a-low-clock": (gpu(clock=345), "ok", "345 of 1980 MHz"),
    "remap-failed": (gpu(remap_failed=True), "error", "ROW_REMAPPER"),
    "remap-pending": (gpu(remap_pending=True), "warning", "nvidia-smi --gpu-reset -i 0"),
    "uncorrected-errors": (gpu(uncorrected=2), "error", "2 uncorrected memory errors"),
    "ecc-off": (gpu(ecc=False), "warning", "nvidia-smi -i 0 -e 1"),
    "no-ecc-on-this-card": (gpu(ecc=None, uncorrected=None), "ok", "without errors"),
    "hot": (gpu(slowed_by=("hardware thermal limit",), clock=600), "warning", "limit: 600 of 1980 MHz"),
    "power-brake": (gpu(slowed_by=("power brake",)), "warning", "slowed down by power brake"),
    "no-gpu-to-be-ill": (gpus(), "ok", ""),
    "gpus-that-did-not-answer": (gpu_checks.check_gpu_health(HostFacts())[0], "skipped", ""),
    "links-that-another-gpu-has": (gpus(*LINKED), "warning", f"{DOWN} nvidia-smi nvlink --status -i 1"),
    "bridged-card-uses-some-links": (gpu(links_up=4, links_down=2), "ok", "4 NVLinks up"),
    "card-without-links": (gpu(links_down=4), "ok", "without errors"),
    "fell-off-the-bus": (gpu((("0000:3b:00", 79),)), "error", "Xid 79: it fell off the bus"),
    "nvlink-failed": (gpu((("0000:3b:00", 74),)), "warning", "Xid 74"),
    "a-program-s-own-fault": (gpu((("0000:3b:00", 31),)), "ok", "without errors"),
    "fabric-none": (fabric(Fabric()), "ok", "no Slingshot"),
    "fabric-slingshot": (fabric(SLINGSHOT), "ok", "libnccl-net.so"),
    "fabric-without-libfabric": (fabric(Fabric(("cxi0",))), "warning", "no libfabric.so.1, no libcxi.so.1, no NCCL"),
    "fabric-without-its-provider": (fabric(Fabric(("cxi0",), (), True, False, "/a")), "warning", "no libcxi.so.1"),
    "fabric-slingshot-without-the-plugin": (fabric(Fabric(("cxi0",), (), True, True)), "warning", "docs/containers.md"),
    "fabric-efa-needs-no-libcxi": (fabric(EFA), "ok", "efa_0"),
    "fabric-plugin-switched-off": (fabric(EFA, **{"NCCL_NET_PLUGIN": "none"}), "warning", "unset NCCL_NET_PLUGIN"),
    "fabric-tcp-asked-for": (fabric(SLINGSHOT, **{"NCCL_NET": "Socket"}), "warning", 'export NCCL_NET="AWS Libfabric"'),
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
    monkeypatch.setattr("noether.launch.detect.resolve.read_limits", lambda: [64, None])
    _, found = find_place(load_config(["accelerator=cpu", "devices=3", "num_workers=1"]), HostFacts(host="box"))
    said = {finding.check: (finding.level, finding.seen) for finding in found if finding.level != "ok"}
    levels = {check: level for check, (level, _) in said.items()}
    assert levels == {"launch": "warning", "processes": "error", "loaders": "error", "batch": "warning"}
    for check, words in (("launch", "open files"), ("loaders", "100 MiB"), ("batch", "3 ranks")):
        assert words in said[check][1]


REFUSED = {
    "another-version": ("auto", MISMATCH, "launch", "driver-mismatch"),
    "hangs": ("auto", Driver(error="no answer", trouble="hangs"), "launch", "driver-hangs"),
    "gpus-and-a-torch-for-cpus": ("auto", Driver("580.65.06", TWO), "software", "torch-without-cuda"),
    "which-is-no-matter-on-cpus": ("cpu", Driver("580.65.06", TWO), "", ""),
}


@pytest.mark.parametrize(("accelerator", "driver", "check", "code"), REFUSED.values(), ids=REFUSED)
def test_what_train_refuses_is_found(accelerator: str, driver: Driver, check: str, code: str, monkeypatch) -> None:
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
    folder = Folder("home", path, "", True, *host_facts.mount_of(Path(path), MOUNTS))
    assert (folder.kind, folder.on_network) == (kind, network)


def test_findings_of_several_hosts_become_one_and_the_worst_is_first() -> None:
    on = [replace(Diagnosis("user", "ok", "ann"), hosts=(host,), ranks=(rank,)) for rank, host in enumerate("ab")]
    bad = Diagnosis("store", "error", "broken")
    assert merged([*on, bad]) == [bad, replace(on[0], hosts=("a", "b"), ranks=(0, 1))]


def test_the_facts_of_this_host_come_from_a_process_of_their_own(tmp_path: Path) -> None:
    facts, found = host_facts.read_host(load_config([f"output_path={tmp_path / 'new' / 'runs'}"]), 15.0)
    assert found == []
    assert facts.host == socket.gethostname()
    assert None not in (facts.cpus, facts.driver, facts.shadows, facts.user)
    folder = facts.folders[0]
    assert (folder.purpose, folder.answered, folder.refusal) == ("output", True, "")
    assert folder.free > 0
    assert not (tmp_path / "new").exists()


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    facts = host_facts.gather_facts([("output", str(tmp_path / "file" / "runs"), "output_path")])
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
    lay(tmp_path, dict.fromkeys(files, ""))
    assert container_engine(environ, tmp_path) == kind


def test_caches_are_where_their_variables_say() -> None:
    named = {"HOME": "/h", "TRITON_CACHE_DIR": "/t", "MPLCONFIGDIR": "/m", "USER": "ann"}
    folders = {purpose: path for purpose, path, _ in host_facts.wanted_folders(Path("/out"), named)}
    assert folders == {
        "output": "/out",
        "data cache": "/h/.cache",
        "triton cache": "/t",
        "inductor cache": "/tmp/torchinductor_ann",
        "CUDA cache": "/h/.nv/ComputeCache",
        "matplotlib cache": "/m",
    }


STEPS = ("store", "gloo", "nccl", "bandwidth")


def chain(broken: str = "", how: dict[int, str] | None = None, gpus: int = 0, silent: int = -1) -> dict[str, Diagnosis]:
    """Return the findings for three ranks. The ranks in `how` fail at step `broken`; rank `silent` never answers."""
    told = []
    for rank in range(3):
        done = STEPS[: STEPS.index(broken)] if broken and rank in (how or {}) else STEPS
        error = (how or {}).get(rank, "")
        why = {"error": error, "follows": "timed-out" if error.startswith("no answer") else ""}
        steps = {step: FAST if step == "bandwidth" else {"interface": "eth0"} for step in done}
        if rank != silent:
            told.append({"rank": rank, "device": "cuda" if rank < gpus else "cpu", **why, **steps})
    found = check_chain(told, 3, "10.0.0.1:20000", 2)
    assert [finding.check for finding in found] == list(STEPS)
    return {finding.check: finding for finding in found}


def test_a_whole_chain() -> None:
    found = chain(gpus=3)
    assert {name: finding.level for name, finding in found.items()} == dict.fromkeys(STEPS, "ok")
    assert found["gloo"].seen == "a sum over 3 ranks, through eth0"
    assert chain()["nccl"].seen == "no rank has a CUDA device"


@pytest.mark.parametrize("broken", ["store", "gloo", "nccl"])
def test_what_lies_behind_a_broken_link_is_skipped_with_the_reason(broken: str) -> None:
    found = chain(broken, {0: "no answer within 8 s", 2: "refused", 1: "no answer within 8 s"}, 3)
    assert found[broken].level == "error"
    # The rank that caused the failure comes first, before those that waited for it.
    assert found[broken].seen == "rank 2: refused; ranks 0, 1: no answer within 8 s"
    assert found["bandwidth"].seen == f"{broken} failed"
    assert found["bandwidth"].level == "skipped"


def test_a_rank_that_says_nothing_breaks_a_link() -> None:
    found = chain(silent=1)["store"]
    assert (found.level, found.ranks, found.seen) == ("error", (1,), "rank 1: stopped answering")


def test_each_ill_gpu_is_named() -> None:
    two = GpuHealth(0, **WELL), GpuHealth(3, **{**WELL, "uncorrected": 1, "ecc": False})
    found = gpu_checks.check_gpu_health(HostFacts(gpu_health=two, xids=()))
    assert [finding.level for finding in found] == ["error", "warning"]
    assert all("GPU 3" in finding.seen for finding in found)


class NotSupported(Exception):
    """NVML's error for an unsupported query."""


class Table:
    """A fake of pynvml with two GPUs: the first is hot, and the second supports no query."""

    NVMLError = NotSupported

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: int) -> int:
        return 0x44 if gpu == 0 else 0x01

    def __getattr__(self, name: str):
        answers = {
            "nvmlDeviceGetEccMode": (1, 1),
            "nvmlDeviceGetTotalEccErrors": 3,
            "nvmlDeviceGetRemappedRows": (2, 0, True, False),
            "nvmlDeviceGetClockInfo": 900,
            "nvmlDeviceGetMaxClockInfo": 1980,
        }

        def answer(gpu: int, *arguments: int):
            if name == "nvmlDeviceGetNvLinkState" and gpu == 0:
                return int(arguments[0] > 0)
            if gpu == 0 and name in answers:
                return answers[name]
            raise NotSupported(name)

        if name == "nvmlDeviceGetCurrentClocksEventReasons":
            raise AttributeError(name)  # As in an older library, which lacks some names.
        return answer


def test_what_a_gpu_does_not_tell_is_none() -> None:
    first, second = gpu_checks.read_health(Table())
    assert first == GpuHealth(0, True, 3, True, False, ("hardware thermal limit",), 900, 1980, 17, 1)
    assert second == GpuHealth(1)


def test_the_kernel_s_log_is_read_once_each_to_its_end_or_refused(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(LOG)
    assert gpu_checks.read_xids(tmp_path / "kmsg") == (("0000:3b:00", 79), ("0000:5e:00", 31))
    with pytest.raises(OSError, match="No such file"):
        gpu_checks.read_xids(tmp_path / "none")


@pytest.mark.parametrize(("asked", "file"), [("", "libnccl-net.so"), ("ofi", "libnccl-net-ofi.so")])
def test_devices_and_the_plugin_are_found_where_nccl_looks(asked: str, file: str, tmp_path: Path) -> None:
    lay(tmp_path, dict.fromkeys(("dev/cxi0", "dev/cxi_other", f"lib/{file}"), ""))
    (tmp_path / "sys" / "efa_0").mkdir(parents=True)
    (tmp_path / "sys" / "mlx5_0").mkdir()
    environ = {"LD_LIBRARY_PATH": f"/nowhere:{tmp_path / 'lib'}", "NCCL_NET_PLUGIN": asked}
    loads = "libfabric.so.1".__eq__
    found = gpu_checks.probe_fabric(environ, tmp_path / "dev", tmp_path / "sys", loads=loads)
    assert found == Fabric(("cxi0",), ("efa_0",), True, False, str(tmp_path / "lib" / file))
