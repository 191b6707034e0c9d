"""Several processes prepare one folder: no case twice, the dead's cases taken over, the result that of one process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import wait_for
from simulated_cases import MAP, write_cases

from noether.common.processes import this_process
from noether.core.data.packed import digest_of
from noether.physics.cases import prepare as claims_module
from noether.physics.cases.prepare import FOLDER, Claims, prepare_cases
from tests.refusal import refusal

CASES = 6
PROGRAM = """
import json, sys
from pathlib import Path
from noether.physics.cases.prepare import prepare_cases
done = prepare_cases(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], "map", workers=1, skip_broken=True)
print(json.dumps({"made": done.made, "others": done.others, "broken": sorted(done.broken)}))
"""


def start(source: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, source, out, MAP], stdout=subprocess.PIPE, text=True)


def content(out: Path) -> dict[str, str]:
    files = [path for path in out.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(out)): digest_of(path) for path in files}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_cases(tmp_path_factory.mktemp("source"), CASES)
    (root / "run_4" / "volume.vtu").unlink()
    return root


@pytest.fixture(scope="module")
def alone(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("alone")
    prepare_cases(source, out, MAP, "map", workers=1, skip_broken=True)
    return content(out)


def test_two_processes_make_each_case_once_and_what_one_would_have_made(source, alone, tmp_path: Path) -> None:
    found = [json.loads(one.communicate(timeout=240)[0]) for one in [start(source, tmp_path) for _ in range(2)]]
    assert sum(one["made"] for one in found) == CASES - 1
    for one in found:
        assert (one["made"] + one["others"], one["broken"]) == (CASES - 1, ["run_4"])
    assert content(tmp_path) == alone


def test_the_cases_of_a_killed_process_are_taken_over(source, alone, tmp_path: Path) -> None:
    killed = start(source, tmp_path)
    wait_for("a claim", lambda: list((tmp_path / FOLDER).glob("*")), 120)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert list((tmp_path / FOLDER).glob("*"))
    prepare_cases(source, tmp_path, MAP, "map", workers=1, skip_broken=True)
    assert content(tmp_path) == alone


def elsewhere(out: Path, **other: str) -> Path:
    (out / FOLDER).mkdir(exist_ok=True)
    claim = out / FOLDER / "run_1-1"
    claim.write_text(json.dumps({"map": "m", **this_process(), "host": "another-host", **other}))
    return claim


def test_a_claim_of_another_host_holds_while_its_time_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "EXPIRED", 0.05)
    claim = elsewhere(tmp_path)
    with Claims(tmp_path, "m") as own:
        for beat in range(4):
            os.utime(claim, (beat, beat))
            assert not own.take("run_1")
            time.sleep(0.06)
        assert own.take("run_1")
        with Claims(tmp_path, "m") as late:
            assert not late.take("run_1")
    assert not list((tmp_path / FOLDER).iterdir())


def test_two_maps_do_not_share_a_folder(tmp_path: Path) -> None:
    elsewhere(tmp_path, map="another")
    with Claims(tmp_path, "m") as own, refusal("store-prepared-by-another-map"):
        own.take("run_1")
