"""A flipped bit in a data file is seen at the next start, before it trains other weights."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from packed_files import write_packed

from noether.common.errors import RequestError
from noether.core.data import packed
from noether.core.data.packed import check_digest, digest_path
from noether.physics.cars import ellipsoid
from noether.physics.settings import EllipsoidDatasetConfig
from tests.refusal import refusal

CARS = EllipsoidDatasetConfig(train_shapes=2, test_shapes=2, surface_points=8, volume_points=8, seed=3)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def test_one_flipped_bit_is_refused_with_a_fix_that_works(tmp_path) -> None:
    ellipsoid.prepare(tmp_path, CARS)
    ellipsoid.prepare(tmp_path, CARS)
    flip(path := tmp_path / "train.safetensors")
    with pytest.raises(RequestError) as caught:
        ellipsoid.prepare(tmp_path, CARS)
    assert caught.value.summary == f"{path} is damaged"
    assert caught.value.fix.startswith(f"rm {path} {digest_path(path)} ")
    path.unlink()
    digest_path(path).unlink()
    ellipsoid.prepare(tmp_path, CARS)
    flip(path)
    with refusal("packed-data-damaged"):
        ellipsoid.check_folder(tmp_path)


@pytest.mark.parametrize("kind", ["ellipsoid", "cache"])
def test_a_file_without_a_digest_is_refused_with_a_fix_that_works(kind: str, tmp_path) -> None:
    def check() -> None:
        ellipsoid.check_folder(tmp_path) if kind == "ellipsoid" else ellipsoid.prepare(tmp_path, CARS)

    ellipsoid.prepare(tmp_path, CARS)
    digest_path(tmp_path / "train.safetensors").unlink()
    os.mkfifo(digest_path(tmp_path / "train.safetensors"))  # Is not waited for.
    with refusal("packed-data-unverified"):
        check()
    digest_path(tmp_path / "train.safetensors").unlink()
    with refusal("packed-data-unverified") as caught:
        check()
    subprocess.run(caught.value.fix.partition("      ")[0], shell=True, check=True)
    check()
    flip(tmp_path / "train.safetensors")
    with refusal("packed-data-damaged"):
        check()


def test_a_file_has_its_digest_before_it_has_its_name(tmp_path, monkeypatch) -> None:
    """A kill between the two leaves a file that is made again, not one that nobody can verify."""

    path, replace = tmp_path / "x.safetensors", os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(target) == path:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(packed.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_packed(path, {"a": np.zeros((2, 2), np.float32)})
    assert digest_path(path).exists()
    assert not path.exists()


def test_a_file_that_is_written_again_has_a_new_digest(tmp_path) -> None:
    for value in (1.0, 2.0):
        write_packed(path := tmp_path / "x.safetensors", {"a": np.full((2, 2), value, np.float32)})
        check_digest(path)
