// Dialogs that change something. What skips, repeats or deletes messages first shows what it would do.

import { act } from "./api.js";
import { h, trouble } from "./dom.js";

const dialog = document.getElementById("dialog");

// Fields: [{name, label, type, value, options, read}]. `effect` shows the answer of a dry run.
export function order({ title, text, fields = [], path, careful, effect, verb, done }) {
  const inputs = fields.map((field) => [field, input(field)]);
  const answer = h("div", { "aria-live": "polite" });
  let shown = null; // the order whose effect is shown: exactly this one is carried out
  const looking = h("button", { type: "submit", class: "main" }, careful ? "Show what it would do" : verb);
  const doing = h("button", { type: "button", class: "danger", disabled: true, onclick: () => send(shown, false) }, verb);

  function read() {
    const values = inputs.map(([field, node]) => [field.name, (field.read ?? String)(node.value)]);
    return Object.fromEntries(values.filter(([, value]) => value !== null));
  }

  const here = () => dialog.open && answer.isConnected;
  const forget = () => { shown = null; doing.disabled = true; };

  async function send(order, dryRun) {
    looking.disabled = doing.disabled = true;
    try {
      const told = await act(path, careful ? { ...order, dry_run: dryRun } : order);
      if (dryRun && JSON.stringify(order) === JSON.stringify(read())) {
        answer.replaceChildren(effect(told));
        shown = order;
        doing.disabled = false;
      } else if (!dryRun && here()) {
        dialog.close();
        done?.(told);
      }
    } catch (error) {
      answer.replaceChildren(trouble(error));
    }
    looking.disabled = false;
  }

  function submit(event) {
    event.preventDefault();
    forget();
    try {
      send(read(), Boolean(careful));
    } catch (error) {
      answer.replaceChildren(trouble(new Error(`This is no JSON: ${error.message}`)));
    }
  }

  for (const [, node] of inputs) node.addEventListener("input", forget);
  dialog.replaceChildren(h("form", { onsubmit: submit },
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
