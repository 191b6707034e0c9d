// Line charts that share one range along the x axis, and the strip that shows how time is spent.
/* global uPlot */

import { h } from "./dom.js";
import { brief, count, percent, tickText, tickTime, titled, valueText } from "./format.js";

const HEIGHT = 228;
const SYNC = "updates";

/** Return a colour of the page in the current theme. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const RUN_COLOURS = ["accent", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"];
export const BAND_COLOURS = ["accent", "third", "second", "fourth", "muted", "pale"];

function faded(hex, share) {
  const value = parseInt(hex.slice(1), 16);
  return `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, ${share})`;
}

function axis(more) {
  return { stroke: colour("muted"), font: "11px system-ui, sans-serif", grid: { stroke: colour("line"), width: 1 },
    ticks: { show: false }, gap: 4, labelFont: "11px system-ui, sans-serif", labelSize: 15, labelGap: 0, ...more };
}

const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000];
const PLACES = {
  updates: { text: (at) => count(Math.round(at)), more: { label: "updates", values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? count(tick) : "")) } },
  epoch: { text: (at) => `epoch ${brief(at, 4)}`, more: { label: "epochs", values: (_, ticks) => ticks.map((tick) => brief(tick, 4)) } },
  seconds: { text: (at) => tickTime(at), more: { label: "time", incrs: TIMES, values: (_, ticks) => ticks.map(tickTime) } },
};
/** Return how to format positions along the x axis, depending on what it shows. */
const places = (along) => PLACES[along ?? "updates"];

/** Return the ticks of a log axis: more per decade on a short range, only decades on a long one. */
function logTicks(min, max) {
  const [first, last] = [Math.floor(Math.log10(min)), Math.ceil(Math.log10(max))];
  const steps = last - first > 3 ? [1] : Math.log10(max / min) < 0.8 ? [1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9] : [1, 2, 5];
  const every = steps.length > 1 ? 1 : Math.ceil((last - first) / 6);
  const ticks = [];
  for (let power = first; power <= last; power += every) ticks.push(...steps.map((step) => Number(`${step}e${power}`)));
  return ticks.filter((tick) => tick >= min && tick <= max);
}

/** A chart of any number of lines, whose position and size do not depend on its content. */
export class LineChart {
  constructor(metric, onRange) {
    this.metric = metric;
    this.onRange = onRange;
    this.key = "";
    this.value = h("span", { class: "at-cursor" });
    this.space = h("div", { class: "plot", role: "img" });
    this.node = h("figure", { class: "chart", "data-curve": metric.name, role: "group", "aria-label": `Chart: ${titled(metric)}` },
      h("figcaption", {}, h("b", { title: titled(metric) }, titled(metric)), this.value), this.space);
    new ResizeObserver(() => this.resize()).observe(this.space);
  }

  /** Show lines {label, x, y, colour, width, dash, points}. */
  show(lines, { log, low, high, along }) {
    this.along = along;
    this.lines = lines.filter((line) => line.x.length);
    const isLog = log && this.lines.some((line) => line.y.some((y) => y > 0));
    const tables = this.lines.map((line) => [line.x, isLog ? line.y.map((y) => (y > 0 ? y : null)) : line.y]);
    const data = tables.length ? uPlot.join(tables) : [[]];
    this.range = [low, high];
    const key = JSON.stringify([isLog, along, colour("ink"), this.lines.map((line) => [line.label, line.colour, line.width, line.dash, line.points, line.faded])]);
    if (this.plot && key === this.key) {
      this.plot.setData(data, true);
    } else {
      this.plot?.destroy();
      this.key = key;
      this.plot = new uPlot(this.options(isLog), data, this.space);
    }
    this.tell();
    this.say(null);
  }

  /** Describe the lines in words, for screen readers. */
  tell() {
    const parts = this.lines.filter((line) => !line.unsaid).map((line) => {
      const known = line.y.map((y, place) => [y, line.x[place]]).filter(([y]) => Number.isFinite(y));
      if (!known.length) return null;
      const text = ([y, x]) => `${valueText(this.metric, y)} at ${places(this.along).text(x)}`;
      const [low, high] = known.reduce(([a, b], one) => [one[0] < a[0] ? one : a, one[0] > b[0] ? one : b], [known[0], known[0]]);
      return `${line.label}: from ${text(known[0])} to ${text(known.at(-1))}, lowest ${text(low)}, highest ${text(high)}`;
    }).filter(Boolean);
    this.space.setAttribute("aria-label", `${titled(this.metric)} over ${places(this.along).more.label}. ${parts.join("; ") || "Nothing yet"}.`);
  }

