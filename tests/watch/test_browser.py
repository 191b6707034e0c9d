"""The page in a real browser, wide and narrow, dark and light: a run is followed, two are compared, a picture opens."""

import csv
import io
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import BROWSER_LIMIT_MS, TINY
from sharing import in_every_push

from noether.runs.metrics import Metric
from watch.test_page import MARKUP, RUN, write_run
from watch.watching import Page, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LOOKS = {f"{size}-{scheme}": (width, scheme) for size, width in (("wide", 1400), ("narrow", 400))
         for scheme in ("light", "dark")}  # fmt: skip
PAINTED = """canvas => {
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    let seen = 0;
    for (let place = 3; place < data.length; place += 4) seen += data[place] > 0;
    return seen;
}"""
SHIFTS = """window.shifts = 0;
const count = one => { if (!one.hadRecentInput) window.shifts += one.value; };
new PerformanceObserver(list => list.getEntries().forEach(count)).observe({type: "layout-shift", buffered: true});"""


@pytest.fixture
def served(environ) -> Iterator[Callable[..., Page]]:
    """Yield a function that serves runs; the servers end after all windows, which log an error if a server is gone."""
    with ExitStack() as ended:
        yield lambda *paths: ended.enter_context(serve(environ, *map(str, paths)))


@pytest.fixture
def opened(browser, served) -> Iterator[Any]:
    """Yield a function that opens an address in a new window. Console messages fail the test unless `forgiven` fits."""
    contexts, complaints = [], []

    def open_page(address: str, width: int = 1400, scheme: str = "light", forgiven: str = "NETWORK_CHANGED") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        context.add_init_script(SHIFTS)
        page = context.new_page()
        page.set_default_timeout(BROWSER_LIMIT_MS)
        page.on("console", lambda message: re.search(forgiven, message.text) or complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
        _go(page, address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


def _go(page: Any, address: str) -> None:
    """Open an address; retry if a network interface appeared or disappeared while the page was loading."""
    for last in (False, False, True):
        try:
            page.goto(address)
            page.wait_for_selector("body.filled", timeout=BROWSER_LIMIT_MS if last else 10_000)
        except Exception:  # Playwright may not be installed, so its errors have no name here.
            if last:
                raise
        else:
            return


@pytest.fixture(scope="module")
def place(tmp_path_factory, train_in, environ) -> Iterator[SimpleNamespace]:
    """Yield a folder with two real runs that have ended, and the page that shows these runs."""
    runs = tmp_path_factory.mktemp("runs")
    ended = [train_in(runs, name, f"seed={seed}") for name, seed in (("first", 1), ("second", 2))]
    with serve(environ, str(runs)) as page:
        yield SimpleNamespace(runs=runs, page=page, ended=ended, environ=environ)


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as expectations

    return expectations(locator)


def no_sideways_scrolling(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def wait_until(page: Any, is_so: Callable[[], bool]) -> None:
    """Poll until `is_so` is true. Playwright's own function for this needs eval, which the page forbids."""
    until = time.monotonic() + BROWSER_LIMIT_MS / 1000
    while not is_so():
        assert time.monotonic() < until
        page.wait_for_timeout(100)


def painting(page: Any, curve: str) -> str:
    """Return the current image of a chart."""
    return str(page.locator(f'[data-curve="{curve}"] canvas').first.evaluate("canvas => canvas.toDataURL()"))


def painted(page: Any, curve: str) -> int:
    """Return the number of non-empty pixels in a chart."""
    return int(page.locator(f'[data-curve="{curve}"] canvas').first.evaluate(PAINTED))


def final_metrics(page: Any) -> list[list[float]]:
    """Return, for each row of the table of final metrics, the exact values that the page stores with its texts."""
    rows = page.locator("#metric-tables table.metrics").first.locator("tbody tr")
    return [[float(cell.get_attribute("data-value")) for cell in row.locator("td.n").all()] for row in rows.all()]


UNHURRIED = """import time
from noether.training.callbacks import Callback

class Unhurried(Callback):
    def after_update(self, run, figures):
        time.sleep(0.05)
"""


def test_a_run_is_followed_to_its_end(place, opened, start_process, tmp_path) -> None:
    page = opened(place.page.address)
    # The run is so slow that the page polls it several times on any machine.
    (tmp_path / "unhurried.py").write_text(UNHURRIED)
    words = (
        *("train", "--hp", str(TINY), f"output_path={place.runs}", "run_id=live", "seed=3", "trainer.max_updates=120"),
        *("trainer.evaluate_every=40 updates", "trainer.checkpoint_every=60 updates"),
        "trainer.callbacks=[unhurried.Unhurried]",
    )
    start_process([sys.executable, "-m", "noether", *words], env={**place.environ, "PYTHONPATH": str(tmp_path)})
    page.get_by_role("button", name=re.compile("^live")).click()
    page.wait_for_selector('#run-state[data-state="running"]')
    page.wait_for_selector("text=/update [0-9]+ of 120/")
    page.wait_for_selector('[data-curve="loss"] canvas')
    before = painting(page, "loss")
    shown = page.locator("#progress-text").inner_text()
    expect(page.locator("#progress-text")).not_to_have_text(shown)
    wait_until(page, lambda: painting(page, "loss") != before)
    page.wait_for_selector('#run-state[data-state="done"]')
    assert page.locator("#run-state").inner_text() == "done"
    expect(page.locator("#log")).to_contain_text("evaluated in")
    page.wait_for_selector("#metric-tables td[data-value]")
    result = json.loads((place.runs / "live" / "result.json").read_text())
    for name in ("first", "second"):
        page.get_by_label(f"Overlay {name}").uncheck()
    expect(page.locator("#metric-tables th.run-1")).to_have_count(0)
    assert [row[0] for row in final_metrics(page)] == list(result["metrics"].values())
    best = result["metrics"]["surface_pressure/relative_l2"]
    assert page.locator("#tile-best").inner_text().replace("\u202f", "") == f"{best:.2%}"
    assert "update 120 of 120" in page.locator("#progress-text").inner_text()
    assert page.locator("#checkpoints td", has_text="update-000000120").count() == 1
    expect(page.locator("#pictures")).to_contain_text("while training")


CHOOSE_MEANWHILE = """() => {
    const ask = window.fetch;
    window.fetch = (address, ...more) => {
        const button = [...document.querySelectorAll("button")].find(one => one.textContent.startsWith("young"));
        if (address.startsWith("api/compare")) button.click();
        return ask(address, ...more);
    };
}"""


def test_a_run_without_logs_is_chosen_while_the_page_reads_another(place, served, opened, tmp_path) -> None:
    """The page must not ask the new run for a log of the first run's rank: the answer 404 would be on the console."""
    shutil.copytree(place.ended[0].path, tmp_path / "first")
    (tmp_path / "young").mkdir()
    shutil.copy(place.ended[0].config, tmp_path / "young" / "config.yaml")
    shown = opened(served(tmp_path).address)
    shown.get_by_role("button", name=re.compile("^first")).click()
    expect(shown.locator("#log")).to_contain_text("evaluated in")
    shown.evaluate(CHOOSE_MEANWHILE)
    shown.get_by_label("Overlay young").check()  # This compares the runs again.
    expect(shown.locator("#log")).to_have_text("")


@pytest.mark.parametrize(("width", "scheme"), in_every_push(LOOKS, "wide-light", "narrow-dark"))
def test_two_runs_are_compared_and_a_picture_is_opened(width: int, scheme: str, place, opened) -> None:
    page = opened(place.page.address, width, scheme)
    for name in ("first", "second"):
        page.get_by_label(f"Overlay {name}").check()
    if page.get_by_label("Overlay live").count():
        page.get_by_label("Overlay live").uncheck()
    heads = page.locator("#metric-tables table.metrics").first.locator("th.n")
    wait_until(page, lambda: sorted(heads.all_inner_texts()) == ["first", "second"])
    differing = page.locator("#settings-differ tbody tr").all_inner_texts()
    assert [text.split("\t")[0] for text in differing] == ["seed"]
    names = heads.all_inner_texts()
    metrics = [json.loads(run.result.read_text())["metrics"] for run in place.ended]
    by_name = dict(zip(("first", "second"), metrics, strict=True))
    assert final_metrics(page) == [[by_name[name][key] for name in names] for key in metrics[0]]
    for curve in ("loss", "learning_rate", "samples_per_second", "surface_pressure/relative_l2"):
        assert painted(page, curve) > 500, curve
    assert no_sideways_scrolling(page)
    dark = sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3])) < 200
    assert dark == (scheme == "dark")
    page.locator("#pictures").scroll_into_view_if_needed()
    picture = page.locator(".picture").first
    picture.focus()
    page.keyboard.press("Enter")
    wait_until(page, lambda: page.locator("#viewer-image").evaluate("image => image.naturalWidth") > 100)
    first = page.locator("#viewer-image").get_attribute("src")
    page.keyboard.press("ArrowRight")
    assert page.locator("#viewer-image").get_attribute("src") != first
    assert no_sideways_scrolling(page)
    page.keyboard.press("Escape")
    assert not page.locator("#viewer").is_visible()


