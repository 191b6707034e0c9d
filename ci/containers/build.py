"""Build the docker image from the project's Dockerfile, and describe it."""

import json
import os
import re
from collections.abc import Mapping
from hashlib import sha256

from containers.engine import docker
from containers.shell import REPOSITORY, ImagesError, Places, answers, call


def image_name(flavour: str) -> str:
    """Return the image's name: noether:latest for the default flavour, noether:FLAVOUR for any other."""
    return "noether:latest" if flavour == "cu130" else f"noether:{flavour}"


def has_image(places: Places, name: str) -> bool:
    """Return whether the engine has an image of this name."""
    client, environ = docker(places)
    return answers(client, "image", "inspect", name, environ=environ)


def build_image(places: Places, flavour: str, sources: dict[str, str], *, cached: bool = True) -> None:
    """Build the image of a flavour; `sources` are further build arguments, such as BASE_IMAGE."""
    client, environ = docker(places)
    words = docker_arguments(flavour, {**sources, **_local_base(places, sources)})
    call(
        *(client, "build", "--progress=plain", *([] if cached else ["--no-cache"]), *words),
        *(f"--tag={image_name(flavour)}", REPOSITORY),
        log=places.logs / "build.log",
        environ=environ,
        limit_s=3600,
    )


def docker_arguments(flavour: str, more: dict[str, str] | None = None) -> list[str]:
    """Return the build arguments with facts that the Dockerfile cannot find out itself; none contains a space."""
    settings = {
        "FLAVOUR": flavour,
        "GIT_REVISION": git("describe", "--always", "--dirty", "--abbrev=12"),
        "LOCK_SHA256": sha256((REPOSITORY / "constraints.txt").read_bytes()).hexdigest(),
        "VERSION": _found(r'^__version__ = "(.+)"$', "noether/__init__.py"),
        "CREATED": git("log", "-1", "--format=%cI"),
        "SOURCE": source(os.environ),
        "BASE_DIGEST": _found(r"^ARG BASE_IMAGE=\S+@(sha256:\w+)$", "Dockerfile"),
        # The image's creation time, from BuildKit 0.11 on; older versions record the time of the build.
        "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct"),
        **(more or {}),
    }
    return [f"--build-arg={name}={value}" for name, value in settings.items()]


def apptainer_arguments(places: Places, image: str) -> list[str]:
    """Return the build arguments of `apptainer build`, which describe the docker image that the SIF is made from."""
    client, environ = docker(places)
    (found,) = json.loads(call(client, "image", "inspect", image, environ=environ))
    labels = found["Config"]["Labels"]
    names = {
        "REVISION": "org.opencontainers.image.revision",
        "VERSION": "org.opencontainers.image.version",
        "CREATED": "org.opencontainers.image.created",
        "SOURCE": "org.opencontainers.image.source",
        "LOCK_SHA256": "noether.lock.sha256",
    }
    settings = {name: labels.get(label) or "unknown" for name, label in names.items()} | {"IMAGE": found["Id"]}
    return [f"--build-arg={name}={value}" for name, value in settings.items()]


def git(*words: str) -> str:
    """Return the output of a git command; "unknown" if it is empty or the command fails, as outside a repository."""
    try:
        return call("git", "-C", REPOSITORY, *words).strip() or "unknown"
    except ImagesError:
        return "unknown"


def source(environ: Mapping[str, str]) -> str:
    """Return the URL of the sources from GitHub's variables, else that of the clone's origin without a password."""
    if environ.get("GITHUB_REPOSITORY"):
        return f"{environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{environ['GITHUB_REPOSITORY']}"
    origin = git("config", "--get", "remote.origin.url")
    # Leave out an origin on this machine, which is of no use to others.
    return re.sub(r"//[^/@]*@", "//", origin) if "://" in origin and not origin.startswith("file:") else "unknown"


def _found(pattern: str, path: str) -> str:
    found = re.search(pattern, (REPOSITORY / path).read_text(), re.MULTILINE)
    return found[1] if found else "unknown"


def _local_base(places: Places, sources: dict[str, str]) -> dict[str, str]:
    """Return the image ID of a base made here as its digest, because only a registry assigns digests."""
    if "BASE_IMAGE" not in sources:
        return {}
    client, environ = docker(places)
    inspect = (client, "image", "inspect", "--format={{.Id}}", sources["BASE_IMAGE"])
    return {"BASE_DIGEST": call(*inspect, environ=environ).strip()}


def layers(places: Places, name: str) -> list[tuple[int, str]]:
    """Return the size in bytes and the Dockerfile line of each non-empty layer, from the bottom up."""
    client, environ = docker(places)
    shown = call(client, "history", "--no-trunc", "--human=false", "--format={{json .}}", name, environ=environ)
    rows = [json.loads(line) for line in shown.splitlines()]
    return [(int(row["Size"]), row["CreatedBy"]) for row in reversed(rows) if int(row["Size"])]


def size(places: Places, name: str) -> int:
    """Return the unpacked size of an image in bytes."""
    client, environ = docker(places)
    return int(call(client, "image", "inspect", "--format={{.Size}}", name, environ=environ))


def variables(places: Places, flavour: str) -> str:
    """Return lines for `eval` that name the engine, the image, Apptainer and the SIF."""
    _, environ = docker(places)
    lines = [f"export {name}={value}" for name, value in environ.items()]
    lines.append(f"export NOETHER_IMAGE={image_name(flavour)}")
    # Apptainer and the SIF may not exist yet, because the image can be used before they are made.
    lines += [f"export PATH={places.apptainer}/bin:$PATH", f"export NOETHER_SIF={places.sif}"]
    if os.geteuid() == 0:
        lines.append("export APPTAINER_DROP_CAPS=CAP_SYS_RESOURCE")
    return "\n".join(lines)
