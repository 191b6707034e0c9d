"""Makes the pictures of docs/watch.md: trains two short runs, and photographs the live page in a headless chromium.

    python benchmarks/watch_pictures.py [--out docs/images] [--keep FOLDER]

Needs the extra `dev` and Debian's chromium. `--keep` names a folder for the runs, which a second call uses again.
"""

import argparse
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

SETTINGS = (
    *("+experiment/ellipsoid=quick", "accelerator=cpu", "tracker.tensorboard=false", "tracker.report=false"),
    *("model.encoder_depth=1", "model.decoder_depth=1", "model.supernodes=32", "dataset.geometry_points=128"),
    *("dataset.points_per_update.surface=64", "dataset.points_per_update.volume=64", "trainer.max_updates=400"),
    *("trainer.log_every=2 updates", "trainer.evaluate_every=20 updates", "trainer.checkpoint_every=100 updates"),
)
RUNS = {
    "upt-baseline": ("model.dim=48", "devices=1"),
    "upt-wide-2-ranks": ("model.dim=66", "devices=2", "optimizer.learning_rate=2e-3"),
}
COLOURS = 200
LIMIT_MS = 120_000


def train(folder: Path, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "noether", "train", *SETTINGS, *RUNS[name]]
    return subprocess.Popen([*command, f"output_path={folder}", f"run_id={name}"], stdout=subprocess.DEVNULL)


def photograph(page: Page, path: Path, top: str, bottom: str) -> None:
    """Writes the page between the tops of two of its parts, in few enough colours to be small."""
    shot = Image.open(io.BytesIO(page.screenshot(full_page=True, type="png"))).convert("RGB")
    first, end = page.locator(top).bounding_box(), page.locator(bottom).bounding_box()
    shot = shot.crop((max(0, round(first["x"]) - 16), max(0, round(first["y"]) - 12), shot.width, round(end["y"])))
    shot.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {shot.width} × {shot.height}, {path.stat().st_size / 1000:.0f} kB")


def updates(folder: Path, name: str) -> int:
    rows = folder / name / "metrics.jsonl"
    found = re.findall(r'"update": (\d+)', rows.read_text()) if rows.exists() else []
    return int(found[-1]) if found else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="noether-watch-"))
    first, second = RUNS
    if not (folder / first / "result.json").exists():
        assert train(folder, first).wait() == 0
    shutil.rmtree(folder / second, ignore_errors=True)
    live = train(folder, second)
    served = subprocess.Popen(
        [sys.executable, "-m", "noether", "watch", str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        said = "".join(iter(served.stdout.readline, "  end       Ctrl-C\n"))
        address = re.search(r"http://\S+", said)[0]
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--hide-scrollbars"]
            )
            while updates(folder, second) < 240 and live.poll() is None:
                time.sleep(0.5)
            page = chromium.new_page(viewport={"width": 1400, "height": 900})
            page.set_default_timeout(LIMIT_MS)
            page.goto(address)
            page.get_by_role("button", name=re.compile(f"^{second}")).click()
            page.get_by_label(f"Overlay {first}").check()
            page.wait_for_selector("#settings-differ td")
            page.wait_for_timeout(2500)
            photograph(page, asked.out / "watch.png", "body", "#figures")
            live.wait()
            page = chromium.new_page(viewport={"width": 1400, "height": 900}, color_scheme="dark")
            page.set_default_timeout(LIMIT_MS)
            page.goto(address)
            for name in RUNS:
                page.get_by_label(f"Overlay {name}").check()
            final = json.loads((folder / second / "result.json").read_text())["figures"]["loss"]
            page.wait_for_selector(f'#figure-tables td[data-value="{final}"]')
            page.wait_for_timeout(2500)
            photograph(page, asked.out / "watch-compare.png", "#figures", "#ranks")
            chromium.close()
    finally:
        served.terminate()
        live.terminate()


if __name__ == "__main__":
    main()