def test_a_stretch_of_the_curves_is_looked_at_with_the_keyboard(place, opened) -> None:
    page = opened(place.page.address)
    page.wait_for_selector('[data-curve="loss"] canvas')
    before = painting(page, "loss")
    page.get_by_label("From update").focus()
    page.keyboard.type("2")
    page.keyboard.press("Tab")
    page.keyboard.type("6")
    page.keyboard.press("Tab")
    wait_until(page, lambda: painting(page, "loss") != before)
    page.get_by_role("button", name="Show all").press("Enter")
    assert page.get_by_label("From update").input_value() == ""


def test_the_runs_are_sorted_filtered_and_saved(place, opened) -> None:
    page = opened(place.page.address)
    losses = {run.path.name: json.loads(run.result.read_text())["metrics"]["loss"] for run in place.ended}
    page.get_by_label("Filter runs").fill("seed<3")

    def shown() -> list[str]:
        return [row.split("\t")[0] for row in page.locator("#runs-table tbody tr").all_inner_texts()]

    loss = page.locator("#runs-table").get_by_role("button", name="Loss")
    for down in (False, True):
        loss.click()
        wait_until(page, lambda down=down: shown() == sorted(losses, key=losses.__getitem__, reverse=down))
    page.get_by_label("Filter runs").fill("sec loss>0")
    wait_until(page, lambda: shown() == ["second"])
    with page.expect_download() as saved:
        page.locator("#runs-csv").click()
    (row,) = csv.DictReader(io.StringIO(saved.value.path().read_text()))
    assert (row["name"], row["seed"], row["split"], float(row["loss"])) == ("second", "2", "test", losses["second"])


