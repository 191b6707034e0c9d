"""Every command of docs/doctor.md does what it says."""

import shlex

import pytest
from conftest import REPOSITORY
from test_readme import commands

PAGE = REPOSITORY / "docs" / "doctor.md"


@pytest.mark.slow
@pytest.mark.parametrize("line", commands(PAGE, "noether"))
def test_the_documented_commands_run(line: str, noether, tmp_path) -> None:
    (tmp_path / "my.yaml").write_text("defaults: [/train, _self_]\nseed: 3\n")
    done = noether(*shlex.split(line)[1:], cwd=tmp_path, timeout=60, PYTHONPATH=str(REPOSITORY))
    assert done.code == 0, done.out + done.err
    assert "bandwidth" in done.out


def test_all_commands_of_the_page_are_found() -> None:
    assert len(commands(PAGE, "noether")) == 3
