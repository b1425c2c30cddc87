// The list of subscriptions: sorted, filtered and searched by the service.

import { ask } from "./api.js";
import { h, released, table, trouble } from "./dom.js";
import { count, duration, rate } from "./format.js";

const PAGE = 100;
const TYPES = ["exclusive", "priority", "serial", "shared", "key-ordered"];
const STATES = ["active", "inactive", "paused", "waits"];

const COLUMNS = [
  { title: "name", sort: "name", name: true, cell: (each) => h("a", { href: `#/s/${each.id}`, "data-focus": each.id }, title(each)) },
  { title: "type", sort: "type", cell: (each) => each.type },
  { title: "topic", sort: "topic", name: true, cell: (each) => each.topic },
  { title: "state", sort: "state", kind: "state", cell: (each) => h("span", { class: mood(each) }, each.words) },
  { title: "members", sort: "attached", number: true, cell: (each) => count(each.attached) },
  { title: "in flight", sort: "in_flight", number: true, cell: (each) => count(each.in_flight) },
  { title: "backlog", sort: "backlog", number: true, cell: (each) => count(each.backlog) },
  { title: "oldest", sort: "oldest_s", number: true, cell: age },
  { title: "arrived/s", sort: "arrived_per_s", number: true, cell: (each) => rate(each.arrived_per_s) },
  { title: "settled/s", sort: "settled_per_s", number: true, cell: (each) => rate(each.settled_per_s) },
  { title: "came back", sort: "exceptions", number: true, cell: (each) => count(each.exceptions) },
  { title: "dead letters", sort: "dead_letters", number: true, cell: (each) => count(each.dead_letters) },
];

export function title(each) {
  const name = each.client_id ? `${each.client_id}/${each.name}` : each.name;
  return (each.policy === "unrestricted" ? `${name} (unrestricted)` : name) + (each.topic_member ? `@${each.topic_member}` : "");
}

function age(each) {
  if (each.oldest_s === null) return "–";
  return `${each.oldest_at_least ? "over " : ""}${duration(each.oldest_s)}`;
}

function mood(each) {
  if (each.problem || each.words.startsWith("waits: no member")) return "bad";
  return each.paused || each.words.startsWith("waits") ? "warn" : "";
}

export function list(main) {
  const asked = { search: "", type: "", state: "", sort: "name", descending: false, offset: 0, limit: PAGE };
  const shown = h("div");
  let stopped = new AbortController(), version = 0;

  function change(part) {
    Object.assign(asked, { offset: 0 }, part);
    load();
  }

  function choice(label, options, name) {
    return h("label", {}, label, h("select", { onchange: (event) => change({ [name]: event.target.value }) },
      h("option", { value: "" }, "all"), options.map((each) => h("option", { value: each }, each))));
  }

  const narrow = h("label", { class: "narrow" }, "Sort by", h("select", { onchange: (event) => sort(event.target.value) },
    COLUMNS.map((column) => h("option", { value: column.sort }, column.title))));
  const sort = (name) => change({ sort: name, descending: asked.sort === name && !asked.descending });
  const bar = h("form", { class: "bar", role: "search", onsubmit: (event) => event.preventDefault() },
    h("label", {}, "Search name, client id or topic",
      h("input", { type: "search", oninput: (event) => change({ search: event.target.value }) })),
    choice("Type", TYPES, "type"), choice("State", STATES, "state"), narrow);

  async function load() {
    const mine = ++version;
    stopped.abort();
    stopped = new AbortController();
    try {
      const found = await ask("subscriptions", asked, stopped.signal);
      await released();
      if (mine === version) {
        delete shown.dataset.error;
        show(found);
      }
    } catch (error) {
      if (error.name !== "AbortError" && mine === version && shown.dataset.error !== error.message) {
        shown.dataset.error = error.message; // said once, not at each look
        shown.replaceChildren(trouble(error));
      }
    }
  }

  function head(column) {
    const sorted = asked.sort === column.sort;
    const direction = asked.descending ? "descending" : "ascending";
    return {
      attributes: { "aria-sort": sorted ? direction : "none" },
      content: h("button", { type: "button", "data-focus": `sort ${column.sort}`, onclick: () => sort(column.sort) },
        column.title, sorted ? (asked.descending ? " ▼" : " ▲") : ""),
    };
  }

  function show(found) {
    const focused = document.activeElement?.dataset?.focus;
    const scrolled = shown.querySelector(".wide")?.scrollLeft ?? 0;
    const from = asked.offset, to = from + found.entries.length;
    const page = (offset) => { asked.offset = offset; load(); };
    if (!found.entries.length && from) return page(0);
    const caption = found.matching === 0
      ? (found.total ? "No subscription matches." : found.number ? "There are no durable subscriptions." : "The subscriptions were not read yet.")
      : `${count(from + 1)} to ${count(to)} of ${count(found.matching)}` + (found.matching < found.total ? ` (of ${count(found.total)})` : "");
    shown.replaceChildren(
      ...(found.problem ? [trouble({ told: found.problem })] : []),
      table(found.entries, COLUMNS, { caption, head }),
      h("div", { class: "bar" },
        h("button", { type: "button", disabled: from === 0, "data-focus": "back", onclick: () => page(Math.max(from - PAGE, 0)) }, "Back"),
        h("button", { type: "button", disabled: to >= found.matching, "data-focus": "next", onclick: () => page(from + PAGE) }, "Next")));
    shown.querySelector(".wide").scrollLeft = scrolled;
    if (focused) shown.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
    return undefined;
  }

  main.replaceChildren(h("h1", {}, "Subscriptions"), bar, shown);
  load();
  return { looked: load, close: () => stopped.abort() };
}