def test_curves_are_smoothed_and_shown_along_epochs_and_time(place, opened) -> None:
    page = opened(place.page.address)
    page.wait_for_selector('[data-curve="loss"] canvas')
    seen = {painting(page, "loss")}

    def changes() -> None:
        wait_until(page, lambda: painting(page, "loss") not in seen)
        seen.add(painting(page, "loss"))

    page.get_by_label("smoothing").fill("0.9")
    changes()
    assert float(page.locator("#smoothing-text").inner_text()) == 0.9
    for way in ("epoch", "seconds"):
        page.get_by_label("along").select_option(way)
        changes()


WIDER = """() => [...document.querySelectorAll("main *")]
    .filter(one => one.clientWidth && getComputedStyle(one).display !== "inline")
    .filter(one => one.scrollWidth > one.clientWidth + 1)
    .map(one => `${one.tagName} ${one.textContent}`)"""


def test_of_three_runs_nothing_is_cut_at_1280_pixels(place, served, opened, tmp_path) -> None:
    for number in (1, 2, 3):
        shutil.copytree(place.ended[0].path, tmp_path / f"ellipsoid-{number}")
    shown = opened(served(tmp_path).address, 1280)
    for number in (1, 2, 3):
        shown.get_by_label(f"Overlay ellipsoid-{number}").check()
    expect(shown.locator("#metric-tables th.run-2").first).to_be_visible()
    wait_until(shown, lambda: shown.locator('[data-curve="loss"] .at-cursor span').count() == 3)
    assert shown.evaluate(WIDER) == []


