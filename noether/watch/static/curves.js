// Which charts a page shows of the runs that are ticked, and which lines each chart has.

import { at, h } from "./dom.js";
import { LineChart, RUN_COLOURS } from "./charts.js";
import { words } from "./format.js";

const TITLES = {
  loss: "Loss", learning_rate: "Learning rate", samples_per_second: "Samples per second", gradient_norm: "Gradient norm",
  memory_mib: "Memory, MiB", device_use: "Device use",
};
const FIRST = ["loss"];
const THEN = ["learning_rate", "samples_per_second", "gradient_norm"];
const MOST_CHARTS = 60;

/** "validation (ema)/surface_pressure/mae" → split "validation", weights "ema", figure "surface_pressure/mae". */
function parsed(name) {
  const slash = name.indexOf("/");
  const tag = name.slice(0, slash);
  const match = /^(.*) \((.*)\)$/.exec(tag);
  return { split: match ? match[1] : tag, weights: match ? match[2] : "", figure: name.slice(slash + 1) };
}

const title = (figure) => TITLES[figure] ?? figure.split("/").map(words).join(": ").replace("relative l2", "relative L2");

/** The charts, those at the top first: loss, what is relative to a field's size, learning rate, pace; then all others. */
function order(figures) {
  const shown = (figure) => FIRST.includes(figure) || /^[^/]+\/relative_l2$/.test(figure) || figure === "accuracy";
  const top = [...FIRST.filter((figure) => figures.has(figure)), ...[...figures].filter((figure) => shown(figure) && !FIRST.includes(figure)),
    ...THEN.filter((figure) => figures.has(figure))];
  return { top, rest: [...figures].filter((figure) => !top.includes(figure)).slice(0, MOST_CHARTS) };
}

export class Curves {
  constructor(onRange) {
    this.onRange = onRange;
    this.charts = new Map();
    at("more").addEventListener("toggle", () => this.redraw());
  }

  /** Shows runs, each {key, name, curves}; `colours` gives each run's place in the palette. */
  show(runs, colours, view) {
    this.last = [runs, colours, view];
    const lines = new Map();
    for (const run of runs) {
      for (const [name, [x, y]] of Object.entries(run.curves)) {
        const { split, weights, figure } = parsed(name);
        const isTraining = split === "training";
        const main = weights !== "raw" || !(name.replace("(raw)", "(ema)") in run.curves);
        const one = runs.length === 1;
        const line = {
          label: `${one ? "" : `${run.name}, `}${split}${weights ? `, ${weights} weights` : ""}`, x, y,
          colour: one ? (isTraining && figure === "loss" ? "muted" : main ? "accent" : "second") : RUN_COLOURS[colours.get(run.key) % RUN_COLOURS.length],
          faded: isTraining && figure === "loss" && !one, width: isTraining && figure === "loss" ? 1 : 1.75,
          dash: isTraining || main ? undefined : [5, 4], points: !isTraining && x.length < 60,
        };
        if (!lines.has(figure)) lines.set(figure, []);
        lines.get(figure).push(line);
      }
    }
    const { top, rest } = order(new Set(lines.keys()));
    const wanted = new Set([...top, ...(at("more").open ? rest : [])]);
    at("more").hidden = !rest.length;
    for (const [figure, chart] of this.charts) {
      if (!wanted.has(figure)) {
        chart.destroy();
        this.charts.delete(figure);
      }
    }
    for (const [figures, place] of [[top, at("charts")], [at("more").open ? rest : [], at("more-charts")]]) {
      figures.forEach((figure, number) => {
        let chart = this.charts.get(figure);
        if (!chart) {
          chart = new LineChart(title(figure), figure, this.onRange);
          this.charts.set(figure, chart);
        }
        if (place.children[number] !== chart.node) place.insertBefore(chart.node, place.children[number] ?? null);
        chart.show(lines.get(figure), { log: view.log && !["samples_per_second", "device_use", "memory_mib", "accuracy"].includes(figure), low: view.low, high: view.high });
      });
    }
    this.keys(runs, colours);
  }

  keys(runs, colours) {
    const one = runs.length === 1;
    const entries = one ? [["training", "muted", ""], ["validation, averaged weights", "accent", ""], ["validation, raw weights", "second", "dashed"]]
      : runs.map((run) => [run.name, RUN_COLOURS[colours.get(run.key) % RUN_COLOURS.length], ""]);
    at("keys").replaceChildren(...entries.map(([text, colour, kind]) => {
      const swatch = h("i", { class: `swatch line ${kind}` });
      swatch.style.setProperty("--key", `var(--${colour})`);
      return h("span", {}, swatch, text);
    }), ...(one ? [] : [h("span", { class: "note" }, "thin: training loss; with points: validation; dashed: raw weights")]));
  }

  redraw() {
    if (this.last) this.show(...this.last);
  }
}
