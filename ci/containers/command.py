"""Make the docker image and the SIF, even without a container engine and a registry.

    ci/images all                   every step in order; existing results are kept
    ci/images engine start | stop   start or stop a private engine from Debian's packages (root)
    ci/images base | wheels         make what a build without registry and package index needs
    ci/images build                 build the docker image from the Dockerfile
    ci/images apptainer             unpack Apptainer into the state folder (root)
    ci/images sif                   build the SIF from the docker image
    ci/images arguments docker | apptainer    print the arguments to add to `docker build` or `apptainer build`
    ci/images env                   print lines for `eval`: the engine, Apptainer, the image and the SIF
    ci/images check                 print what prevents this machine from running containers
    ci/images clean                 stop the private engine and remove everything that was written

A running engine is used as it is; the build then pulls the base and takes torch from PyPI, unless --local is given.
"""

import argparse
import os
import sys
from pathlib import Path

from containers import apptainer, base, build, engine
from containers.shell import ImagesError, Places, step

WORDS: dict[str, tuple[str, ...]] = {"engine": ("start", "stop"), "arguments": ("docker", "apptainer")}
CANNOT_FETCH = 3
"""The exit code after a CannotFetchError; CI may then skip the tests of the SIF, but nothing else."""


def make_engine(places: Places) -> bool:
    """Start the private engine unless an engine is running; return whether the running engine is the private one."""
    try:
        return "DOCKER_HOST" in engine.docker(places)[1]
    except ImagesError:
        if found := engine.obstacles():
            raise ImagesError("; ".join(found)) from None
    with step(places, "engine"):
        engine.start(places)
    return True


def make_image(places: Places, flavour: str, *, local: bool, cached: bool = True) -> None:
    """Build the docker image; with `local`, make the base and the wheels here."""
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
    """Run the command line; exit with a message if it fails."""
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
    parser.add_argument("--state", type=Path, default=Path(default), help=f"folder for all written files ({default})")
    parser.add_argument("--flavour", default="cu130", help="torch build: cu130, cu126, … or cpu (cu130)")
    parser.add_argument("--local", action="store_true", help="make base and wheels here, even if an engine is running")
    parser.add_argument("--no-cache", action="store_true", help="rebuild every layer")
    names = ("all", "engine", "base", "wheels", "build", "apptainer", "sif", "arguments", "env", "check", "clean")
    parser.add_argument("command", choices=names, metavar="COMMAND")
    parser.add_argument("what", nargs="?", choices=sum(WORDS.values(), ()), help="for `engine` and `arguments`")
    arguments = parser.parse_args()
    places, command, flavour = Places(arguments.state.absolute()), arguments.command, arguments.flavour
    os.environ["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"
    if arguments.what not in WORDS.get(command, (None,)):
        parser.error("engine start | stop, arguments docker | apptainer; the other commands take no argument")
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