def test_of_twelve_runs_eight_are_overlaid_and_nothing_is_hidden_in_silence(place, served, opened, tmp_path) -> None:
    for number in range(12):
        shutil.copytree(place.ended[0].path, tmp_path / f"ellipsoid-{number:02d}")
    shown = opened(served(tmp_path).address, 1280)
    boxes, said = shown.get_by_label(re.compile("^Overlay")), shown.locator("#runs-note")
    for box in boxes.all():
        box.click()
    assert [box.is_checked() for box in boxes.all()] == [True] * 8 + [False] * 4
    expect(said).to_contain_text("is not overlaid: at most 8 runs can be")
    boxes.first.uncheck()
    expect(said).to_contain_text("Tick up to 8 runs")
    boxes.first.check()
    name = boxes.last.get_attribute("aria-label").removeprefix("Overlay ")
    shown.get_by_role("button", name=re.compile(f"^{name}")).click()
    expect(said).to_contain_text(f"{name} takes the place of ")
    wait_until(shown, lambda: shown.locator('[data-curve="loss"] .at-cursor span').count() == 8)
    assert [text for text in shown.evaluate(WIDER) if text.startswith(("FIG", "B ", "SPAN"))] == []
    below = int(re.search(r"[0-9]+", shown.locator("#runs-below").inner_text())[0])
    assert 0 < below < 12
    shown.locator("#runs-table").evaluate("box => box.scrollTo(0, 9999)")
    expect(shown.locator("#runs-below")).to_be_hidden()


