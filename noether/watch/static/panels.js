// The panels on one run: overview, ranks, attempts, checkpoints, plan, settings.

import { at, facts, fill, h, keyed, put, table } from "./dom.js";
import { ago, brief, clock, count, duration, number, percent, valueText, words } from "./format.js";
import { BAND_COLOURS, RUN_COLOURS } from "./charts.js";

/** Show metrics such as ["surface_pressure", "5.18%"], the first one large. */
function lines(node, note, shown, rest) {
  const spaced = (text) => text.replace("%", "\u202f%");
  const [first, ...others] = shown ?? [];
  put(node, first ? spaced(first[1]) : "–");
  const named = first ? [words(first[0]), ...others.map(([of, text]) => `${words(of)} ${spaced(text)}`)] : [];
  put(note, [...named, rest].filter(Boolean).join("\n"));
}

export function glance(run) {
  put("run-name", run.name);
  document.title = `${run.update !== null && run.total ? `${Math.floor((100 * run.update) / run.total)} % ` : ""}${run.name} – noether watch`;
  const badge = at("run-state");
  put(badge, run.state);
  badge.dataset.state = run.state;
  put("run-why", run.why);
  const share = run.total && run.update !== null ? Math.min(1, run.update / run.total) : 0;
  at("progress-bar").style.width = `${100 * share}%`;
  at("progress").setAttribute("aria-valuenow", String(Math.floor(100 * share)));
  at("progress").dataset.state = run.state;
  const left = run.seconds_left;
  put("progress-text", [
    run.update === null ? "no update yet" : `update ${count(run.update)}${run.total ? ` of ${count(run.total)}, ${percent(share, 3)}` : ""}`,
    run.epoch === null ? null : `epoch ${brief(run.epoch)}${run.epochs ? ` of ${brief(run.epochs)}` : ""}`,
    typeof left === "number" ? `${duration(left)} left, until about ${clock(run.now + left)}` : null,
  ].filter(Boolean).join(" · "));
  tiles(run);
  const trouble = [
    run.reading < 1 ? `Reading the history: ${percent(run.reading, 2)}.` : "",
    run.damaged ? `${count(run.damaged)} damaged ${run.damaged === 1 ? "line" : "lines"} of metrics.jsonl left out.` : "",
    ...(run.plan.warnings ?? []),
  ].filter(Boolean).join(" ");
  at("trouble").hidden = !trouble;
  put("trouble", trouble);
}

function tiles(run) {
  const { pace, result } = run;
  put("tile-loss", number(pace.loss));
  put("tile-loss-note", pace.memory_mib === null ? "" : `peak memory ${number(pace.memory_mib)} MiB`);
  put("tile-best-title", result ? `Final, ${result.split ?? "test"} split` : "Best so far");
  if (result) lines("tile-best", "tile-best-note", result.shown, result.weights);
  else lines("tile-best", "tile-best-note", run.best?.shown, run.best ? `at update ${count(run.best.update)}` : "");
  lines("tile-last", "tile-last-note", run.last?.shown, run.last ? `${run.last.split}, update ${count(run.last.update)}` : "no evaluation yet");
  put("tile-pace", pace.samples_per_second === null ? "–" : `${number(pace.samples_per_second)} /s`);
  put("tile-pace-note", `samples${pace.device_use === null ? "" : `, device busy ${valueText({ unit: "%" }, pace.device_use)}`}`);
  const slow = pace.slowest ?? run.time?.slowest;
  put("tile-slowest", slow && slow.rank !== undefined ? `rank ${slow.rank}` : run.ranks.length === 1 ? "one rank" : "–");
  put("tile-slowest-note", slow && slow.rank !== undefined ? `${slow.host ?? ""}, ${percent(slow.behind, 2)} behind the others` : run.ranks.length === 1 ? "no other rank to wait for" : "");
  put("tile-sign", ago(run.last_sign, run.now));
  const first = run.ranks.find((rank) => rank.host);
  put("tile-sign-note", first ? `${run.ranks.length} ${run.ranks.length === 1 ? "rank" : "ranks"} on ${[...new Set(run.ranks.map((rank) => rank.host).filter(Boolean))].slice(0, 3).join(", ")}` : "");
}

export function ranks(run, onLog) {
  const body = at("rank-table").tBodies[0];
  keyed(body, run.ranks, (rank) => rank.rank, (rank) => h("tr", {},
    h("td", {}, rank.rank), h("td"), h("td", { class: "mono" }), h("td", {}, h("span", { class: "badge small" })), h("td", { class: "n" }),
    h("td", {}, h("button", { type: "button", class: "plain", click: () => onLog(rank.rank), "aria-label": `Log of rank ${rank.rank}` }, "log"))),
  (row, rank) => {
    put(row.cells[1], rank.host ?? "–");
    put(row.cells[2], rank.device || "–");
    const badge = row.cells[3].firstElementChild;
    put(badge, rank.state + (rank.slowest ? ", slowest" : ""));
    badge.dataset.state = rank.state;
    put(row.cells[4], ago(rank.last_sign, run.now));
    row.cells[5].firstElementChild.hidden = !rank.has_log;
  });
  if (run.attempts.length) {
    fill("attempts", run.attempts, (attempts) => table(
      ["attempt", "host", "job", "began", { text: "from update", kind: "n" }, { text: "to", kind: "n" }, "ended by"],
      attempts.map((one) => [one.number, one.host, one.job || "–", one.started.replace("T", " "), { text: count(one.start_update), kind: "n" },
        { text: count(one.last_update), kind: "n" }, one.outcome ?? (run.state === "running" ? "still running" : "unknown")])));
  }
}

