// Build the page's elements from text only, so that nothing in a run can become markup.

/** Create an element. Attributes that are false, null or undefined are left out; functions become listeners. */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

/** Return the element with an id. */
export const at = (id) => document.getElementById(id);

/** Set an element's text only if it differs, so that a selection in it is kept. */
export function put(node, text) {
  const element = typeof node === "string" ? at(node) : node;
  const wanted = text === "" || text === null || text === undefined ? "\u00a0" : String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

const shown = new WeakMap();

/** Refill an element only if its data has changed since the last call. */
export function fill(node, data, make) {
  const element = typeof node === "string" ? at(node) : node;
  const text = JSON.stringify(data);
  if (shown.get(element) === text) return;
  shown.set(element, text);
  element.replaceChildren(...[make(data)].flat().filter(Boolean));
}

/** Keep one child per item, matched by key, so that the focus is kept; `update` updates a child's content. */
export function keyed(parent, items, keyOf, create, update) {
  const before = new Map([...parent.children].filter((child) => child.dataset.key).map((child) => [child.dataset.key, child]));
  let place = null;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = before.get(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    before.delete(key);
    update(child, item);
    const next = place ? place.nextElementSibling : parent.firstElementChild;
    if (next !== child) parent.insertBefore(child, next);
    place = child;
  }
  for (const child of before.values()) child.remove();
}

/** Create a table from a head and rows of cells; a cell is a text, an element, or {text, kind, title, value}. */
export function table(head, rows, kind = "") {
  const cell = (tag, content) => {
    if (content instanceof Node) return h(tag, {}, content);
    if (content !== null && typeof content === "object") {
      return h(tag, { class: content.kind, title: content.title, "data-value": content.value }, content.text);
    }
    return h(tag, {}, content ?? "–");
  };
  return h("div", { class: "scroll", tabindex: 0 }, h("table", { class: kind },
    h("thead", {}, h("tr", {}, head.map((one) => cell("th", one)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((one) => cell("td", one)))))));
}

/** Create a list of names and values; empty values are left out. */
export function facts(entries) {
  return h("dl", { class: "facts" }, entries.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}
