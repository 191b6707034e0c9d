"""Make a Debian base image and an image of wheels, so that a build needs neither a registry nor a package index.

A build with access to a registry and to PyPI needs neither image, because the Dockerfile names debian:bookworm-slim.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from containers.build import has_image
from containers.engine import docker
from containers.shell import REPOSITORY, ImagesError, Places, call, install_packages

BASE = "noether-base:bookworm"
WHEELS = "noether-wheels"
SUITE = "bookworm"
PACKAGES = {"/usr/sbin/debootstrap": "debootstrap"}
# pip chooses wheels for the Python and the glibc of Debian bookworm.
PYTHON = "3.11"
GLIBC = 36  # of version 2.36
LEFT_OUT = ("./usr/share/doc", "./usr/share/man", "./usr/share/locale", "./usr/share/info", "./var/cache/apt/*.bin")
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
CUDA = ("nvidia-", "cuda-", "triton")
"""Name prefixes of packages that only torch's CUDA wheels require."""
# Variables that may name a certificate bundle, in the order in which they are tried.
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")


def make_base(places: Places, environ: dict[str, str]) -> None:
    """Make the base image with debootstrap from this machine's Debian mirror, and import it into the engine.

    It includes the certificates that this machine trusts in addition to Debian's, so that a build works behind a proxy
    with its own certificate authority. The published image is built on Debian's base, without these certificates.
    """
    install_packages(PACKAGES)
    shutil.rmtree(places.base, ignore_errors=True)
    places.base.parent.mkdir(parents=True, exist_ok=True)
    log, inside = places.logs / "base.log", {"TMPDIR": "/tmp"}  # The new root lacks the caller's TMPDIR.
    packages = ("--variant=minbase", "--include=ca-certificates")
    call("debootstrap", *packages, SUITE, places.base, mirror(), environ=inside, log=log)
    if extra := _own_certificates(places.base, environ):
        folder = places.base / "usr/local/share/ca-certificates"
        for number, text in enumerate(extra):
            (folder / f"own-{number}.crt").write_text(text + "\n")
        call("chroot", places.base, "update-ca-certificates", environ=inside, log=log)
    # Without this file, BuildKit would create and remove it to mount its own, which would change /etc's timestamp.
    (places.base / "etc/hosts").touch()
    shutil.rmtree(places.base / "var/lib/apt/lists")
    for package in (places.base / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()
    _import(places, places.base, BASE, '--change=CMD ["bash"]', f"--change=ENV PATH={_PATH}")
    shutil.rmtree(places.base)


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_wheels(places: Places, flavour: str) -> str:
    """Download the wheels of the lock with this machine's pip, import them as an image, and return its name.

    pip's configuration (index, find-links, certificates, passwords) is used only here and never enters a build.
    """
    places.wheels.mkdir(parents=True, exist_ok=True)
    lock = (REPOSITORY / "constraints.txt").read_text()
    names = of_the_image(locked(lock, cuda=flavour != "cpu"))
    if not any(line.startswith("torch==") for line in names):
        raise ImagesError("constraints.txt has no torch above its CUDA section: the image would lack torch")
    name = f"{WHEELS}:{flavour}-{sha256(lock.encode()).hexdigest()[:12]}"
    if has_image(places, name):
        return name
    wanted = places.state / "wheels.txt"
    wanted.write_text("\n".join(names) + "\n")
    # pip compares platforms literally, so it finds a wheel only if the wheel's glibc version is listed.
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)]
    call(
        # of_the_image may return the whole lock, and its development tools may need a newer Python.
        *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"),
        "--ignore-requires-python",
        *(f"--python-version={PYTHON}", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none"),
        *(*platforms, "--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64", "--platform=any"),
        *(f"--find-links={places.wheels}", f"--dest={places.wheels}", f"--requirement={wanted}"),
        log=places.logs / "wheels.log",
        limit_s=1200,
    )
    _import(places, places.wheels, name)
    return name


def locked(lock: str, *, cuda: bool) -> list[str]:
    """Return the requirements of a lock; without `cuda`, leave out the section that only torch's CUDA wheels need."""
    everywhere, _, only_cuda = lock.partition("# CUDA")
    text = everywhere + ("#" + only_cuda if cuda else "")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def of_the_image(names: list[str]) -> list[str]:
    """Return the lines of a lock that the image installs.

    They are the project's requirements, and recursively the requirements of these packages as installed here. If a
    package of the lock is required but not installed here, its requirements are unknown: return the whole lock.
    """
    from pip._vendor.packaging.requirements import Requirement

    folders = (REPOSITORY, REPOSITORY / "packages" / "slurm-lint")
    project, lint = (tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in folders)
    # setuptools builds the wheels of packages that are published without one.
    extras = project["optional-dependencies"]
    own = (*project["dependencies"], *lint["dependencies"])
    queue = [*own, *extras["mesh"], *extras["watch"], "setuptools", "mlxtend"]
    lines = {_plain(line.split("==")[0]): line for line in names}
    wanted: dict[str, str] = {}
    while queue:
        required = Requirement(queue.pop())
        name = _plain(required.name)
        if name in wanted or name not in lines or (required.marker and not required.marker.evaluate({"extra": ""})):
            continue
        wanted[name] = lines[name]
        if name == "mlxtend":  # Installed without its requirements.
            continue
        try:
            queue += [text for text in metadata.requires(name) or [] if "extra ==" not in text]
        except metadata.PackageNotFoundError:
            # The CUDA packages require only one another, and the lock lists all of them.
            if not name.startswith(("nvidia-", "cuda-", "triton")):
                return names
    cuda = [line for line in names if line.startswith(("nvidia-", "cuda-", "triton")) and line not in wanted.values()]
    return [*wanted.values(), *(cuda if "triton" in lines else [])]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def mirror() -> str:
    """Return the Debian mirror that this machine uses."""
    for sources in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        if sources.exists() and (found := re.search(r"^(?:URIs:|deb) +(https?://\S+)", sources.read_text(), re.M)):
            return found[1]
    return "http://deb.debian.org/debian"


def _own_certificates(base: Path, environ: dict[str, str]) -> list[str]:
    """Return the certificates that are in this machine's bundle but not in Debian's."""
    named = [environ[name] for name in CA_VARIABLES if environ.get(name)]
    with contextlib.suppress(ImagesError):  # pip fails if the setting is not set.
        named.append(call(sys.executable, "-m", "pip", "config", "get", "global.cert").strip())
    bundle = next((Path(name) for name in named if Path(name).is_file()), None)
    if bundle is None:
        return []
    debian = {
        found.group().replace("\r", "")
        for path in (base / "usr/share/ca-certificates").rglob("*.crt")
        for found in CERTIFICATE.finditer(path.read_text())
    }
    ours = dict.fromkeys(found.group().replace("\r", "") for found in CERTIFICATE.finditer(bundle.read_text()))
    return [text for text in ours if text not in debian]


def _import(places: Places, folder: Path, name: str, *changes: str) -> None:
    client, environ = docker(places)
    left_out = [f"--exclude={path}" for path in LEFT_OUT]
    pack = subprocess.Popen(["tar", "-C", str(folder), *left_out, "-c", "."], stdout=subprocess.PIPE)
    done = subprocess.run(
        [client, "import", *changes, "-", name], stdin=pack.stdout, env={**os.environ, **environ}, capture_output=True
    )
    if pack.wait() or done.returncode:
        raise ImagesError(f"{name} could not be imported: {done.stderr.decode(errors='replace').strip()}")
