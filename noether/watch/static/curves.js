// Choose the charts for the ticked runs, and the lines of each chart.

import { at, h } from "./dom.js";
import { LineChart, RUN_COLOURS } from "./charts.js";

const THEN = ["learning_rate", "samples_per_second", "gradient_norm"];
const MACHINE = ["device_use", "cpu_cores", "memory_mib", "host_memory_mib"];
const MOST_CHARTS = 60;

/** Interpolate linearly between (xs, ys), with increasing xs; beyond the ends, return the end's value. */
export function between(xs, ys, x) {
  let [low, high] = [0, xs.length - 1];
  if (x <= xs[low]) return ys[low];
  if (x >= xs[high]) return ys[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle;
    else high = middle;
  }
  return ys[low] + ((x - xs[low]) * (ys[high] - ys[low])) / (xs[high] - xs[low]);
}

/** Convert a run's update to a position on the current x axis, and back. */
export const along = (run, way, update) => (way === "updates" || update === null || !run?.clock.x.length ? update : between(run.clock.x, run.clock[way], update));
export const updateAt = (run, way, place) => (way === "updates" || place === null || !run?.clock.x.length ? place : between(run.clock[way], run.clock.x, place));

/** Return the exponential moving average, corrected for its initial bias as in TensorBoard and W&B. */
export function smoothed(values, weight) {
  let last = 0;
  let sum = 0;
  return values.map((value) => {
    if (value === null) return null;
    last = weight * last + (1 - weight) * value;
    sum = weight * sum + 1 - weight;
    return last / sum;
  });
}

/** Group the charts: at the top loss, headline metrics, learning rate and speed; then the machine's; then the rest. */
function order(names, described) {
  const has = (wanted) => wanted.filter((name) => names.has(name));
  const top = [...has(["loss"]), ...[...names].filter((name) => described[name].headline), ...has(THEN)];
  const machine = has(MACHINE);
  return { top, machine, rest: [...names].filter((name) => !top.includes(name) && !machine.includes(name)).slice(0, MOST_CHARTS) };
}

export class Curves {
  constructor(onRange) {
    this.onRange = onRange;
    this.charts = new Map();
    at("more").addEventListener("toggle", () => this.redraw());
  }

  /** Show runs, each {key, name, curves, described, clock}; `colours` maps a run's key to its palette index. */
  show(runs, colours, view) {
    this.last = [runs, colours, view];
    const lines = new Map();
    for (const run of runs) {
      const isChief = (curve) => curve.weights && curve.selected;
      const chief = new Set(run.curves.filter(isChief).map((curve) => curve.metric));
      for (const curve of run.curves) {
        const { split, weights, metric, selected, x, y } = curve;
        const isTraining = split === "training";
        const one = runs.length === 1;
        const thin = isTraining && metric === "loss";
        const ofTraining = thin || split === "epoch"; // The split "epoch" has training means over one epoch.
        const line = {
          label: `${one ? "" : `${run.name}, `}${split}${weights ? `, ${weights}` : ""}`, x: x.map((update) => along(run, view.along, update)), y,
          colour: one ? (ofTraining ? "muted" : selected ? "accent" : "second") : RUN_COLOURS[colours.get(run.key) % RUN_COLOURS.length],
          faded: thin && !one && 0.75, width: thin ? 1 : 1.75,
          dash: selected ? undefined : [5, 4], points: !isTraining && x.length < 60,
          unsaid: !one && chief.has(metric) && !isChief(curve), // With several runs, state only one value per run.
        };
        if (!lines.has(metric)) lines.set(metric, []);
        if (view.smoothing > 0 && y.length > 3) lines.get(metric).push({ ...line, faded: 0.25, width: 1, points: false, unsaid: true }, { ...line, y: smoothed(y, view.smoothing), points: false });
        else lines.get(metric).push(line);
      }
    }
    const described = Object.assign({}, ...runs.map((run) => run.described));
    const { top, machine, rest } = order(new Set(lines.keys()), described);
    const shown = [[top, at("charts")], [machine, at("machine-charts")], [at("more").open ? rest : [], at("more-charts")]];
    const wanted = new Set(shown.flatMap(([names]) => names));
    at("more").hidden = !rest.length;
    for (const [name, chart] of this.charts) {
      if (!wanted.has(name)) {
        chart.destroy();
        this.charts.delete(name);
      }
    }
    for (const [names, place] of shown) {
      names.forEach((name, number) => {
        let chart = this.charts.get(name);
        if (!chart) {
          chart = new LineChart(described[name], this.onRange);
          this.charts.set(name, chart);
        }
        if (place.children[number] !== chart.node) place.insertBefore(chart.node, place.children[number] ?? null);
        chart.show(lines.get(name), { ...view, log: view.log && described[name].better !== "higher" && !machine.includes(name) });
      });
    }
    this.keys(runs, colours);
  }

  keys(runs, colours) {
    const one = runs.length === 1;
    const evaluated = one ? runs[0].curves.filter((curve) => curve.weights && curve.metric === "loss") : [];
    const entries = one ? [["training", "muted", ""], ...evaluated.map(({ split, weights, selected }) => [evaluated.length > 1 ? `${split}, ${weights}` : split, selected ? "accent" : "second", selected ? "" : "dashed"])]
      : runs.map((run) => [run.name, RUN_COLOURS[colours.get(run.key) % RUN_COLOURS.length], ""]);
    at("keys").replaceChildren(...entries.map(([text, colour, kind]) => {
      const swatch = h("i", { class: `swatch line ${kind}` });
      swatch.style.setProperty("--key", `var(--${colour})`);
      return h("span", {}, swatch, text);
    }), ...(one ? [] : [h("span", { class: "note" }, "thin: training loss; with points: validation; dashed: other weights than the selected ones")]));
  }

  redraw() {
    if (this.last) this.show(...this.last);
  }
}
