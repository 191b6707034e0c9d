// The end of one rank's log, updated as the file grows.

import { at, h } from "./dom.js";
import { fetchJson } from "./fetch.js";

const MOST_CHARACTERS = 400000;
let of = "";
let next = null;

/** List the ranks that have a log. */
export function logRanks(run) {
  const wanted = run.ranks.filter((rank) => rank.has_log).map((rank) => rank.rank);
  const select = at("log-rank");
  if (JSON.stringify([...select.options].map((option) => Number(option.value))) === JSON.stringify(wanted)) return;
  const before = select.value;
  select.replaceChildren(...wanted.map((rank) => h("option", { value: rank }, rank)));
  if (wanted.includes(Number(before)) && before !== "") select.value = before;
}

/** Append the log's new text. Start again if a shorter log has replaced it. */
export async function readLog(key, signal) {
  const rank = at("log-rank").value;
  const box = at("log");
  if (rank === "") {
    box.textContent = "";
    of = "";
    return;
  }
  const name = `${key}/log/${rank}`;
  if (name !== of) {
    of = name;
    next = null;
    box.textContent = "";
  }
  const part = await fetchJson(`api/run/${name}${next === null ? "" : `?from=${next}`}`, signal);
  if (name !== of) return;
  if (next !== null && part.from !== next) box.textContent = "";
  const follow = at("log-follow").checked;
  if (part.text) box.append(document.createTextNode(part.text));
  while (box.childNodes.length > 1 && box.textContent.length > MOST_CHARACTERS) box.firstChild.remove();
  if (follow && part.text) box.scrollTop = box.scrollHeight;
  next = part.next;
}
