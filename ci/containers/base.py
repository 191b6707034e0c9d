"""A Debian base image and a folder of wheels, made here: the build then needs no registry and no index.

Where the engine can pull, neither is needed: the Dockerfile names debian:bookworm-slim and PyPI itself.
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
# What the wheels of the image are chosen for: Debian bookworm's Python.
PYTHON = "3.11"
GLIBC = 36  # 2.36, bookworm's
LEFT_OUT = ("./usr/share/doc", "./usr/share/man", "./usr/share/locale", "./usr/share/info", "./var/cache/apt/*.bin")
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
CUDA = ("nvidia-", "cuda-", "triton")
"""Beginnings of the names of packages that only torch's CUDA wheels require."""
# What names a bundle of certificates, in the order in which it is asked.
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")


def make_base(places: Places, environ: dict[str, str]) -> None:
    """Make the base with debootstrap from this machine's Debian mirror, and import it.

    The certificates that this machine trusts beside Debian's own go into it, so that a build behind a proxy with
    its own authority works; the image that is published is built on Debian's, without them.
    """
    install_packages(PACKAGES)
    shutil.rmtree(places.base, ignore_errors=True)
    places.base.parent.mkdir(parents=True, exist_ok=True)
    log, inside = places.logs / "base.log", {"TMPDIR": "/tmp"}  # The caller's folder is not there in another root.
    packages = ("--variant=minbase", "--include=ca-certificates")
    call("debootstrap", *packages, SUITE, places.base, mirror(), environ=inside, log=log)
    if extra := _own_certificates(places.base, environ):
        folder = places.base / "usr/local/share/ca-certificates"
        for number, text in enumerate(extra):
            (folder / f"own-{number}.crt").write_text(text + "\n")
        call("chroot", places.base, "update-ca-certificates", environ=inside, log=log)
    # BuildKit mounts its own over it; where there is none it makes one and removes it, which dates /etc anew.
    (places.base / "etc/hosts").touch()
    shutil.rmtree(places.base / "var/lib/apt/lists")
    for package in (places.base / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()
    _import(places, places.base, BASE, '--change=CMD ["bash"]', f"--change=ENV PATH={_PATH}")
    shutil.rmtree(places.base)


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_wheels(places: Places, flavour: str) -> str:
    """Fetch what the lock names, from wherever this machine's pip fetches, import it and return the image's name.

    pip's configuration (index, find-links, certificates, passwords) is used here and never enters a build.
    """
    places.wheels.mkdir(parents=True, exist_ok=True)
    lock = (REPOSITORY / "constraints.txt").read_text()
    names = of_the_image(locked(lock, cuda=flavour != "cpu"))
    if not any(line.startswith("torch==") for line in names):
        raise ImagesError("constraints.txt has no torch above its section of CUDA: nothing would be in the image")
    name = f"{WHEELS}:{flavour}-{sha256(lock.encode()).hexdigest()[:12]}"
    if has_image(places, name):
        return name
    wanted = places.state / "wheels.txt"
    wanted.write_text("\n".join(names) + "\n")
    # pip reads a platform that it is given as it stands: one glibc left out, and its wheels are not found.
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)]
    call(
        # Where nothing is installed to ask, the tools of development are among them, and may be too new for the image.
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
    """Return the requirements of a lock, with or without the part that only torch's CUDA wheels need."""
    everywhere, _, only_cuda = lock.partition("# CUDA")
    text = everywhere + ("#" + only_cuda if cuda else "")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def of_the_image(names: list[str]) -> list[str]:
    """Return those lines of a lock that the image installs, as far as the packages installed here can tell.

    They are asked what they require, from the project's own requirements on. Where one that the lock names is not
    installed here, nobody knows what it would require, and the whole lock is returned.
    """
    from pip._vendor.packaging.requirements import Requirement

    folders = (REPOSITORY, REPOSITORY / "packages" / "slurm-lint")
    project, lint = (tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in folders)
    # The build's own: what makes a wheel of a package that has none.
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
        if name == "mlxtend":  # Installed without what it requires.
            continue
        try:
            queue += [text for text in metadata.requires(name) or [] if "extra ==" not in text]
        except metadata.PackageNotFoundError:
            if not name.startswith(
                ("nvidia-", "cuda-", "triton")
            ):  # Which require one another, and the lock names all.
                return names
    cuda = [line for line in names if line.startswith(("nvidia-", "cuda-", "triton")) and line not in wanted.values()]
    return [*wanted.values(), *(cuda if "triton" in lines else [])]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def mirror() -> str:
    """Return the Debian mirror that this machine installs from."""
    for sources in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        if sources.exists() and (found := re.search(r"^(?:URIs:|deb) +(https?://\S+)", sources.read_text(), re.M)):
            return found[1]
    return "http://deb.debian.org/debian"


def _own_certificates(base: Path, environ: dict[str, str]) -> list[str]:
    """Return the certificates that this machine's bundle has and Debian's does not."""
    named = [environ[name] for name in CA_VARIABLES if environ.get(name)]
    with contextlib.suppress(ImagesError):  # pip has no such setting
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
