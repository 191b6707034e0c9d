"""`srun noether doctor` on a real Slurm: one report for the job, and the broken host is named."""

import json
import re
import sys
import time
from pathlib import Path

import pytest

from slurm.conftest import PATH, Slurm, wait_for

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
    for name in ("names", "peers", "agreement", "host names", "clocks", "store", "gloo", "bandwidth"):
        assert found[name]["level"] == "ok", found[name]
    assert "through eth0" in found["gloo"]["seen"], "between hosts, and not over the loopback"
    assert len(found["torch"]["hosts"]) == 2
    assert re.search(r"at \d+ MB/s .* in \d+ µs", found["bandwidth"]["seen"])


@pytest.mark.nightly
def test_an_unplugged_host_is_named(slurm: Slurm, cache, tmp_path) -> None:
    command = " ".join([*DOCTOR, f"output_path={tmp_path}", "--timeout=20"])
    (tmp_path / "rank.sh").write_text(
        f"at() {{ echo {tmp_path}/$1.$SLURM_PROCID; }}; touch $(at here)\n"
        f"until [ -e {tmp_path}/go ]; do sleep 0.1; done\n"
        f"{command} >$(at report) 2>$(at words); echo $? >$(at code)\n"
    )
    job = slurm.submit(
        f"srun --no-kill sh {tmp_path}/rank.sh",
        "-N2",
        "--ntasks-per-node=1",
        "--nodelist=n1,n2",
        "--no-kill",
        "--no-requeue",
        "-t5",
        **variables(cache),
    )
    wait_for("both ranks", lambda: (tmp_path / "here.0").exists() and (tmp_path / "here.1").exists())
    slurm.unplug("n2")
    try:
        started = time.monotonic()
        (tmp_path / "go").touch()
        for rank in (0, 1):
            code = tmp_path / f"code.{rank}"
            wait_for(f"rank {rank}", code.exists, LIMIT_S, explain=lambda: slurm.output(job))
        assert time.monotonic() - started < LIMIT_S
        found = by_check(json.loads((tmp_path / "report.0").read_text()))
        assert (tmp_path / "code.0").read_text() == "1\n"
        assert "rank 1 did not connect" in found["peers"]["seen"]
        assert "none from n2" in found["peers"]["seen"]
        assert found["gloo"]["seen"] == "not every rank connected"
        said = (tmp_path / "words.1").read_text()
        assert "noether doctor on n2, which could not report to rank 0" in said
        assert "no answer at all" in said or "No route to host" in said
    finally:
        slurm.plug("n2")
        slurm.on("login", "scancel", str(job))
        wait_for("n2 works again", lambda: slurm.node_state("n2") in ("idle", "mixed", "allocated"), 60)


@pytest.mark.nightly
def test_a_master_whose_name_does_not_resolve(slurm: Slurm, cache, tmp_path) -> None:
    words = (*DOCTOR, f"output_path={tmp_path}", "--timeout=20", "master_addr=n99")
    done = slurm.srun("-N2", "--ntasks-per-node=1", *words, limit_s=LIMIT_S + 30, **variables(cache))
    assert done.returncode == 1
    found = by_check(json.loads(done.stdout))
    assert "n99 does not resolve" in found["names"]["seen"]
    assert found["store"]["seen"] == "the ranks have not met"
    assert done.stderr.count("could not report to rank 0") == 1
    assert "the master's name n99 does not resolve on n2" in done.stderr
