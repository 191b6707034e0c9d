"""What every launcher and every rank imports before it does anything: nothing that only a few runs need."""

import subprocess
import sys

import pytest
from conftest import REPOSITORY


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        pytest.param("noether.training.start", ["torch", "scipy", "matplotlib"], id="the launcher"),
        # SciPy was half of what a rank imported after the fork server's torch: 0.5 s of a processor, for each rank.
        pytest.param("noether.training.train", ["scipy", "matplotlib"], id="a rank"),
    ],
)
def test_what_is_not_imported_at_the_start(module: str, unwanted: list[str]) -> None:
    code = f"import sys; import {module}; print(sorted(set({unwanted}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"
