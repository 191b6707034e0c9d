"""The facts that a run records about the program, the image and the machine."""

import ast
import compileall
import json
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from conftest import REPOSITORY
from packaging.requirements import Requirement

from noether.runs.provenance import describe_environment, driver_version, image_record, nccl_version, provenance

LOCK = REPOSITORY / "constraints.txt"


def test_outside_of_an_image() -> None:
    found = provenance()
    assert found["lock_sha256"] == sha256(LOCK.read_bytes()).hexdigest()
    assert found["packages"]["torch"].startswith("2.")
    assert f"fire=={found['packages']['fire']}" in LOCK.read_text().splitlines()
    assert json.loads(json.dumps(found)) == found
    assert describe_environment().items() >= found.items()


def test_an_image_says_what_it_is(tmp_path, monkeypatch) -> None:
    record, labels = tmp_path / "image.json", tmp_path / "labels.json"
    assert image_record(record, labels, None) is None
    record.write_text('{"flavour": "cpu", "git_revision": "abc", "lock_sha256": "def"}')
    assert image_record(record, labels, None)["digest"] is None
    labels.write_text('{"noether.image": "unknown"}')
    assert image_record(record, labels, None)["digest"] is None
    labels.write_text('{"noether.image": "sha256:1"}')
    assert image_record(record, labels, "/a.sif").items() >= {"digest": "sha256:1", "sif": "/a.sif"}.items()
    monkeypatch.setenv("NOETHER_IMAGE_DIGEST", "sha256:2")
    assert image_record(record, labels, None)["digest"] == "sha256:2"


DRIVERS = {
    "proprietary": ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Tue Apr\nGCC 12\n", "535.161.08"),
    "open": ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
}


@pytest.mark.parametrize(("text", "version"), DRIVERS.values(), ids=DRIVERS.keys())
def test_the_driver_s_version(text: str, version: str, tmp_path) -> None:
    (tmp_path / "version").write_text(text)
    assert driver_version(tmp_path / "version") == version
    assert driver_version(tmp_path / "none") is None


def test_the_version_of_the_nccl_that_torch_needs(monkeypatch) -> None:
    needs = ["filelock", 'nvidia-nccl-cu13==2.28.9; platform_system == "Linux"']
    assert nccl_version(["filelock", "nvidia-nccl-cu99"]) is None  # No such package is installed.
    monkeypatch.setattr("noether.runs.provenance.version", {"nvidia-nccl-cu13": "2.28.9"}.__getitem__)
    assert nccl_version(needs) == "2.28.9"
    assert nccl_version(["filelock"]) is None


CODE = {"own_model.py": "import own_parts.blocks\n", "own_parts/__init__.py": "", "own_parts/blocks.py": "width = 1\n"}
IMPORTS = "import sys; sys.path.insert(0, sys.argv[1]); import own_model, colorsys; import noether.core.data.order"
DIGESTS = f"{IMPORTS}; from noether.runs.provenance import source_digests; print(source_digests(['own_model.Own']))"


def digests_of(place: Path) -> dict[str, str]:
    done = subprocess.run([sys.executable, "-c", DIGESTS, str(place)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)


@pytest.mark.parametrize("place", ["moved", "archive", "compiled", "site-packages", "changed"])
def test_the_sources_that_learn_are_known_wherever_they_lie(place: str, tmp_path: Path) -> None:
    for name, text in CODE.items():
        (tmp_path / "first" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "first" / name).write_text(text)
    first, other = digests_of(tmp_path / "first"), tmp_path / place
    own = {"own_model", "own_parts", "own_parts.blocks"}
    assert own | {"noether.core.data.order"} <= first.keys()
    assert not any(name.startswith(("noether.runs", "noether.config", "colorsys", "json")) for name in first)
    shutil.copytree(tmp_path / "first", other)  # This includes the __pycache__ of the first import.
    expected = first
    if place == "archive":
        other = Path(shutil.make_archive(str(other), "zip", other))
    elif place == "compiled":
        compileall.compile_dir(other, legacy=True, quiet=1)
        before = [path.unlink() or path.with_suffix(".pyc") for path in list(other.rglob("*.py"))]
        expected = digests_of(other)
        assert expected.keys() == first.keys()
        for path in before:
            path.write_bytes(path.read_bytes()[:8] + bytes(8) + path.read_bytes()[16:])
    elif place == "site-packages":  # Modules beside an installed one belong to other packages.
        expected = {name: digest for name, digest in first.items() if not name.startswith("own_parts")}
    elif place == "changed":
        (other / "own_parts/blocks.py").write_text("width = 2\n")
        expected = first | {"own_parts.blocks": digests_of(other)["own_parts.blocks"]}
        assert expected != first
    assert digests_of(other) == expected


def test_the_lock_names_every_package_exactly() -> None:
    """This includes indirect requirements: the version of an unpinned package could differ on another day."""
    locked = dict(line.split("==") for line in LOCK.read_text().splitlines() if not line.startswith("#"))
    locked = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in locked.items()}
    asked = [Requirement(line) for line in requires("noether-train") or []]
    assert asked
    seen: set[str] = set()
    while asked:
        requirement = asked.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if (requirement.marker and not requirement.marker.evaluate({"extra": "dev"})) or name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        of_this_checkout = name == "slurm-lint"
        assert of_this_checkout or found.version.partition("+")[0] == locked.get(name), f"{name} in constraints.txt"
        more = (Requirement(line) for line in found.requires or [])
        asked += [one for one in more if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert len(seen) > 40
