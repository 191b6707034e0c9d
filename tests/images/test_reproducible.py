"""Two builds of one revision make the same image."""

import subprocess
import sys

import pytest

from images.making import IMAGES, Making

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]


def content(client, name: str) -> dict:
    """What an image holds: the digests of its layers, and its settings.

    Not its own digest: BuildKit before 0.11 writes the time of the build into the record that it is the digest of.
    """
    found = client.images.get(name).attrs
    return {"layers": found["RootFS"]["Layers"], "settings": found["Config"]}


def test_two_builds_are_one(making: Making | None, image: str, engine_client) -> None:
    """The second uses nothing of the first: every package is installed and every file compiled again."""
    if making is None:
        pytest.skip("needs the folder in which the image was built, not an image that NOETHER_IMAGE names")
    first = content(engine_client, image)
    flavour = engine_client.images.get(image).labels["noether.flavour"]
    again = [sys.executable, IMAGES, f"--state={making.state}", f"--flavour={flavour}", "--no-cache", "build"]
    done = subprocess.run(again, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr
    assert content(engine_client, image) == first
