// The page: keep track of the ticked runs and the one in focus, and poll for updates once a second.

import { at, fill, h, keyed, put } from "./dom.js";
import { along, Curves, updateAt } from "./curves.js";
import { BAND_COLOURS, RUN_COLOURS, TimeStrip } from "./charts.js";
import { compare } from "./compare.js";
import { fetchJson, Gone } from "./fetch.js";
import { count, duration, percent } from "./format.js";
import { logRanks, readLog } from "./logs.js";
import { checkpoints, glance, plan, ranks, time } from "./panels.js";
import { pictures, setUpViewer } from "./pictures.js";
import { drawRuns, readRuns, setUpRuns } from "./runs.js";

const PAUSE_MS = 1000;
const MOST_OVERLAID = 8;
const state = { listed: [], ticked: [], focus: null, details: new Map(), curves: new Map(), low: null, high: null, turn: 0, colours: new Map(), said: "" };
let wake = () => {};
let isCalled = false;
const call = () => { isCalled = true; wake(); };

const several = document.body.classList.contains("several");
const focused = () => state.curves.get(state.focus);
const way = () => at("along").value;
const view = () => ({ log: at("log-scale").checked, smoothing: Number(at("smoothing").value), along: way(),
  low: along(focused(), way(), state.low), high: along(focused(), way(), state.high) });
const dragged = (low, high) => setRange(updateAt(focused(), way(), low), updateAt(focused(), way(), high));
const curves = new Curves(dragged);
const strip = new TimeStrip(dragged);

function setRange(low, high) {
  state.low = low === null ? null : Math.max(0, Math.floor(low));
  state.high = high === null ? null : Math.ceil(high);
  at("low").value = state.low ?? "";
  at("high").value = state.high ?? "";
  at("whole").disabled = state.low === null && state.high === null;
  for (const run of state.curves.values()) run.version = "";
  drawCurves();
  call();
}

function remember() {
  const hash = new URLSearchParams({ runs: state.ticked.join(","), focus: state.focus ?? "" });
  history.replaceState(null, "", `#${hash}`);
}

const nameOf = (key) => state.listed.find((run) => run.key === key)?.name ?? key;
const isFull = (key) => !state.ticked.includes(key) && state.ticked.length >= MOST_OVERLAID;

function look(key) {
  const old = isFull(key) ? state.focus : null;
  if (old) state.ticked = state.ticked.filter((one) => one !== old);
  state.focus = key;
  if (!state.ticked.includes(key)) tick(key, true);
  if (old) state.said = `${nameOf(key)} takes the place of ${nameOf(old)}: at most ${MOST_OVERLAID} runs can be overlaid.`;
  remember();
  drawAll();
  call();
}

function tick(key, on) {
  const isRefused = on && isFull(key);
  state.said = isRefused ? `${nameOf(key)} is not overlaid: at most ${MOST_OVERLAID} runs can be. Untick one first.` : "";
  if (!isRefused) state.ticked = [...state.ticked.filter((one) => one !== key), ...(on ? [key] : [])];
  if (!state.ticked.length) state.ticked = [key];
  if (!state.ticked.includes(state.focus)) state.focus = state.ticked[0];
  // A run keeps its colour while it is ticked.
  for (const one of state.colours.keys()) if (!state.ticked.includes(one)) state.colours.delete(one);
  for (const one of state.ticked) {
    if (state.colours.has(one)) continue;
    const taken = new Set(state.colours.values());
    state.colours.set(one, RUN_COLOURS.findIndex((_, place) => !taken.has(place)));
  }
  remember();
  drawAll();
  call();
}

function chooseAtFirst() {
  const known = new Set(state.listed.map((run) => run.key));
  const hash = new URLSearchParams(location.hash.slice(1));
  const asked = (hash.get("runs") ?? "").split(",").filter((key) => known.has(key));
  const running = state.listed.filter((run) => run.state === "running").map((run) => run.key);
  const focus = known.has(hash.get("focus")) ? hash.get("focus") : asked[0] ?? running[0] ?? state.listed[0].key;
  const named = document.body.dataset.named === "all" ? state.listed.map((run) => run.key) : [focus];
  state.focus = focus;
  for (const key of asked.length ? asked : named.slice(0, MOST_OVERLAID)) tick(key, true);
  state.focus = focus;
  remember();
}

function drawList() {
  if (!several) return;
  const wanted = at("find").value.trim().toLowerCase();
  const items = state.listed.filter((run) => !wanted || run.name.toLowerCase().includes(wanted));
  keyed(at("run-list"), items, (run) => run.key, (run) => h("li", {},
    h("input", { type: "checkbox", "aria-label": `Overlay ${run.name}`, change: (event) => tick(run.key, event.target.checked) }),
    h("button", { type: "button", class: "run", click: () => look(run.key) },
      h("span", { class: "run-name" }, run.name), h("span", { class: "run-facts" }, h("span", { class: "badge small" }), h("span", { class: "run-progress" })), h("span", { class: "thin" }, h("i")))),
  (row, run) => {
    const [box, button] = row.children;
    const on = state.ticked.includes(run.key);
    box.checked = on;
    row.style.setProperty("--key", on ? `var(--${RUN_COLOURS[state.colours.get(run.key)]})` : "transparent");
    row.classList.toggle("focus", run.key === state.focus);
    button.setAttribute("aria-current", run.key === state.focus ? "true" : "false");
    const [badge, progress] = button.children[1].children;
    put(badge, run.state);
    badge.dataset.state = run.state;
    const share = run.total && run.update !== null ? run.update / run.total : 0;
    put(progress, run.update === null ? "" : `${run.total ? percent(share, 2) : count(run.update)}${typeof run.seconds_left === "number" ? `, ${duration(run.seconds_left)} left` : ""}`);
    button.children[2].firstElementChild.style.width = `${100 * Math.min(1, share)}%`;
    button.title = run.why;
  });
  put("runs-note", state.said ? state.said : state.listed.length ? `Tick up to ${MOST_OVERLAID} runs to overlay their curves; press a name to look at that run.` : "No runs here yet; they appear when they start.");
}

