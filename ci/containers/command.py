"""Makes the docker image and the SIF, from nothing where there is no engine and no registry.

    ci/images all                   every step in order; what is there already is kept
    ci/images engine start | stop   an engine of our own, from Debian's packages (root)
    ci/images base | wheels         what a build without registry and index needs
    ci/images build                 the docker image, from the Dockerfile
    ci/images apptainer             Apptainer, unpacked into the state folder (root)
    ci/images sif                   the SIF, from the docker image
    ci/images arguments docker | apptainer    the words that `docker build`, `apptainer build` need beside their own
    ci/images env                   lines for `eval`: the engine, Apptainer, the image and the SIF
    ci/images check                 what keeps this machine from running containers
    ci/images clean                 stop the engine and remove everything that was written

An engine that answers already is used as it is, and then the base is pulled and torch comes from PyPI, unless
--local is given.
"""

import argparse
import os
import sys
from pathlib import Path

from containers import apptainer, base, build, engine
from containers.shell import ImagesError, Places, step

WORDS: dict[str, tuple[str, ...]] = {"engine": ("start", "stop"), "arguments": ("docker", "apptainer")}
CANNOT_FETCH = 3
"""Exit code where Debian sid's packages are not to be had: CI may leave out the SIF, and nothing else."""


def make_engine(places: Places) -> bool:
    """See that an engine answers; return whether it is our own."""
    try:
        return "DOCKER_HOST" in engine.docker(places)[1]
    except ImagesError:
        if found := engine.obstacles():
            raise ImagesError("; ".join(found)) from None
    with step(places, "engine"):
        engine.start(places)
    return True


def make_image(places: Places, flavour: str, *, local: bool, cached: bool = True) -> None:
    """Build the docker image, with a base and wheels made here where it is built `local`."""
    sources = {}
    if local:
        if not build.has_image(places, base.BASE):
            with step(places, "base"):
                base.make_base(places, dict(os.environ))
        with step(places, "wheels"):
            wheels = base.make_wheels(places, flavour)
        sources = {"BASE_IMAGE": base.BASE, "WHEELS_IMAGE": wheels, "PIP_OPTIONS": "--no-index"}
    with step(places, "build"):
        build.build_image(places, flavour, sources, cached=cached)


def main() -> None:
    """Do what the command line says, and leave with one line where it cannot be done."""
    try:
        _main()
    except apptainer.CannotFetchError as error:
        print(f"images: {error}", file=sys.stderr)
        sys.exit(CANNOT_FETCH)
    except ImagesError as error:
        sys.exit(f"images: {error}")


def _main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, prog="ci/images", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("NOETHER_IMAGES_STATE", "/var/tmp/noether-images")
    parser.add_argument("--state", type=Path, default=Path(default), help=f"folder of everything it writes ({default})")
    parser.add_argument("--flavour", default="cu130", help="torch's build: cu130, cu126, … or cpu (cu130)")
    parser.add_argument("--local", action="store_true", help="base and wheels made here, with an engine that answers")
    parser.add_argument("--no-cache", action="store_true", help="build every layer anew")
    names = ("all", "engine", "base", "wheels", "build", "apptainer", "sif", "arguments", "env", "check", "clean")
    parser.add_argument("command", choices=names, metavar="COMMAND")
    parser.add_argument("what", nargs="?", choices=sum(WORDS.values(), ()), help="of `engine` and of `arguments`")
    arguments = parser.parse_args()
    places, command, flavour = Places(arguments.state.absolute()), arguments.command, arguments.flavour
    os.environ["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"
    if arguments.what not in WORDS.get(command, (None,)):
        parser.error("engine start | stop, arguments docker | apptainer; the other commands take no word")
    if command == "check":
        try:
            engine.docker(places)
        except ImagesError:
            sys.exit("\n".join(engine.obstacles()) or None)
    elif command == "clean":
        engine.remove(places)
    elif command == "engine":
        if arguments.what == "stop":
            engine.stop(places)
        else:
            with step(places, "engine"):
                engine.start(places)
    elif command == "arguments":
        words = build.docker_arguments(flavour)
        if arguments.what == "apptainer":
            words = build.apptainer_arguments(places, build.image_name(flavour))
        print(*words)
    elif command == "env":
        print(build.variables(places, flavour))
    elif command == "apptainer":
        with step(places, "apptainer"):
            apptainer.install(places)
    else:
        local = make_engine(places) or arguments.local
        if command == "base":
            with step(places, "base"):
                base.make_base(places, dict(os.environ))
        elif command == "wheels":
            with step(places, "wheels"):
                base.make_wheels(places, flavour)
        if command in ("all", "build"):
            make_image(places, flavour, local=local, cached=not arguments.no_cache)
        if command == "all":
            with step(places, "apptainer"):
                apptainer.install(places)
        if command in ("all", "sif"):
            with step(places, "sif"):
                apptainer.build_sif(places, build.image_name(flavour))
