"""Which run a process belongs to: equal over the ranks of one run, different between runs; and its published port."""

from pathlib import Path

import pytest

from noether.launch.detect.endpoint import PublishedPort
from noether.launch.detect.identity import RunIdentity, configuration_digest, run_identity

SLURM = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("launcher", "one", "other", "same"),
    [
        pytest.param("slurm", SLURM, SLURM | {"SLURM_PROCID": "3", "SLURM_NODEID": "1"}, True, id="two ranks"),
        pytest.param("slurm", SLURM, SLURM | {"SLURM_STEP_ID": "1"}, False, id="two steps of a job"),
        pytest.param("slurm", SLURM, SLURM | {"SLURM_JOB_ID": "13"}, False, id="two jobs"),
        pytest.param("torchrun", {"TORCHELASTIC_RUN_ID": "a"}, {"TORCHELASTIC_RUN_ID": "b"}, False, id="torchruns"),
        pytest.param("mpi", {"PMIX_NAMESPACE": "a1"}, {"PMIX_NAMESPACE": "a2"}, False, id="two mpiruns"),
        pytest.param("multinode", SLURM, SLURM | {"SLURM_JOB_ID": "13"}, True, id="by hand, from two allocations"),
        pytest.param("multinode", {}, {"HOSTNAME": "b"}, True, id="by hand"),
    ],
)
def test_identities(launcher: str, one: dict[str, str], other: dict[str, str], same: bool) -> None:
    first, second = (run_identity(launcher, 4, 0, environ, "c0ffee") for environ in (one, other))
    assert (first == second) is same
    assert (first.digest == second.digest) is same
    assert RunIdentity.from_text(first.as_text()) == first


def test_ranks_on_different_kinds_of_device_are_of_no_common_run() -> None:
    first, second = (run_identity("slurm", 4, 0, SLURM, "c0ffee", kind) for kind in ("cuda", "cpu"))
    assert first != second
    assert str(second) == "slurm 12.0, 4 ranks, restart 0, configuration c0ffee, on cpu"
    assert RunIdentity.from_text(first.as_text()) == first


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"seed": 1}, False),
        ({"model": {"dim": 64}}, False),
        ({"dataset_root": "/elsewhere"}, True),
        ({"node_rank": 1, "devices": "0", "run_id": "b", "output_path": "x"}, True),
    ],
    ids=str,
)
def test_settings_that_may_differ_between_hosts_are_left_out(change: dict[str, object], same: bool) -> None:
    settings = {"seed": 0, "model": {"dim": 32}, "trainer": {}, "dataset_root": None, "run_id": "a"}
    assert (configuration_digest(settings) == configuration_digest({**settings, **change})) is same


@pytest.mark.parametrize("text", ["[1]", '{"port": 3}'], ids=str)
def test_what_is_no_identity_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="identity of a run"):
        RunIdentity.from_text(text)


def test_a_port_is_published_for_one_run_and_taken_away(tmp_path: Path) -> None:
    own, other = (PublishedPort(tmp_path, RunIdentity("multinode", world)) for world in (2, 4))
    assert own.read() is None
    own.write("n1", 23456)
    assert (own.read(), other.read()) == (("n1", 23456), None)
    other.write("n2", 1)
    own.path.write_text("{")
    assert own.read() is None, "half of it is nothing"
    own.remove()
    other.remove()
    other.remove()
    assert list(tmp_path.iterdir()) == []
