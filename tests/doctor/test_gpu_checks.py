"""What the doctor says of GPUs that are ill, and of fast networks that NCCL would not use: a table of cases."""

from pathlib import Path

import pytest

from noether.doctor.gpu_checks import (
    Fabric,
    GpuHealth,
    check_fabric,
    check_gpu_health,
    probe_fabric,
    read_health,
    read_xids,
)
from noether.doctor.host_facts import HostFacts

WELL = {"ecc": True, "uncorrected": 0, "remap_pending": False, "remap_failed": False, "clock": 1900, "most_clock": 1980}
LOG = """\
[1] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[2] NVRM: Xid (PCI:0000:3b:00): 79, pid=12
[3] NVRM: Xid (PCI:0000:5e:00): 31, pid=77, name=python, Ch 00000008, intr 00000000. MMU Fault
"""

HEALTH: dict[str, tuple[dict, tuple[tuple[str, int], ...] | None, str, str]] = {
    # name: a GPU, the reports of the kernel's log, the level, words of seen or fix
    "well": ({}, (), "ok", "1900 of 1980 MHz"),
    "log-that-may-not-be-read": ({}, None, "ok", "the kernel log cannot be read"),
    "idle-gpu-has-a-low-clock": ({"clock": 345}, (), "ok", "345 of 1980 MHz"),
    "remap-failed": ({"remap_failed": True}, (), "error", "ROW_REMAPPER"),
    "remap-pending": ({"remap_pending": True}, (), "warning", "nvidia-smi --gpu-reset -i 0"),
    "uncorrected-errors": ({"uncorrected": 2}, (), "error", "2 uncorrected memory errors"),
    "ecc-off": ({"ecc": False}, (), "warning", "nvidia-smi -i 0 -e 1"),
    "no-ecc-on-this-card": ({"ecc": None, "uncorrected": None}, (), "ok", "without errors"),
    "hot": ({"slowed_by": ("hardware thermal limit",), "clock": 600}, (), "warning", "limit: 600 of 1980 MHz"),
    "power-brake": ({"slowed_by": ("power brake",)}, (), "warning", "slowed down by power brake"),
    "bridged-card-uses-some-links": ({"links_up": 4, "links_down": 2}, (), "ok", "4 NVLinks up"),
    "card-without-links": ({"links_down": 4}, (), "ok", "without errors"),
    "fell-off-the-bus": ({}, (("0000:3b:00", 79),), "error", "Xid 79: it fell off the bus"),
    "nvlink-failed": ({}, (("0000:3b:00", 74),), "warning", "Xid 74"),
    "a-program-s-own-fault": ({}, (("0000:3b:00", 31),), "ok", "without errors"),
}


@pytest.mark.parametrize(("gpu", "reports", "level", "words"), HEALTH.values(), ids=HEALTH)
def test_health(gpu: dict, reports, level: str, words: str) -> None:
    facts = HostFacts(gpu_health=(GpuHealth(0, **{**WELL, **gpu}),), xids=reports)
    (finding,) = check_gpu_health(facts)
    assert finding.level == level
    assert words in f"{finding.seen} {finding.fix}"


def test_each_ill_gpu_is_named() -> None:
    two = GpuHealth(0, **WELL), GpuHealth(3, **{**WELL, "uncorrected": 1, "ecc": False})
    found = check_gpu_health(HostFacts(gpu_health=two, xids=()))
    assert [finding.level for finding in found] == ["error", "warning"]
    assert all("GPU 3" in finding.seen for finding in found)


def test_links_that_another_gpu_has_are_missed() -> None:
    gpus = GpuHealth(0, **WELL, links_up=18), GpuHealth(1, **WELL, links_up=17, links_down=1)
    (finding,) = check_gpu_health(HostFacts(gpu_health=gpus, xids=()))
    assert (finding.level, finding.seen) == ("warning", "GPU 1: 1 of 18 NVLinks are down")
    assert finding.fix == "nvidia-smi nvlink --status -i 1"


def test_without_gpus_or_an_answer() -> None:
    assert check_gpu_health(HostFacts(gpu_health=()))[0].level == "ok"
    assert check_gpu_health(HostFacts())[0].level == "skipped"


class NotSupported(Exception):
    """Stands for NVML's error."""


class Table:
    """Stands for pynvml and its driver, which is not to be had here: a hot GPU, and one that tells nothing."""

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
            raise AttributeError(name)  # A library of before it had this name.
        return answer


def test_what_a_gpu_does_not_tell_is_none() -> None:
    first, second = read_health(Table())
    assert first == GpuHealth(0, True, 3, True, False, ("hardware thermal limit",), 900, 1980, 17, 1)
    assert second == GpuHealth(1)


def test_the_kernel_s_log_is_read_once_each_to_its_end_or_refused(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(LOG)
    assert read_xids(tmp_path / "kmsg") == (("0000:3b:00", 79), ("0000:5e:00", 31))
    with pytest.raises(OSError, match="No such file"):
        read_xids(tmp_path / "none")


SLINGSHOT = Fabric(("cxi0", "cxi1"), (), True, True, "/opt/lib/libnccl-net.so")
EFA = Fabric((), ("efa_0",), True, False, "/opt/lib/libnccl-net-ofi.so")
FABRICS = {
    "none": (Fabric(), {}, "ok", "no Slingshot"),
    "slingshot": (SLINGSHOT, {}, "ok", "libnccl-net.so"),
    "slingshot-without-libfabric": (Fabric(("cxi0",)), {}, "warning", "no libfabric.so.1, no libcxi.so.1, no NCCL"),
    "slingshot-without-its-provider": (Fabric(("cxi0",), (), True, False, "/a"), {}, "warning", "no libcxi.so.1"),
    "slingshot-without-the-plugin": (Fabric(("cxi0",), (), True, True), {}, "warning", "docs/containers.md"),
    "efa-needs-no-libcxi": (EFA, {}, "ok", "efa_0"),
    "plugin-switched-off": (EFA, {"NCCL_NET_PLUGIN": "none"}, "warning", "unset NCCL_NET_PLUGIN"),
    "tcp-asked-for": (SLINGSHOT, {"NCCL_NET": "Socket"}, "warning", 'export NCCL_NET="AWS Libfabric"'),
}


@pytest.mark.parametrize(("fabric", "environ", "level", "words"), FABRICS.values(), ids=FABRICS)
def test_fabric(fabric: Fabric, environ: dict[str, str], level: str, words: str) -> None:
    finding = check_fabric(HostFacts(fabric=fabric), environ)
    assert finding.level == level
    assert words in f"{finding.seen} {finding.fix}"


@pytest.mark.parametrize(("asked", "file"), [("", "libnccl-net.so"), ("ofi", "libnccl-net-ofi.so")])
def test_devices_and_the_plugin_are_found_where_nccl_looks(asked: str, file: str, tmp_path: Path) -> None:
    for name in ("dev/cxi0", "dev/cxi_other", f"lib/{file}"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "sys" / "efa_0").mkdir(parents=True)
    (tmp_path / "sys" / "mlx5_0").mkdir()
    environ = {"LD_LIBRARY_PATH": f"/nowhere:{tmp_path / 'lib'}", "NCCL_NET_PLUGIN": asked}
    found = probe_fabric(environ, tmp_path / "dev", tmp_path / "sys", loads=lambda name: name == "libfabric.so.1")
    assert found == Fabric(("cxi0",), ("efa_0",), True, False, str(tmp_path / "lib" / file))
