// Dialogs that change something. What skips, repeats or deletes messages first shows what it would do.

import { act } from "./api.js";
import { h, trouble } from "./dom.js";

const dialog = document.getElementById("dialog");

// Fields: [{name, label, type, value, options, read}]. `effect` shows the answer of a dry run.
export function order({ title, text, fields = [], path, careful, effect, verb, done }) {
  const inputs = fields.map((field) => [field, input(field)]);
  const answer = h("div", { "aria-live": "polite" });
  const looking = h("button", { type: "submit", class: "main" }, careful ? "Show what it would do" : verb);
  const doing = h("button", { type: "button", class: "danger", disabled: true, onclick: () => send(false) }, verb);

  function read() {
    const values = inputs.map(([field, node]) => [field.name, (field.read ?? String)(node.value)]);
    return Object.fromEntries(values.filter(([, value]) => value !== null));
  }

  async function send(dryRun) {
    looking.disabled = doing.disabled = true;
    try {
      const told = await act(path, careful ? { ...read(), dry_run: dryRun } : read());
      if (dryRun) {
        answer.replaceChildren(effect(told));
        doing.disabled = false;
      } else {
        dialog.close();
        done?.(told);
      }
    } catch (error) {
      answer.replaceChildren(trouble(error));
    }
    looking.disabled = false;
  }

  for (const [, node] of inputs) node.addEventListener("input", () => { doing.disabled = true; });
  dialog.replaceChildren(h("form", { onsubmit: (event) => { event.preventDefault(); send(Boolean(careful)); } },
    h("h2", { id: "dialog-title" }, title), text ? h("p", {}, text) : null,
    inputs.map(([field, node]) => h("p", {}, h("label", {}, field.label, node))), answer,
    h("div", { class: "bar" }, looking, careful ? doing : null,
      h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"))));
  dialog.showModal();
}

function input({ type = "text", value = "", options, required = true }) {
  if (options) return h("select", {}, options.map((each) => h("option", { value: each, selected: each === value }, each)));
  if (type === "area") return h("textarea", { required }, value);
  const node = h("input", { type, required });
  node.value = value;
  return node;
}
