// The frame of the page: who asks, whether the service answers, and which view is shown.

import { acts } from "./acts.js";
import { ask, follow, keepToken, Refused } from "./api.js";
import { h, trouble } from "./dom.js";
import { list } from "./list.js";
import { subscription } from "./subscription.js";

const main = document.getElementById("main");
const state = document.getElementById("state");
let view = {}, me = null, following = new AbortController();

function show() {
  view.close?.();
  const [, page, id] = location.hash.split("/");
  view = page === "s" && id ? subscription(main, decodeURIComponent(id), me) : page === "acts" ? acts(main) : list(main);
  document.title = page === "s" && id ? `${decodeURIComponent(id)} – kafkadur` : "kafkadur";
}

function say(text, bad = false) {
  state.setAttribute("aria-live", bad ? "assertive" : "off"); // the time of each look is not read aloud
  state.className = bad ? "bad" : "";
  state.textContent = text;
}

function askToken(error) {
  following.abort();
  view.close?.();
  view = {};
  const input = h("input", { type: "password", required: true, autocomplete: "off" });
  main.replaceChildren(h("h1", {}, "Sign in"), h("form", { class: "bar", onsubmit: (event) => {
    event.preventDefault();
    keepToken(input.value.trim());
    begin();
  } }, h("label", {}, "Token of this service", input), h("button", { class: "main" }, "Sign in")), trouble(error));
  input.focus();
}

async function begin() {
  following.abort();
  following = new AbortController();
  try {
    me = await ask("me");
  } catch (error) {
    if (error instanceof Refused && error.status === 401) return askToken(error);
    main.replaceChildren(trouble(error));
    setTimeout(begin, 3000);
    return undefined;
  }
  document.getElementById("namespace").textContent = `namespace ${me.namespace}`;
  document.getElementById("caller").textContent = `${me.name}, ${me.role} · ${me.version}`;
  show();
  follow((looked) => {
    say(looked.at === null ? "" : `read at ${new Date(looked.at).toISOString().slice(11, 19)} UTC`);
    view.looked?.();
  }, (error) => (error.status === 401 ? askToken(error) : say(error.message, true)), following.signal);
  return undefined;
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // #main is no view
  main.focus();
});
addEventListener("hashchange", () => {
  if (me !== null) show();
  main.focus();
});
begin();
