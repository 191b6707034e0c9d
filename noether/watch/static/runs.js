// The table of all runs: sort by a setting or a metric, filter by words and comparisons, save as CSV.

import { at, fill, h, put } from "./dom.js";
import { count, titled, valueText } from "./format.js";

const state = { rows: [], described: {}, listed: [], by: "", down: false, look: () => {} };
const COMPARED = /^(.+?)(<=|>=|!=|=|<|>)(.*)$/;

/** Return the table's columns: the run, its headline metrics, and the settings in which runs differ. */
function columns() {
  const headlines = Object.values(state.described).filter((metric) => metric.headline || metric.name === "loss");
  const there = headlines.filter((metric) => state.rows.some((row) => typeof row.metrics[metric.name] === "number"));
  return [
    { name: "name", title: "run", of: (row) => row.name }, { name: "state", title: "state", of: (row) => row.state },
    { name: "update", title: "update", of: (row) => row.update, text: count, n: true },
    { name: "split", title: "split", of: (row) => row.split },
    ...there.map((metric) => ({ name: metric.name, title: titled(metric), of: (row) => row.metrics[metric.name], text: (value) => valueText(metric, value), n: true })),
    ...Object.keys(state.rows[0]?.settings ?? {}).map((name) => ({ name, title: name, of: (row) => row.settings[name], n: true })),
  ];
}

const asNumber = (value) => (value === null || value === "" ? NaN : Number(value));

/** Return whether a row contains a filter's words and meets its comparisons: "model.kind=upt loss<0.1 baseline". */
function fits(row, all, words) {
  return words.every((word) => {
    const found = COMPARED.exec(word);
    const column = found && all.find((one) => one.name.toLowerCase() === found[1] || one.name.toLowerCase().endsWith(`.${found[1]}`) || one.title.toLowerCase() === found[1]);
    if (!column) return all.some((one) => String(one.of(row) ?? "").toLowerCase().includes(word));
    const [value, wanted] = [column.of(row), found[3]];
    const [a, b] = [asNumber(value), asNumber(wanted)];
    const same = Number.isNaN(a) || Number.isNaN(b) ? String(value ?? "").toLowerCase() === wanted : a === b;
    return { "=": same, "!=": !same, "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b }[found[2]];
  });
}

function shown() {
  const all = columns();
  const words = at("runs-filter").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const rows = state.rows.filter((row) => fits(row, all, words));
  const column = all.find((one) => one.name === state.by);
  if (column) {
    const missing = (value) => value === null || value === undefined || value === "";
    rows.sort((left, right) => {
      const [a, b] = [column.of(left), column.of(right)];
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      const [x, y] = [asNumber(a), asNumber(b)];
      const way = Number.isNaN(x) || Number.isNaN(y) ? String(a).localeCompare(String(b), "en", { numeric: true }) : x - y;
      return state.down ? -way : way;
    });
  }
  return { all, rows };
}

export function drawRuns() {
  const { all, rows } = shown();
  at("all-runs").hidden = state.rows.length < 2;
  put("runs-count", rows.length === state.rows.length ? count(rows.length) : `${count(rows.length)} of ${count(state.rows.length)}`);
  const cells = rows.map((row) => [row.key, ...all.map((one) => one.of(row) ?? null)]);
  fill("runs-table", [all.map((one) => one.title), cells, state.by, state.down], () => h("table", { class: "wide" },
    h("thead", {}, h("tr", {}, all.map((one) => h("th", { class: one.n ? "n" : null, "aria-sort": one.name === state.by ? (state.down ? "descending" : "ascending") : "none" },
      h("button", { type: "button", class: "sort", click: () => sort(one.name) }, one.title.replaceAll(".", ".\u200b"), one.name === state.by ? (state.down ? " ↓" : " ↑") : ""))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, all.map((one, place) => {
      const value = one.of(row);
      const text = value === null || value === undefined ? "–" : one.text ? one.text(value) : String(value);
      return h("td", { class: one.n ? "n" : null }, place ? text : h("button", { type: "button", class: "plain", "aria-label": `Look at ${text}`, click: () => state.look(row.key) }, text));
    }))))));
  sayBelow();
}

/** Show how many rows are below the edge of the table's box. */
function sayBelow() {
  const edge = at("runs-table").getBoundingClientRect().bottom;
  const below = [...at("runs-table").querySelectorAll("tbody tr")].filter((row) => row.getBoundingClientRect().bottom > edge + 1).length;
  at("runs-below").hidden = !below;
  put("runs-below", `↓ ${count(below)} more ${below === 1 ? "run" : "runs"} below: scroll the table`);
}

function sort(name) {
  state.down = state.by === name && !state.down;
  state.by = name;
  drawRuns();
}

/** Fetch the table's rows and draw them. */
export async function readRuns(fetchJson, signal, listed) {
  const answer = await fetchJson("api/table", signal);
  const about = new Map(listed.map((run) => [run.key, run]));
  state.described = answer.described;
  state.rows = answer.runs.filter((row) => about.has(row.key)).map((row) => ({ ...about.get(row.key), ...row }));
  drawRuns();
}

function asCsv() {
  const { all, rows } = shown();
  const quoted = (value) => { const text = String(value ?? ""); return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
  return [all.map((one) => one.name), ...rows.map((row) => all.map((one) => one.of(row)))].map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n";
}

export function setUpRuns(look) {
  state.look = look;
  at("runs-filter").addEventListener("input", drawRuns);
  at("runs-table").addEventListener("scroll", sayBelow);
  new ResizeObserver(sayBelow).observe(at("runs-table"));
  at("runs-csv").addEventListener("click", () => {
    const link = h("a", { href: URL.createObjectURL(new Blob([asCsv()], { type: "text/csv" })), download: "runs.csv" });
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
