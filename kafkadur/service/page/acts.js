// Who did what.

import { ask } from "./api.js";
import { h, table, trouble } from "./dom.js";
import { clock } from "./format.js";

const COLUMNS = [
  { title: "time", cell: (each) => clock(each.at) },
  { title: "who", cell: (each) => `${each.who} (${each.role})` },
  { title: "act", cell: (each) => each.action },
  { title: "subscription", name: true, cell: (each) => each.subscription },
  { title: "outcome", cell: (each) => h("span", { class: { done: "good", failed: "bad" }[each.phase] ?? "quiet" }, each.phase) },
  { title: "details", name: true, cell: (each) => h("details", {}, h("summary", {}, "show"),
    h("pre", { tabindex: "0" }, JSON.stringify({ parameters: each.parameters, before: each.before, after: each.after, error: each.error }, null, 2))) },
];

export function acts(main) {
  const shown = h("div", {}, h("p", { class: "quiet" }, "Reading…"));
  main.replaceChildren(h("h1", {}, "Acts"),
    h("p", { class: "quiet" }, "What was done through this service, the newest first. Each act is recorded before and after it."), shown);
  ask("audit", { limit: 200 }).then(
    (found) => shown.replaceChildren(found.length ? table(found, COLUMNS) : h("p", {}, "Nothing was done yet.")),
    (error) => shown.replaceChildren(trouble(error)));
  return {};
}