CONTRASTS = """() => {
    const light = colour => {
        const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map(part => part / 255)
            .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (...both) => {
        const [dark, pale] = both.map(light).sort((a, b) => a - b);
        return (pale + 0.05) / (dark + 0.05);
    };
    const ground = node => {
        const own = getComputedStyle(node).backgroundColor;
        return /, 0\\)$/.test(own) && node.parentElement ? ground(node.parentElement) : own;
    };
    const low = new Set();
    for (const node of document.querySelectorAll("body *")) {
        const style = getComputedStyle(node);
        const isText = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
        if (!node.getClientRects().length || node.disabled || node.closest("noscript, .u-legend")) continue;
        if (isText && (contrast(style.color, ground(node)) < 4.5 || style.opacity < 1))
            low.add(`${node.tagName}.${node.className} ${style.color} on ${ground(node)}`);
        if (node.matches("input:not([type=range]), select, button:not(.plain, .sort, .run, .picture)") &&
            contrast(style.borderTopColor, ground(node.parentElement)) < 3) low.add(`border of ${node.outerHTML}`);
        const drawn = style.borderTopStyle === "none" ? style.backgroundColor : style.borderTopColor;
        if (node.matches(".swatch, .bar i") && contrast(drawn, ground(node.parentElement)) < 3)
            low.add(`${node.className} ${drawn}`);
    }
    return [...low];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_graphics_have_enough_contrast_and_curves_are_told_in_words(scheme: str, place, opened) -> None:
    page = opened(place.page.address, scheme=scheme)
    for name in ("first", "second"):
        page.get_by_label(f"Overlay {name}").check()
    page.wait_for_selector("#metric-tables td[data-value]")
    for state in ("running", "done", "failed", "silent", "stopped", "waiting", "lost"):
        page.evaluate("state => { document.querySelector('#run-state').dataset.state = state; }", state)
        assert page.evaluate(CONTRASTS) == []
    words = re.compile(r"^Loss over updates\. .*second, validation.*: from [0-9.]+ at \d+ to [0-9.]+ at \d+, lowest ")
    expect(page.locator('[data-curve="loss"] .plot')).to_have_attribute("aria-label", words)
    assert "forward: from" in page.locator("#time-chart .plot").get_attribute("aria-label")


def test_nothing_jumps_while_the_page_fills(place, opened) -> None:
    page = opened(place.page.address)
    page.wait_for_selector('[data-curve="loss"] canvas')
    expect(page.locator("#log")).not_to_be_empty()
    assert page.evaluate("window.shifts") < 0.1, "Web Vitals call a layout shift below 0.1 good"


def test_the_page_says_that_the_program_has_ended(tmp_path: Path, served, opened) -> None:
    write_run(tmp_path / "runs" / "one")
    program = served(tmp_path / "runs")
    page = opened(program.address, forgiven="NETWORK_CHANGED|CONNECTION_REFUSED")
    page.wait_for_load_state("networkidle")  # An open request would be reset.
    program.end()
    expect(page.locator('#connection[data-state="gone"]')).to_contain_text("ended")


TEXTS = {
    "zero": ("", 0.0, "0"),
    "none": ("", None, "–"),
    "small": ("", 1.234e-5, "1.234e-5"),
    "nearly a thousandth": ("", 0.00099999, "0.001000"),
    "negative": ("", -0.0051, "-0.005100"),
    "thousands": ("", 123456.7, "123,500"),
    "rounds to a million": ("", 999999.9, "1.000e6"),
    "below a million": ("", 999949.0, "999,900"),
    "a tie goes to the even digit": ("", 1234.5, "1,234"),
    "a tie goes up to the even digit": ("", 1235.5, "1,236"),
    "share": ("%", 0.0518, "5.18%"),
    "share, a tie goes to the even digit": ("%", 97 / 800, "12.12%"),
    "share of none": ("%", None, "–"),
    "small share": ("%", 5e-6, "5.00e-4%"),
    "smaller than two decimals": ("%", 0.00005, "0.00500%"),
    "share of a model that diverged": ("%", 1.2345e7, "1.23e9%"),
    "score that is nearly 1": ("score", 0.99996, "0.999960"),
    "score that is as good as 1": ("score", 0.99999999, "0.999999"),
    "score of 1": ("score", 1.0, "1.000"),
}
"""The unit and the value of a metric, and its text, which Python and the page must both write."""
PAGE_TEXTS = """async cases => {
    const { valueText } = await import(new URL("static/format.js", location).href);
    return cases.map(([metric, value]) => valueText(metric, value));
}"""


def test_numbers_are_written_as_everywhere(place, opened) -> None:
    cases = [(Metric("", unit.replace("score", ""), score=unit == "score"), value) for unit, value, _ in TEXTS.values()]
    wanted = {name: text for name, (_, _, text) in TEXTS.items()}
    assert dict(zip(TEXTS, (metric.bare_text(value) for metric, value in cases), strict=True)) == wanted
    shown = opened(place.page.address).evaluate(PAGE_TEXTS, [[asdict(metric), value] for metric, value in cases])
    assert {name: text.replace("\u202f%", "%") for name, text in zip(TEXTS, shown, strict=True)} == wanted


@pytest.fixture
def hostile(tmp_path: Path, served) -> Page:
    for seed in (1, 2):
        write_run(tmp_path / "runs" / f"{RUN}{seed}{MARKUP.replace('/', '')}", seed)
    return served(*sorted((tmp_path / "runs").iterdir()))


def test_a_stranger_s_texts_stay_texts(hostile: Page, opened) -> None:
    """Markup in another user's names, settings, log lines, metrics, plan and file names is shown as text."""
    page = opened(hostile.address)
    page.wait_for_selector("#metric-tables td[data-value]")
    page.locator("#more summary").click()
    page.locator("#settings summary").click()
    page.wait_for_selector(".picture img")
    assert page.locator('img[src="x"], main script, h1 b').count() == 0
    assert RUN in page.locator("#run-name").inner_text()
    for part in ("#log", "#metric-tables", "#settings-table", "#trouble", "#ranks", "#picture-groups"):
        expect(page.locator(part)).to_contain_text(MARKUP)
    assert no_sideways_scrolling(page)
