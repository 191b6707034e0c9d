// The pictures of a run, and the viewer that enlarges one.

import { at, fill, h, put } from "./dom.js";

let listed = [];
let shown = 0;
let base = "";

const address = (picture) => `${base}/picture/${picture.id}`;

function show(number) {
  shown = (number + listed.length) % listed.length;
  const picture = listed[shown];
  at("viewer-image").src = address(picture);
  at("viewer-image").alt = picture.alt;
  put("viewer-title", `${picture.group}: ${picture.title}`);
  put("viewer-note", [picture.note, picture.seen].filter(Boolean).join(". "));
  if (!at("viewer").open) at("viewer").showModal();
}

export function setUpViewer() {
  at("viewer-back").addEventListener("click", () => show(shown - 1));
  at("viewer-on").addEventListener("click", () => show(shown + 1));
  at("viewer").addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") show(shown - 1);
    if (event.key === "ArrowRight") show(shown + 1);
  });
  at("viewer").addEventListener("click", (event) => { if (event.target === at("viewer")) at("viewer").close(); });
}

const drawn = (event) => event.target.parentElement.classList.add("drawn");
const failed = (event) => event.target.parentElement.classList.add("failed");

const seenOf = (rows) => [...rows.values()][0][0][0].seen; // All rows of a group show the same field.

export function pictures(run) {
  listed = run.pictures;
  base = `api/run/${run.key}`;
  fill("picture-groups", [run.key, listed], () => {
    if (!listed.length) return h("p", { class: "absent" }, "Pictures appear here once an evaluation has saved fields, or if the run's folder contains image files.");
    const groups = new Map();
    listed.forEach((picture, number) => {
      const group = groups.get(picture.group) ?? groups.set(picture.group, new Map()).get(picture.group);
      const row = group.get(picture.note) ?? group.set(picture.note, []).get(picture.note);
      row.push([picture, number]);
    });
    return [...groups].map(([group, rows]) => h("div", { class: "picture-group" }, h("h3", {}, group), seenOf(rows) ? h("p", { class: "note" }, seenOf(rows)) : null,
      [...rows].map(([note, entries]) => h("div", {}, note ? h("p", { class: "note" }, note) : null,
        h("div", { class: "picture-row" }, entries.map(([picture, number]) => h("button", { type: "button", class: "picture", click: () => show(number), "aria-label": `Open: ${picture.alt}` },
          h("img", { src: address(picture), alt: picture.alt, loading: "lazy", decoding: "async", load: drawn, error: failed }), h("span", {}, picture.title))))))));
  });
}
