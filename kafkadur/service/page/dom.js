// Makes elements. Texts are always set as text: nothing that a message says becomes markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

let release = null, pressed = Promise.resolve();
addEventListener("pointerdown", (event) => {
  if (event.button === 0 && release === null) pressed = new Promise((resolve) => { release = resolve; });
}, { capture: true });
for (const name of ["pointerup", "pointercancel"]) {
  addEventListener(name, () => {
    const done = release;
    release = null;
    if (done !== null) setTimeout(done, 50); // the click comes after the release, of a finger a little later
  }, { capture: true });
}

// A promise that is kept when no pointer is pressed: an element that is replaced between press and release gets no click.
export function released() {
  return pressed;
}

// A table. Columns: {title, cell, number, name}; a row of a narrow screen is a card.
export function table(rows, columns, { caption, head } = {}) {
  const titles = columns.map((column) =>
    h("th", { scope: "col", class: column.number ? "number" : null, ...(head?.(column).attributes ?? {}) },
      head?.(column).content ?? column.title));
  const body = rows.map((row) => h("tr", {}, columns.map((column) =>
    h("td", { class: column.number ? "number" : column.kind ?? (column.name ? "name" : null), "data-title": column.title },
      column.cell(row)))));
  return h("div", { class: "wide" }, h("table", { class: "cards" },
    caption ? h("caption", {}, caption) : null, h("thead", {}, h("tr", {}, titles)), h("tbody", {}, body)));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, text]) => text !== null && text !== undefined && text !== "")
    .map(([word, text]) => [h("dt", {}, word), h("dd", {}, text)]));
}

export function trouble(error) {
  const told = error.told ?? { message: error.message };
  const parts = ["state", "owner", "remedy"].filter((part) => told[part]);
  return h("div", { class: "trouble", role: "alert" }, h("p", { class: "bad" }, told.message),
    parts.map((part) => h("p", {}, `${part}: ${told[part]}`)));
}
