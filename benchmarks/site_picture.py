"""Makes the picture of the documentation site, docs/images/site.png, in a headless chromium. Needs `make site` first.

    python benchmarks/site_picture.py [--out docs/images/site.png]

Needs the extra `dev` and Debian's chromium.
"""

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

SITE, PAGE = Path("site"), "concepts.html"
COLOURS = 64


def main() -> None:
    """Photographs one page as a reader sees it first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/site.png"))
    out = parser.parse_args().out
    if not (SITE / PAGE).exists():
        parser.error(f"there is no {SITE / PAGE}: run `make site` first")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1280, "height": 860})
        page.goto((SITE / PAGE).absolute().as_uri())
        page.wait_for_load_state("networkidle")
        shot = Image.open(io.BytesIO(page.screenshot(type="png"))).convert("RGB")
        chromium.close()
    shot.quantize(COLOURS, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out}: {shot.width} × {shot.height}, {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