  options(isLog) {
    const paddedLog = (_, min, max) => (min > 0 && Number.isFinite(max) ? [min / 1.15, max * 1.15] : [0.1, 1]);
    const padded = (_, min, max) => {
      if (min === null || !Number.isFinite(min)) return [0, 1];
      const pad = 0.06 * (max - min) || Math.abs(max) * 0.1 || 1;
      return [min >= 0 && min - pad < 0.25 * (max - min) && min - pad < 0 ? 0 : min - pad, max + pad];
    };
    return {
      width: this.space.clientWidth || 300, height: HEIGHT, legend: { show: false },
      cursor: { sync: { key: SYNC, setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { size: 6 }, y: false },
      scales: { x: { time: false, range: (_, min, max) => this.xRange(min, max) }, y: { distr: isLog ? 3 : 1, range: isLog ? paddedLog : padded } },
      axes: [axis({ size: 28, space: 64, ...places(this.along).more }), axis({ size: 62, space: 30, label: this.metric.unit || this.metric.label || titled(this.metric), values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : tickText(this.metric, tick))),
        ...(isLog ? { splits: (_, axisNumber, min, max) => logTicks(min, max), filter: (_, ticks) => ticks } : {}) })],
      series: [{}, ...this.lines.map((line) => ({
        label: line.label, spanGaps: false, dash: line.dash, width: line.width,
        stroke: line.faded ? faded(colour(line.colour), line.faded) : colour(line.colour),
        points: { show: Boolean(line.points), size: 5, fill: colour("paper"), width: 1.5 },
      }))],
      hooks: {
        setCursor: [(plot) => this.say(plot.cursor.idx)],
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width > 4) this.onRange(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
      },
    };
  }

  xRange(min, max) {
    const low = this.range[0] ?? (min === null ? 0 : Math.min(min, 0));
    const high = this.range[1] ?? (max === null ? 1 : max);
    return high > low ? [low, high] : [low, low + 1];
  }

  /** Show the values under the cursor, or else the last ones. */
  say(index) {
    const parts = this.lines.map((line, place_) => {
      if (line.unsaid) return null;
      const values = this.plot.data[place_ + 1];
      let place = index ?? values.length - 1;
      while (place >= 0 && (values[place] === null || values[place] === undefined)) place -= 1;
      return place < 0 ? null : [line, values[place]];
    }).filter(Boolean);
    const where = index === null || index === undefined ? "" : `${places(this.along).text(this.plot.data[0][index])}: `;
    this.node.classList.toggle("many", parts.length > 3);
    this.value.replaceChildren(where, ...parts.slice(0, RUN_COLOURS.length).map(([line, value]) => {
      const part = h("span", { title: line.label }, valueText(this.metric, value));
      part.style.setProperty("--key", `var(--${line.colour})`);
      part.classList.toggle("faded", Boolean(line.faded));
      return part;
    }));
  }

  resize() {
    const width = this.space.clientWidth;
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  destroy() {
    this.plot?.destroy();
    this.node.remove();
  }
}

const SHARE_OF_TIME = { name: "time", title: "Share of the time", unit: "%" };

/** A stacked chart of each part's share of the time. */
export class TimeStrip {
  constructor(onRange) {
    this.chart = new LineChart(SHARE_OF_TIME, onRange);
  }

  get node() { return this.chart.node; }

  show(times, { low, high, along }) {
    const names = Object.keys(times.bands);
    let sum = times.x.map(() => 0);
    const lines = names.map((name, number) => {
      sum = sum.map((value, place) => value + (times.bands[name][place] ?? 0));
      return { label: name, x: times.x, y: sum, colour: BAND_COLOURS[number] };
    });
    // Paint the largest sum first; each smaller one covers part of it.
    const stacked = lines.reverse();
    const chart = this.chart;
    chart.lines = stacked;
    chart.range = [low, high];
    chart.along = along;
    const key = JSON.stringify([colour("ink"), along, names]);
    const data = [times.x, ...stacked.map((line) => line.y)];
    if (chart.plot && chart.key === key) chart.plot.setData(data, true);
    else {
      chart.plot?.destroy();
      chart.key = key;
      const options = chart.options(false);
      options.scales.y = { range: () => [0, 1] };
      options.series = [{}, ...stacked.map((line) => ({ label: line.label, fill: colour(line.colour), stroke: colour(line.colour), width: 0,
        points: { show: false }, paths: uPlot.paths.stepped({ align: -1 }) }))];
      options.hooks.setCursor = [(plot) => this.say(plot.cursor.idx, times)];
      chart.plot = new uPlot(options, data, chart.space);
    }
    chart.plot.hooks.setCursor = [(plot) => this.say(plot.cursor.idx, times)];
    chart.lines = names.map((name) => ({ label: name, x: times.x, y: times.bands[name] }));
    chart.tell();
    this.say(null, times);
  }

  say(index, times) {
    const place = index ?? times.x.length - 1;
    const names = Object.keys(times.bands);
    const where = index === null || index === undefined || !times.x.length ? "" : `${places(this.chart.along).text(times.x[place])}: `;
    this.chart.value.replaceChildren(where, ...(times.x.length ? names.map((name, number) => {
      const part = h("span", { title: name }, percent(times.bands[name][place], 2));
      part.style.setProperty("--key", `var(--${BAND_COLOURS[number] === "pale" ? "ink" : BAND_COLOURS[number]})`); // Pale would be unreadable as a key.
      return part;
    }) : []));
  }
}
