"""Measure the image's size, the unused share of its packages, and the time from `docker run` to the first update.

    eval "$(ci/images --flavour cpu env)"
    python benchmarks/image.py [--flavour cpu] [--runs 3]

Prints the size of the image and of its layers, the seconds of each step of `ci/images`, the sizes of the largest
packages and of the files in them that a training run opened, and the time from `docker run` to the first update.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from record import at_least_one, told

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "ci"))

from containers.build import image_name, layers, size  # noqa: E402
from containers.engine import docker  # noqa: E402
from containers.shell import ImagesError, Places  # noqa: E402

TINY = REPOSITORY / "tests" / "tiny.yaml"
PACKAGES = "/opt/venv/lib/python3.11/site-packages/"
# A program that trains, then prints the files of the packages that it imported, mapped or opened.
USED = f"""
import sys
opened = set()
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith("{PACKAGES}"):
        opened.add(arguments[0])
sys.addaudithook(note)
from noether.config.compose import load_config
from noether.training.begin import train_here
from noether.launch.start import Start
config = load_config(sys.argv[1:], "/tiny.yaml")
code = train_here(config, Start(config))
opened.update(line.split()[-1] for line in open("/proc/self/maps") if "{PACKAGES}" in line)
files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
opened.update(file for file in files if file.startswith("{PACKAGES}"))
print("\\n".join("USED " + path for path in opened))
"""
EVERY_FILE = f"find {PACKAGES} -type f -printf '%s %p\\n'"


def megabytes(count: float) -> str:
    return f"{count / 1e6:8.1f} MB"


def package_of(path: str) -> str:
    return path.removeprefix(PACKAGES).split("/")[0]


def first_update(client: str, environ: dict[str, str], image: str) -> float:
    """Return the seconds from `docker run` until the run prints its first update; they include generating the data."""
    with tempfile.TemporaryDirectory() as work:
        os.chmod(work, 0o777)
        started = time.monotonic()
        mounts = (f"--volume={TINY}:/tiny.yaml:ro", f"--volume={work}:/work")
        words = ("train", "--hp", "/tiny.yaml", "run_id=first", "trainer.log_every=1 update")
        process = subprocess.Popen(
            [client, "run", "--rm", *mounts, image, *words],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        seconds = None
        for line in process.stdout or ():
            if seconds is None and re.match(r"update +\d", line):
                seconds = time.monotonic() - started
        if process.wait() or seconds is None:
            raise SystemExit(f"the run ended with {process.returncode}")
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", default="cpu")
    parser.add_argument("--runs", type=at_least_one, default=3)
    state = os.environ.get("NOETHER_IMAGES_STATE", "/var/tmp/noether-images")
    parser.add_argument("--state", type=Path, default=Path(state))
    arguments = parser.parse_args()
    places, image = Places(arguments.state.absolute()), image_name(arguments.flavour)
    client, own = docker(places)
    environ = {**os.environ, **own}
    print(f"{image}: {megabytes(size(places, image))} unpacked")
    for count, line in layers(places, image):
        print(f"  {megabytes(count)}  {line[:90]}")
    if places.sif.exists():
        print(f"SIF: {megabytes(places.sif.stat().st_size)}")
    if places.times.exists():
        print("seconds of each step of ci/images\n  " + places.times.read_text().strip().replace("\n", "\n  "))

    run = [client, "run", "--rm", f"--volume={TINY}:/tiny.yaml:ro", "--env=HOME=/tmp", "--workdir=/tmp"]
    listed = subprocess.run(
        [*run, "--entrypoint=sh", image, "-c", EVERY_FILE], env=environ, capture_output=True, text=True, check=True
    )
    trained = subprocess.run(
        [*run, "--entrypoint=/opt/venv/bin/python3", image, "-I", "-c", USED],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    used = {line.removeprefix("USED ") for line in trained.stdout.splitlines() if line.startswith("USED ")}
    sizes: Counter[str] = Counter()
    touched: Counter[str] = Counter()
    for line in listed.stdout.splitlines():
        length, _, path = line.partition(" ")
        sizes[package_of(path)] += int(length)
        touched[package_of(path)] += int(length) if path in used else 0
    print("largest packages, and how much of each a training run on the CPU opened")
    for name, count in sizes.most_common(20):
        word = "  unused" if not touched[name] else ""
        print(f"  {megabytes(count)}  {megabytes(touched[name])}  {name}{word}")

    seconds = [first_update(client, environ, image) for _ in range(arguments.runs)]
    print("seconds from `docker run` to the first update: " + ", ".join(f"{second:.1f}" for second in seconds))


if __name__ == "__main__":
    told(main, ImagesError)
