"""`srun noether doctor` on a real Slurm: one report for the job, and the broken host is named."""

import json
import re
import sys
from pathlib import Path

import pytest

from launch.slurm.conftest import PATH, Slurm

DOCTOR = (sys.executable, "-m", "noether", "doctor", "--json", "accelerator=cpu")
LIMIT_S = 60


def variables(cache: Path) -> dict[str, str]:
    return {"PATH": PATH, "XDG_CACHE_HOME": str(cache), "HOME": "/root", "OMP_NUM_THREADS": "1"}


def by_check(report: dict) -> dict[str, dict]:
    return {finding["check"]: finding for finding in reversed(report["findings"])}


@pytest.mark.slow
def test_a_job_of_two_hosts_has_one_report(slurm: Slurm, cache, tmp_path) -> None:
    done = slurm.srun(
        "-N2", "--ntasks-per-node=2", *DOCTOR, f"output_path={tmp_path}", limit_s=LIMIT_S + 30, **variables(cache)
    )
    report = json.loads(done.stdout)
    found = by_check(report)
    assert done.returncode == 0, [finding for finding in report["findings"] if finding["level"] != "ok"]
    assert (report["launcher"], report["world_size"]) == ("slurm", 4)
    assert [host["ranks"] for host in report["hosts"]] == [[0, 1], [2, 3]]
    for name in ("names", "peers", "agreement", "host names", "store", "gloo", "bandwidth"):
        assert found[name]["level"] == "ok", found[name]
    assert "through eth0" in found["gloo"]["seen"], "between hosts, and not over the loopback"
    assert len(found["torch"]["hosts"]) == 2
    assert re.search(r"at \d+ MB/s .* in \d+ µs", found["bandwidth"]["seen"])
