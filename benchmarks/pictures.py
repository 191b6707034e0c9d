"""Make the screenshots in docs/: the live page (1, 3 and 30 runs, dark, 400 px wide), a report and the site.

    make pictures        (builds the site first; `python benchmarks/pictures.py --only watch` makes only some)

Trains thirty short runs, which takes about ten minutes on two idle cores. The folder `--keep` (build/pictures) keeps
the runs for the next call, and `--out` is the folder for the pictures. Needs the extra `dev` and Debian's chromium.
"""

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from record import told

SWEEP = (
    *("+experiment/ellipsoid=quick", "optimizer=adamw", "accelerator=cpu", "devices=1", "tracker.tensorboard=false"),
    *("tracker.report=false", "model.encoder_depth=1", "model.decoder_depth=1", "model.supernodes=32"),
    *("dataset.geometry_points=128", "dataset.points_per_update.surface=64", "dataset.points_per_update.volume=64"),
    *("trainer.max_updates=60", "trainer.log_every=2 updates", "trainer.evaluate_every=12 updates"),
    *("model.dim=48,66,96", "optimizer.learning_rate=5e-4,1e-3,2e-3,4e-3,8e-3", "seed=0,1", "run_id=upt"),
)
COLOURS = 200
LIMIT_MS = 120_000


@dataclass(frozen=True)
class Shot:
    """A screenshot of the live page: its file, the runs to overlay, and how the page is opened and cropped.

    With `part`, the picture reaches from the top of the first element to the top of the second; else, it is the window.
    """

    name: str
    overlaid: tuple[str, ...] = ()
    width: int = 1280
    dark: bool = False
    part: tuple[str, str] | None = None
    smoothing: str = "0"


SHOTS = (
    Shot("watch-one.png", ("upt-4",), part=("#glance", "#metrics")),
    Shot("watch-three.png", ("upt-4", "upt-10", "upt-15"), part=("#glance", "#metric-tables"), smoothing="0.6"),
    Shot("watch-thirty.png", ("upt-4", "upt-10", "upt-15"), part=("#all-runs", "#curves")),
    Shot("watch-dark.png", ("upt-4", "upt-10", "upt-15"), dark=True, part=("#curves", "#metric-tables")),
    Shot("watch-400px.png", ("upt-4",), width=400, part=("#glance", "#metrics")),
)


def trained(folder: Path) -> None:
    """Train the thirty runs of SWEEP in `folder`, unless they are finished."""
    if not (folder / "upt.sweep.json").exists():
        command = [sys.executable, "-m", "noether", "train", "-m", *SWEEP, f"output_path={folder}", "resume=auto"]
        subprocess.run(command, check=True)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the live page of the runs in `folder`; yield its address."""
    command = [sys.executable, "-m", "noether", "watch", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            said = "".join(iter(server.stdout.readline, "  end       Ctrl-C\n"))
            found = re.search(r"http://\S+", said)
            assert found, said
            yield found[0]
        finally:
            server.terminate()


def opened(chromium: Browser, address: str, *, width: int = 1280, dark: bool = False) -> Page:
    """Open an address in a new window; return the page."""
    theme = "dark" if dark else "light"
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
    page.set_default_timeout(LIMIT_MS)
    page.goto(address)
    return page


def photograph(page: Page, path: Path, part: tuple[str, str] | None = None) -> None:
    """Save a screenshot of a page, or of its part between the tops of two elements, in a small file of few colours."""
    page.evaluate("scrollTo(0, 0)")  # So that sticky elements are at the top of the picture.
    shot = Image.open(io.BytesIO(page.screenshot(full_page=part is not None, type="png"))).convert("RGB")
    if part:
        first, end = (page.locator(one).bounding_box() for one in part)
        assert first
        assert end
        shot = shot.crop((max(0, round(first["x"]) - 16), max(0, round(first["y"]) - 12), shot.width, round(end["y"])))
    shot.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {shot.width} × {shot.height}, {path.stat().st_size / 1000:.0f} kB")


def watch_pictures(chromium: Browser, folder: Path, out: Path) -> None:
    """Take the screenshots of the live page."""
    with served(folder) as address:
        for shot in SHOTS:
            page = opened(chromium, address, width=shot.width, dark=shot.dark)
            page.get_by_role("button", name=re.compile(f"^{shot.overlaid[0]} ")).first.click()
            page.wait_for_selector("#run-list li.focus")
            for name in shot.overlaid:
                page.get_by_label(f"Overlay {name}", exact=True).check()
            wanted = [f"Overlay {name}" for name in shot.overlaid]
            ticked = page.locator("#run-list input:checked").evaluate_all("all => all.map((box) => box.ariaLabel)")
            for label in set(ticked) - set(wanted):
                page.get_by_label(label, exact=True).uncheck()
            page.locator("#smoothing").fill(shot.smoothing)
            page.wait_for_selector("#metric-tables td")
            page.wait_for_timeout(4000)
            photograph(page, out / shot.name, shot.part)
            page.close()


def main() -> None:
    """Make the requested pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--keep", type=Path, default=Path("build/pictures"))
    parser.add_argument("--only", choices=("watch", "report", "site"), help="make only these pictures")
    asked = parser.parse_args()
    wanted = (asked.only,) if asked.only else ("watch", "report", "site")
    site = Path("site")
    if asked.only != "watch" and not (site / "report.html").exists():
        parser.error(f"there is no {site}/report.html: make site")
    if "watch" in wanted:
        trained(asked.keep)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--hide-scrollbars"]
        )
        if "watch" in wanted:
            watch_pictures(chromium, asked.keep, asked.out)
        for name, shown in (("report", "report.html"), ("site", "concepts.html")):
            if name in wanted:
                page = opened(chromium, (site / shown).absolute().as_uri())
                page.wait_for_load_state("networkidle")
                photograph(page, asked.out / f"{name}.png")
        chromium.close()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    told(main)
