"""Draw the charts of docs/performance.md and a table of goals from the benchmarks' JSON files (`make bench-charts`).

    python benchmarks/charts.py [FOLDER]

Reads FOLDER/*.json (default: benchmarks/results/bench). Writes docs/images/performance-*.svg, the part of
docs/performance.md between the two marker comments, and FOLDER/table.md. The table has every row with a goal, whether
the goal is met or missed.
"""

import json
import sys
from pathlib import Path
from typing import Any

from record import REPOSITORY, RESULTS, reached

IMAGES = REPOSITORY / "docs" / "images"
PAGE = REPOSITORY / "docs" / "performance.md"
BEGIN, END = "<!-- made by benchmarks/charts.py: begin -->", "<!-- end -->"
TITLES = {
    "performance-loop": "Updates a second of a tiny model, noether over a peer (CPU time)",
    "performance-models": "noether over a straightforward implementation (CPU time, one thread)",
    "performance-launch": "Time of noether over a peer's: less is better",
    "performance-ceiling": "Share of the measured matmul ceiling, one thread",
}
# For each chart: the benchmark, and a text that the `what` of the chart's rows contains.
CHOSEN = {
    "performance-loop": ("loop", "updates a second of noether /"),
    "performance-models": ("model_time", "a second of noether / plain"),
    "performance-launch": ("launch", "noether /"),
    "performance-ceiling": ("model_time", "share of the matmul ceiling"),
}


def load(folder: Path) -> dict[str, Any]:
    """Return the results of all benchmarks, keyed by the benchmark's name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def chosen(results: dict[str, Any], chart: str) -> list[dict[str, Any]]:
    """Return the rows that a chart shows."""
    benchmark, words = CHOSEN[chart]
    return [row for row in results.get(benchmark, {"rows": []})["rows"] if words in row["what"] or (
        benchmark == "launch" and "/ Lightning" in row["what"])]  # fmt: skip


def draw_chart(path: Path, title: str, rows: list[dict[str, Any]], *, ratio: bool) -> None:
    """Draw a bar for each row, with the range of its rounds and a mark at its goal; with `ratio`, also a line at 1."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "noether"  # Identical figures give an identical file.
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(9, 0.8 + 0.32 * len(rows)), constrained_layout=True)
    for place, row in enumerate(rows):
        missed = reached(row) is False
        axis.barh(place, row["median"], color="#c0504d" if missed else "#4f81bd", height=0.62)
        axis.plot([row["low"], row["high"]], [place, place], color="black", linewidth=1)
        if "goal" in row:
            axis.plot([row["goal"]] * 2, [place - 0.4, place + 0.4], color="#e0a000", linewidth=2.5)
        axis.text(max(row["median"], row["high"]), place, f"  {row['median']:.2f}", va="center", fontsize=8)
    if ratio:
        axis.axvline(1, color="grey", linewidth=0.8)
    names = [
        row["what"].replace(" a second of noether / plain", "").replace("updates a second of ", "") for row in rows
    ]
    axis.set_yticks(range(len(rows)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_title(title, fontsize=10)
    axis.margins(x=0.12)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table of every row that has a goal."""
    lines = ["| what | median (rounds' range) | goal |", "|---|---|---|"]
    for content in results.values():
        for row in content["rows"]:
            good = reached(row)
            if good is None:
                continue
            goal = f"{'≥' if row['at_least'] else '≤'} {row['goal']:g}"
            measured = f"{row['median']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
            lines.append(f"| {row['what']} | {measured} | {goal}{'' if good else ', **missed**'} |")
    return "\n".join(lines)


def conditions(results: dict[str, Any]) -> str:
    """Return sentences that state when and on which machine each benchmark ran."""
    said: dict[str, list[str]] = {}
    for name, content in results.items():
        about = content["machine"]
        where = f"{about['cores']} cores of {about['processor']}, torch {about['torch']}, Python {about['python']}"
        said.setdefault(f"{about['date']}, {where}", []).append(f"{name} (load {about['load']:.1f})")
    return "\n".join(f"Measured {where}: {', '.join(names)}.\n" for where, names in said.items())


def draw(folder: Path, images: Path = IMAGES, page: Path = PAGE) -> None:
    """Draw every chart that has rows; update FOLDER/table.md and the generated part of the page."""
    results, shown = load(folder), []
    if not results:
        sys.exit(f"no benchmark results in {folder}; the page is unchanged")
    for chart, title in TITLES.items():
        rows = chosen(results, chart)
        if not rows:
            continue
        draw_chart(images / f"{chart}.svg", title, rows, ratio=chart != "performance-ceiling")
        shown.append(f"![{title}](images/{chart}.svg)")
    text = page.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END, 1)[1]
    made = "\n\n".join([conditions(results), *shown])
    page.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")
    (folder / "table.md").write_text(f"# Goals and results\n\n{conditions(results)}\n{table(results)}\n")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if sys.argv[1:] else RESULTS / "bench")