function drawCurves() {
  const runs = state.ticked.map((key) => state.curves.get(key)).filter((run) => run?.curves);
  curves.show(runs, state.colours, view());
  const run = focused();
  if (run?.times) strip.show({ ...run.times, x: run.times.x.map((update) => along(run, way(), update)) }, view());
  put("smoothing-text", at("smoothing").value === "0" ? "off" : Number(at("smoothing").value).toFixed(2));
  at("curves-csv").href = `api/curves.csv?runs=${state.ticked.join(",")}`;
}

function drawDetails() {
  const run = state.details.get(state.focus);
  if (!run || run.brief) return;
  glance(run);
  ranks(run, (rank) => { at("log-rank").value = rank; at("logs").scrollIntoView(); at("log").focus(); call(); });
  checkpoints(run);
  plan(run);
  pictures(run);
  logRanks(run);
  time(state.ticked.map((key) => state.details.get(key)).filter(Boolean), state.colours);
}

function drawAll() {
  drawList();
  if (several) drawRuns();
  drawDetails();
  drawCurves();
}

async function news(signal) {
  if (!state.listed.length || (several && state.turn % 3 === 0)) {
    state.listed = (await fetchJson("api/runs", signal)).runs;
    if (state.listed.length && !state.focus) chooseAtFirst();
    drawList();
  }
  if (several && state.turn % 6 === 0 && state.listed.length) await readRuns(fetchJson, signal, state.listed);
  state.turn += 1;
  if (!state.focus) return false;
  const focus = state.focus;
  const keys = state.ticked;
  const width = Math.max(150, Math.round(at("charts").clientWidth / 3));
  const asked = new URLSearchParams({ runs: keys.join(","), buckets: width, have: keys.map((key) => state.curves.get(key)?.version ?? "").join(",") });
  if (state.low !== null) asked.set("low", state.low);
  if (state.high !== null) asked.set("high", state.high);
  const range = [state.low, state.high].join();
  const answer = await fetchJson(`api/curves?${asked}`, signal);
  let isNew = false;
  let isReading = false;
  for (const run of answer.runs) {
    if (run.curves) {
      if ([state.low, state.high].join() !== range) run.version = "";  // The range has changed meanwhile: fetch again.
      state.curves.set(run.key, run);
      isNew = true;
      isReading ||= run.reading < 1;
    }
  }
  if (isNew) drawCurves();
  for (const key of new Set([focus, ...state.ticked])) {
    if (key !== focus && state.turn % 3 !== 1 && state.details.has(key)) continue;
    const run = await fetchJson(`api/run/${key}${key === focus ? "" : "?brief=1"}`, signal);
    state.details.set(key, run);
    if (key === focus) drawDetails();
  }
  drawDetails();
  if (isNew || state.turn % 5 === 1 || keys.join() !== state.compared) {
    compare(await fetchJson(`api/compare?runs=${keys.join(",")}`, signal));
    state.compared = keys.join();
  }
  // If another run was chosen meanwhile, the list of ranks is still this run's.
  if (state.focus === focus) await readLog(focus, signal);
  return isReading;
}

async function follow() {
  for (;;) {
    const stop = new AbortController();
    let pause = PAUSE_MS;
    isCalled = false;
    try {
      if (document.hidden) pause = 60000;
      else if (await news(stop.signal)) pause = 0;
      document.body.classList.add("filled");
      put("connection", state.listed.length ? "live" : "no runs yet");
      at("connection").dataset.state = "live";
    } catch (error) {
      put("connection", error instanceof Gone ? "noether watch has ended" : error.message);
      at("connection").dataset.state = "gone";
      pause = 3 * PAUSE_MS;
      if (!(error instanceof Gone)) console.error(error);
    }
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, isCalled ? 0 : pause);
      wake = () => { clearTimeout(timer); resolve(); };
    });
    wake = () => {};
  }
}

function setUp() {
  document.querySelectorAll("[data-band]").forEach((swatch) => swatch.style.setProperty("--key", `var(--${BAND_COLOURS[Number(swatch.dataset.band)]})`));
  at("time-chart").append(strip.node);
  setUpViewer();
  for (const name of ["low", "high"]) {
    at(name).addEventListener("change", () => setRange(at("low").value === "" ? null : Number(at("low").value), at("high").value === "" ? null : Number(at("high").value)));
  }
  at("runs-form")?.addEventListener("submit", (event) => event.preventDefault());
  at("range").addEventListener("submit", (event) => event.preventDefault());
  at("whole").addEventListener("click", () => setRange(null, null));
  for (const name of ["log-scale", "along"]) at(name).addEventListener("change", drawCurves);
  at("smoothing").addEventListener("input", drawCurves);
  if (several) setUpRuns(look);
  at("log-rank").addEventListener("change", () => call());
  at("settings-find").addEventListener("input", drawDetails);
  at("find")?.addEventListener("input", drawList);
  document.addEventListener("visibilitychange", () => call());
  // Redraw, because charts use the theme's colours.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCurves);
  fill("keys", [], () => []);
  follow();
}

setUp();
