"""What the image must hold besides noether and torch: each part serves."""

import pytest

pytest.importorskip("docker")

pytestmark = pytest.mark.slow

PYTHON = "/opt/venv/bin/python3 -Ic"
MESH = (
    "import pyvista; from pathlib import Path; from noether.physics.cases.mesh_source import read_mesh_apart; "
    "pyvista.Sphere().save('/tmp/a.vtp'); assert len(read_mesh_apart(Path('/tmp/a.vtp')).points) > 800"
)
PROVIDER = (
    "import ctypes, glob; (library,) = glob.glob('/usr/lib/*/libibverbs/libmlx5-*.so'); ctypes.CDLL(library); "
    "assert open('/etc/libibverbs.d/mlx5.driver').read()"
)
# The part: a command that serves only with it.
PARTS = {
    "pyvista, and its readers of VTK": f'{PYTHON} "{MESH}"',
    "uvicorn": f'{PYTHON} "import uvicorn, noether.watch.serve"',
    "tree-sitter": "printf '#!/bin/bash\\nsrun noether train\\n' > /tmp/job && noether lint /tmp/job",
    "CA certificates": "test $(grep -c BEGIN /etc/ssl/certs/ca-certificates.crt) -gt 100",
    "the locale": 'test "$(LC_ALL=C.UTF-8 locale charmap)" = UTF-8',
    "providers of ibverbs": f'{PYTHON} "{PROVIDER}"',
    "ibverbs": f"{PYTHON} \"import ctypes; ctypes.CDLL('libibverbs.so.1')\"",
}


def test_each_part_serves(containers) -> None:
    """One container for all of them; it says which do."""
    script = "\n".join(f"({command}) >&2 && echo '{part}'" for part, command in PARTS.items())
    done = containers.run("-c", script, entrypoint=["sh"])
    assert done.out.splitlines() == list(PARTS), done.err
