"""The engine that ci/images starts builds reproducibly, and its removal restores the machine's firewall."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from images.making import IMAGES, Making, are_required

pytestmark = pytest.mark.nightly

# The script runs in its own network namespace, so that it changes neither the machine's firewall nor another engine.
SCRIPT = """
set -eu
ip link set lo up
echo 0 > /proc/sys/net/ipv4/ip_forward
PATH=/usr/sbin:$PATH
iptables -N SOMEBODY && iptables -A FORWARD -s 10.9.8.0/24 -j SOMEBODY
rules() {{ iptables -S; iptables -t nat -S; }}
rules > {state}.before
{images} engine start
DOCKER_HOST=unix://{state}/docker.sock docker network create --driver bridge one > /dev/null
iptables -A INPUT -s 10.9.7.0/24 -j ACCEPT
rules > {state}.during
{images} clean
rules > {state}.after
test ! -e {state}
"""


@pytest.fixture
def engine_packages(making: Making | None) -> None:
    if making is not None:
        assert making.wait("check") is not None
        assert making.wait("build", 2000) is not None


@pytest.mark.skipif(os.geteuid() != 0 or not are_required(), reason="starts an engine, as root")
def test_the_firewall_is_as_before(engine_packages: None) -> None:
    with tempfile.TemporaryDirectory(prefix="noether-fw-", dir="/var/tmp") as folder:
        state = Path(folder) / "e"
        script = SCRIPT.format(state=state, images=f"{sys.executable} {IMAGES} --state={state}")
        done = subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        before, during, after = (Path(f"{state}.{when}").read_text() for when in ("before", "during", "after"))
    assert "DOCKER-USER" in during
    assert "-P FORWARD DROP" in during
    # The firewall keeps its original rules, and the rule that the script added while the engine ran.
    assert sorted(after.splitlines()) == sorted([*before.splitlines(), "-A INPUT -s 10.9.7.0/24 -j ACCEPT"])


def content(client, name: str) -> dict:
    """Return the content of an image: the digests of its layers, and its settings.

    The image's own digest is left out, because with BuildKit before 0.11 it depends on the time of the build.
    """
    found = client.images.get(name).attrs
    return {"layers": found["RootFS"]["Layers"], "settings": found["Config"]}


@pytest.mark.timeout(3600)
def test_two_builds_are_one(making: Making | None, image: str, engine_client) -> None:
    """The second build has no cache: every package is installed and every file is compiled again."""
    if making is None:
        pytest.skip("needs the folder in which the image was built, not an image that NOETHER_IMAGE names")
    first = content(engine_client, image)
    flavour = engine_client.images.get(image).labels["noether.flavour"]
    again = [sys.executable, IMAGES, f"--state={making.state}", f"--flavour={flavour}", "--no-cache", "build"]
    done = subprocess.run(again, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr
    assert content(engine_client, image) == first
