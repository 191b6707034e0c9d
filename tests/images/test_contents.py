"""What the image must hold besides noether and torch: each part serves, and its removal does not go unnoticed."""

import pytest

pytest.importorskip("docker")

pytestmark = pytest.mark.slow

PYTHON = "/opt/venv/bin/python3 -Ic"
SITE = "/opt/venv/lib/python3.11/site-packages"
MESH = (
    "import pyvista; from pathlib import Path; from noether.data.mesh_files import read_mesh_apart; "
    "pyvista.Sphere().save('/tmp/a.vtp'); assert len(read_mesh_apart(Path('/tmp/a.vtp')).points) > 800"
)
PROVIDER = (
    "import ctypes, glob; (library,) = glob.glob('/usr/lib/*/libibverbs/libmlx5-*.so'); ctypes.CDLL(library); "
    "assert open('/etc/libibverbs.d/mlx5.driver').read()"
)
# The part: a command that serves only with it, and what its absence is.
PARTS = {
    "pyvista": (f'{PYTHON} "{MESH}"', f"{SITE}/pyvista"),
    "readers of VTK": (f'{PYTHON} "{MESH}"', f"{SITE}/vtkmodules/libvtkIOXML.so"),
    "uvicorn": (f'{PYTHON} "import uvicorn, noether.watch.serve"', f"{SITE}/uvicorn"),
    "tree-sitter": (
        "printf '#!/bin/bash\\nsrun noether train\\n' > /tmp/job && noether lint /tmp/job",
        f"{SITE}/tree_sitter",
    ),
    "CA certificates": (
        "test $(grep -c BEGIN /etc/ssl/certs/ca-certificates.crt) -gt 100",
        "/etc/ssl/certs/ca-certificates.crt",
    ),
    "the locale": ('test "$(LC_ALL=C.UTF-8 locale charmap)" = UTF-8', "/usr/lib/locale/C.utf8"),
    "providers of ibverbs": (f'{PYTHON} "{PROVIDER}"', "/usr/lib/*/libibverbs"),
    "ibverbs": (f"{PYTHON} \"import ctypes; ctypes.CDLL('libibverbs.so.1')\"", "/usr/lib/*/libibverbs.so.1"),
}


def test_each_part_serves(containers) -> None:
    """One container for all of them; it says which do."""
    script = "\n".join(f"({command}) >&2 && echo '{part}'" for part, (command, _) in PARTS.items())
    done = containers.run("-c", script, entrypoint=["sh"])
    assert done.out.splitlines() == list(PARTS), done.err


@pytest.mark.nightly
@pytest.mark.parametrize(("command", "path"), PARTS.values(), ids=PARTS)
def test_without_it_the_check_above_fails(command: str, path: str, containers) -> None:
    done = containers.run("-c", f"ls -d {path} && rm -r {path} && ! ({command})", entrypoint=["sh"], user="0:0")
    assert done.code == 0, done.out + done.err
