"""Unpack Apptainer from Debian sid without changing the system's libraries, and build the SIF from the docker image.

sid's Apptainer needs a newer libc than that of Debian bookworm. The packages of Apptainer and of sid's libc are
downloaded and unpacked into a separate folder, and Apptainer's two programs are patched to load that libc.
"""

import os
import shutil
import subprocess
from pathlib import Path

from containers.build import apptainer_arguments
from containers.engine import docker
from containers.shell import REPOSITORY, ImagesError, Places, answers, call, install_packages

PACKAGES = {
    "mksquashfs": "squashfs-tools",
    "squashfuse": "squashfuse",
    "fuse-overlayfs": "fuse-overlayfs",
    "fusermount3": "fuse3",
    "newuidmap": "uidmap",
    "patchelf": "patchelf",
}
FETCHED = ("apptainer", "libc6", "libseccomp2", "libsqlite3-0")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class CannotFetchError(ImagesError):
    """No Apptainer from Debian sid can be made to start here; this is the only step that CI may skip."""


def install(places: Places) -> None:
    """Unpack Apptainer into the state folder, unless an Apptainer that starts is already there or on the PATH.

    Raises:
        CannotFetchError: sid's packages cannot be fetched, or the unpacked Apptainer does not start.
        ImagesError: Apptainer is missing, and only root on Debian can unpack it; tests fail on this error.
    """
    if command(places) is not None:
        return
    if os.geteuid() or shutil.which("dpkg") is None:
        raise ImagesError("no apptainer on the PATH, and only root on Debian can unpack one: install the package")
    install_packages(PACKAGES)
    folder = places.state / "sid"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(places.apptainer, ignore_errors=True)
    _fetch(places, folder)
    root = places.apptainer
    log = places.logs / "apptainer.log"
    (root / "libc").mkdir(parents=True)
    for package in folder.glob("*.deb"):
        into = root if package.name.startswith("apptainer_") else root / "libc"
        call("dpkg", "-x", package, into, log=log)
    libraries = root / "libc" / LIBRARIES
    for program in (root / "usr/bin/apptainer", root / LIBRARIES / "apptainer/bin/starter"):
        loader = libraries / "ld-linux-x86-64.so.2"
        call("patchelf", "--set-interpreter", loader, "--force-rpath", "--set-rpath", libraries, program, log=log)
    # Apptainer looks for its files relative to its programs, in the prefix /usr and, for the starter, in /usr/lib.
    (root / "var/lib/apptainer/mnt/session").mkdir(parents=True, exist_ok=True)
    for name in ("etc", "var"):
        (root / "usr" / name).symlink_to(f"../{name}")
        (root / "usr/lib" / name).symlink_to(f"../../{name}")
    (root / "bin").mkdir()
    (root / "bin/apptainer").symlink_to(root / "usr/bin/apptainer")
    # Without root, Apptainer mounts the SIF through FUSE, so every user needs access to the device.
    if Path("/dev/fuse").exists():
        Path("/dev/fuse").chmod(0o666)
    shutil.rmtree(folder)
    if command(places) is None:
        said = subprocess.run([root / "bin/apptainer", "--version"], capture_output=True, text=True)
        shutil.rmtree(places.apptainer)
        raise CannotFetchError(f"sid's apptainer does not start here: {said.stderr.strip()[-500:]}")


def command(places: Places) -> str | None:
    """Return the apptainer on the PATH if it starts, else that in the state folder; None if neither starts."""
    for program in (shutil.which("apptainer"), str(places.apptainer / "bin/apptainer")):
        if program is not None and answers(program, "--version"):
            return program
    return None


def environ() -> dict[str, str]:
    """Return the variables that Apptainer needs here."""
    # Apptainer fails if it must grant a capability that root lacks, as root in a container may lack this one.
    return {"APPTAINER_DROP_CAPS": "CAP_SYS_RESOURCE"} if os.geteuid() == 0 else {}


def build_sif(places: Places, image: str) -> None:
    """Build the SIF from the exported file system of a docker image.

    Building from Apptainer's source docker-daemon takes three times as long, because it unpacks every layer again.
    """
    program = command(places)
    if program is None:
        raise ImagesError("no apptainer here; as root, `ci/images apptainer` installs one")
    client, engine = docker(places)
    shutil.rmtree(places.flat, ignore_errors=True)
    places.flat.mkdir(parents=True)
    container = call(client, "create", image, environ=engine).strip()
    try:
        export = subprocess.Popen([client, "export", container], stdout=subprocess.PIPE, env={**os.environ, **engine})
        unpack = subprocess.run(["tar", "-C", str(places.flat), "-x"], stdin=export.stdout, capture_output=True)
        if export.wait() or unpack.returncode:
            raise ImagesError(f"{image} could not be exported: {unpack.stderr.decode(errors='replace')[-500:]}")
    finally:
        call(client, "rm", container, environ=engine)
    scratch = places.state / "scratch"
    scratch.mkdir(exist_ok=True)
    call(
        *(program, "-q", "build", "--force", "--mksquashfs-args=-comp lz4"),
        *("--build-arg=BOOTSTRAP=localimage", f"--build-arg=FROM={places.flat}"),
        *(*apptainer_arguments(places, image), places.sif, REPOSITORY / "apptainer.def"),
        environ={**environ(), "APPTAINER_CACHEDIR": str(scratch), "APPTAINER_TMPDIR": str(scratch)},
        log=places.logs / "sif.log",
    )
    shutil.rmtree(places.flat)
    shutil.rmtree(scratch, ignore_errors=True)


def _fetch(places: Places, folder: Path) -> None:
    from containers.base import mirror

    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} sid main\n")
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": lists,
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    words = [f"-o{name}={value}" for name, value in options.items()]
    log = places.logs / "apptainer.log"
    try:
        call("apt-get", *words, "update", log=log)
        call("apt-get", *words, "download", *FETCHED, log=log, cwd=folder)
    except ImagesError as error:
        raise CannotFetchError(f"Debian sid's packages cannot be fetched: {error}") from None