export function checkpoints(run) {
  if (!run.checkpoints.length) return;
  fill("checkpoint-table", run.checkpoints, (rows) => table(
    ["checkpoint", { text: "epoch", kind: "n" }, { text: `validation ${run.selected_by.title}`, kind: "n" }, { text: "size", kind: "n" }, "saved", ""],
    [...rows].reverse().map((row) => [{ text: row.name, kind: "mono" }, { text: brief(row.epoch, 4), kind: "n" }, { text: valueText(run.selected_by, row.metric), kind: "n" },
      { text: row.size, kind: "n" }, clock(row.saved), [row.best ? "best" : "", row.latest ? "latest" : ""].filter(Boolean).join(", ")])));
}

export function plan(run) {
  const { plan: known } = run;
  if (known.world_size) {
    fill("plan-facts", known, () => [
      facts([
        ["launcher", known.launcher], ["ranks", `${count(known.world_size)} on ${(known.nodes ?? []).length || 1} ${(known.nodes ?? []).length > 1 ? "nodes" : "node"}`],
        ["batch", known.batch && `${count(known.batch.effective)} = ${count(known.world_size)} × ${count(known.batch.micro)} × ${count(known.batch.accumulation_steps)}`],
        ["length", known.length && `${count(known.length.total_updates)} ${known.length.total_updates === 1 ? "update" : "updates"}, ${count(known.length.updates_per_epoch)} an epoch`],
        ["data", known.data && Object.entries(known.data).map(([split, size]) => `${count(size)} ${split}`).join(", ")],
        ["model", known.model && `${known.model.kind}, ${count(known.model.parameters)} parameters`],
        ["rendezvous", known.endpoint && `${known.endpoint.host}, port ${known.endpoint.port || "chosen at launch"}`],
      ]),
      h("h3", {}, "Reasons"), facts(Object.entries(known.reasons ?? {}).map(([name, reason]) => [words(name), String(reason)])),
    ]);
  }
  const wanted = at("settings-find").value.trim().toLowerCase();
  const entries = Object.entries(run.settings).filter(([name, value]) => !wanted || `${name} ${value}`.toLowerCase().includes(wanted));
  fill("settings-table", entries, () => table(["setting", "value"], entries.map(([name, value]) => [{ text: name, kind: "mono" }, { text: value, kind: "mono" }])));
  fill("environment", run.environment, (all) => facts(Object.entries(all).map(([name, value]) => [words(name), value])));
}

/** Show how the time was spent by each run's last log lines and, once a run has ended, each rank's seconds. */
export function time(runs, colours) {
  fill("time-bars", runs.map((run) => [run.name, run.pace.bands]), () => runs.filter((run) => Object.keys(run.pace.bands).length).map((run) => {
    const bar = h("div", { class: "bar", role: "img", "aria-label": Object.entries(run.pace.bands).map(([name, share]) => `${name} ${percent(share, 2)}`).join(", ") });
    Object.entries(run.pace.bands).forEach(([name, share], place) => {
      const part = h("i", { title: `${name} ${percent(share, 2)}` }, share > 0.09 ? percent(share, 2) : "");
      part.style.width = `${100 * share}%`;
      part.style.setProperty("--key", `var(--${BAND_COLOURS[place]})`);
      part.classList.toggle("pale", BAND_COLOURS[place] === "pale");
      bar.append(part);
    });
    const swatch = h("i", { class: "swatch" });
    swatch.style.setProperty("--key", `var(--${RUN_COLOURS[(colours.get(run.key) ?? 0) % RUN_COLOURS.length]})`);
    return h("div", { class: "time-row" }, h("span", { class: "who" }, runs.length > 1 ? swatch : "", runs.length > 1 ? run.name : "last 20 lines"), bar);
  }));
  const ended = runs.filter((run) => run.time);
  fill("time-table", ended.map((run) => [run.name, run.time]), () => ended.map((run) => {
    const parts = Object.keys(run.time.parts);
    const seconds = (value) => ({ text: brief(value), kind: "n" });
    const rows = [["mean", ...parts.map((part) => seconds(run.time.parts[part]))],
      ...run.time.ranks.map((rank, place) => [`rank ${place}`, ...parts.map((part) => seconds(rank?.[part]))])];
    return h("details", {}, h("summary", {}, `Seconds of the last attempt${runs.length > 1 ? ` of ${run.name}` : ""}: ${duration(run.time.seconds)}`),
      table(["", ...parts.map((part) => ({ text: part, kind: "n" }))], rows));
  }));
}
