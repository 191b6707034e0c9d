// The ticked runs' metrics side by side, and the settings in which they differ.

import { fill, h, table } from "./dom.js";
import { titled, valueText } from "./format.js";

function best(metric, values) {
  const known = values.filter((value) => typeof value === "number");
  if (known.length < 2 || !metric.better) return null;
  return metric.better === "lower" ? Math.min(...known) : Math.max(...known);
}

function metricsTable(title, runs, values, described, note) {
  const rows = Object.entries(values).map(([name, ofEach]) => {
    const metric = described[name];
    const winner = best(metric, ofEach);
    return [{ text: titled(metric), title: name }, ...ofEach.map((value) => ({
      text: valueText(metric, value), value: value ?? "", title: value === null ? "not known" : String(value),
      kind: `n${value !== null && value === winner ? " best" : ""}`,
    }))];
  });
  return h("div", {}, h("h3", {}, title), note ? h("p", { class: "note" }, note) : null,
    table(["", ...runs.map((run, number) => ({ text: run.name, title: run.name, kind: `n run-${number}` }))], rows, "metrics"));
}

export function compare(answer) {
  const { runs, settings, final, latest, described } = answer;
  fill("settings-differ", [runs, settings], () => {
    if (runs.length < 2) return [];
    const rows = Object.entries(settings).map(([name, values]) => [{ text: name, kind: "mono" }, ...values.map((value) => ({ text: value ?? "–", kind: "mono n" }))]);
    return [h("h3", {}, "Settings that differ"), rows.length
      ? table(["setting", ...runs.map((run) => ({ text: run.name, title: run.name, kind: "n" }))], rows, "differ")
      : h("p", { class: "absent" }, "These runs have the same settings.")];
  });
  fill("metric-tables", [runs, final, latest], () => {
    const parts = [];
    const mark = runs.length > 1 ? "Bold: the best of each row, if it is known whether lower or higher is better." : "";
    if (Object.keys(final).length) parts.push(metricsTable("Final metrics", runs, final, described, mark));
    if (Object.keys(latest.values).length) parts.push(metricsTable("Last evaluation while training", runs, latest.values, described, latest.of.filter(Boolean).join("; ")));
    return parts.length ? parts : h("p", { class: "absent" }, "No evaluation yet.");
  });
}
