"""What NCCL is told before it starts."""

from pathlib import Path

import pytest

from noether.launch.process_group.group import back_ends, nccl_defaults

FR, OLD = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
TRACE = "/run/logs/nccl-trace-rank-"
ALL = {
    FR: "2000",
    OLD: "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_FR_DUMP_TEMP_FILE": TRACE,
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": TRACE,
}


@pytest.mark.parametrize(
    ("environ", "left_out"),
    [({}, ()), ({OLD: "7"}, (FR, OLD)), ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, ("TORCH_NCCL_DUMP_ON_TIMEOUT",))],
    ids=str,
)
def test_nccl_is_told_only_what_the_user_has_not_said(environ: dict[str, str], left_out: tuple[str, ...]) -> None:
    expected = {name: value for name, value in ALL.items() if name not in left_out}
    assert nccl_defaults(environ, Path("/run/logs")) == expected


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [("cpu", False, "gloo"), ("cpu", True, "gloo"), ("cuda", False, "nccl"), ("cuda", True, "cpu:gloo,cuda:nccl")],
)
def test_gpus_have_no_mesh_of_gloo_unless_it_is_asked_for(kind: str, asked: bool, expected: str) -> None:
    assert back_ends(kind, asked) == expected
