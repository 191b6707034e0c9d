"""The docker image, from the project's Dockerfile."""

import json
import os
from hashlib import sha256

from containers.engine import docker
from containers.shell import REPOSITORY, ImagesError, Places, answers, call


def image_name(flavour: str) -> str:
    """Return the image's name: the one of the documentation for the default flavour, marked for every other."""
    return "noether:latest" if flavour == "cu130" else f"noether:{flavour}"


def has_image(places: Places, name: str) -> bool:
    """Whether the engine has an image of this name."""
    client, environ = docker(places)
    return answers(client, "image", "inspect", name, environ=environ)


def build_image(places: Places, flavour: str, sources: dict[str, str]) -> None:
    """Build the image of a flavour; `sources` are further build arguments."""
    client, environ = docker(places)
    lock = sha256((REPOSITORY / "constraints.txt").read_bytes()).hexdigest()
    settings = {"FLAVOUR": flavour, "GIT_REVISION": git_revision(), "LOCK_SHA256": lock, **sources}
    if flavour == "cpu":
        settings["NVIDIA_REQUIRE_CUDA"] = ""
    elif flavour.startswith("cu") and flavour[2:].isdigit():
        settings["NVIDIA_REQUIRE_CUDA"] = f"cuda>={flavour[2:-1]}.{flavour[-1]}"
    words = [f"--build-arg={name}={value}" for name, value in settings.items()]
    log = places.logs / "build.log"
    call(
        client,
        "build",
        "--progress=plain",
        *words,
        f"--tag={image_name(flavour)}",
        REPOSITORY,
        log=log,
        environ=environ,
        limit_s=3600,
    )


def git_revision() -> str:
    """Return the revision of the working tree, marked where it was changed; "unknown" outside a repository."""
    try:
        return call("git", "-C", REPOSITORY, "describe", "--always", "--dirty", "--abbrev=12").strip()
    except ImagesError:
        return "unknown"


def layers(places: Places, name: str) -> list[tuple[int, str]]:
    """Return the size in bytes and the Dockerfile's line of each layer that has a size, the bottom one first."""
    client, environ = docker(places)
    shown = call(client, "history", "--no-trunc", "--human=false", "--format={{json .}}", name, environ=environ)
    rows = [json.loads(line) for line in shown.splitlines()]
    return [(int(row["Size"]), row["CreatedBy"]) for row in reversed(rows) if int(row["Size"])]


def size(places: Places, name: str) -> int:
    """Return the size of an image in bytes, unpacked."""
    client, environ = docker(places)
    return int(call(client, "image", "inspect", "--format={{.Size}}", name, environ=environ))


def variables(places: Places, flavour: str) -> str:
    """Return lines for `eval`: how to reach the engine, the image, Apptainer and the SIF."""
    _, environ = docker(places)
    lines = [f"export {name}={value}" for name, value in environ.items()]
    lines.append(f"export NOETHER_IMAGE={image_name(flavour)}")
    # Where Apptainer and the SIF are, or will be: the image may be asked for before they are made.
    lines += [f"export PATH={places.apptainer}/bin:$PATH", f"export NOETHER_SIF={places.sif}"]
    if os.geteuid() == 0:
        lines.append("export APPTAINER_DROP_CAPS=CAP_SYS_RESOURCE")
    return "\n".join(lines)
