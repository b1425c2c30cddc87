// One subscription: its numbers, what it waits for, its members, partitions, messages and dead letters.

import { ask } from "./api.js";
import { charts, legend, strip } from "./charts.js";
import { order } from "./dialogs.js";
import { facts, h, released, table, trouble } from "./dom.js";
import { ago, bytesOf, clock, count, duration, plural, readable } from "./format.js";
import { title } from "./list.js";

const RANK = { viewer: 1, operator: 2, admin: 3 };

export function subscription(main, id, me) {
  const path = `subscriptions/${encodeURIComponent(id)}`;
  const may = (role) => RANK[me.role] >= RANK[role];
  const parts = Object.fromEntries(["head", "acts", "why", "charts", "members", "partitions", "explain", "history", "messages", "dead", "definition"]
    .map((name) => [name, h("section")]));
  const SPANS = { 1: "Last hour", 24: "Last day", 168: "Last week", 720: "Last 30 days" };
  let hours = 1;
  let closed = false, loading = false, again = false, known = null;

  async function load() {
    again = loading;
    if (loading || closed) return;
    loading = true;
    try {
      const [found, samples, holes] = await Promise.all([ask(path), numbers(), ask(`${path}/holes`)]);
      await released();
      if (!closed) show(found, samples, holes);
    } catch (error) {
      if (!closed && known !== error.message) {
        known = error.message; // said once, not at each look
        parts.head.replaceChildren(h("h1", {}, id), trouble(error));
      }
    } finally {
      loading = false;
      if (again) load();
    }
  }

  function show(found, samples, holes) {
    const before = typeof known === "object" ? known : null;
    known = found;
    parts.head.replaceChildren(h("h1", {}, title(found)), h("p", {}, found.words), tiles(found));
    if (before?.paused !== found.paused) parts.acts.replaceChildren(buttons(found)); // else a button would lose the focus
    if (before?.words.startsWith("waits") !== found.words.startsWith("waits")) parts.why.replaceChildren(...waitsFor(found));
    if (before === null) parts.charts.replaceChildren(...spans(), h("div"));
    parts.charts.lastChild.replaceChildren(samples instanceof Error ? trouble(samples) : charts(samples, hours > 1));
    parts.members.replaceChildren(h("h2", {}, "Members"), members(found));
    parts.partitions.replaceChildren(h("h2", {}, "Partitions"), legend(), partitions(found, holes));
    if (before?.version !== found.version) parts.definition.replaceChildren(h("h2", {}, "Definition"), definition(found));
    if (before === null) {
      parts.explain.replaceChildren(h("h2", {}, "Explain a message"), explaining(found));
      parts.history.replaceChildren(...(found.definition.history === null ? [] : [h("h2", {}, "Deliveries"), deliveries()]));
      parts.messages.replaceChildren(h("h2", {}, "Messages"), looking("Show messages that wait or are in flight", messages));
      parts.dead.replaceChildren(h("h2", {}, "Dead letters"), looking("Show dead letters", dead));
    }
  }

  function waitsFor(found) {
    return found.words.startsWith("waits")
      ? [h("h2", {}, "Why nothing is delivered"), looking("Explain the first unsettled messages", why)] : [];
  }

  // The numbers of the charts; of more than an hour, the reason if Prometheus does not answer.
  function numbers() {
    return hours > 1 ? ask(`${path}/samples`, { hours }).catch((error) => error) : ask(`${path}/samples`);
  }

  // The title of the charts, and where the service has a Prometheus, a choice of their length.
  function spans() {
    if (!me.longer_charts) return [h("h2", {}, SPANS[1])];
    return [h("h2", {}, "Charts"), h("label", {}, "Time", h("select", { onchange: (event) => { hours = Number(event.target.value); load(); } },
      Object.entries(SPANS).map(([each, text]) => h("option", { value: each }, text))))];
  }

  function tiles(found) {
    const tile = (number, text) => h("div", { class: "tile" }, h("b", {}, number), text);
    return h("div", { class: "tiles" }, tile(count(found.backlog), "backlog"), tile(count(found.in_flight), "in flight"),
      tile(count(found.exceptions), "came back"), tile(count(found.attached), found.attached === 1 ? "member" : "members"),
      tile(count(found.behind), "not granted yet"), tile(ago(found.last_verdict), "last verdict"));
  }

  function buttons(found) {
    const button = (role, text, action) => h("button", { type: "button", disabled: !may(role),
      title: may(role) ? null : `needs the role ${role}`, onclick: action }, text);
    return h("div", { class: "bar", role: "group", "aria-label": "Change the subscription" },
      found.paused ? button("operator", "Resume", resume) : button("operator", "Pause", pause),
      button("operator", "Drain", drain), button("operator", "Snapshot", snapshot), button("admin", "Restore", restore),
      button("admin", "Seek", seek), button("admin", "Fork", fork), button("admin", "Alter", alter), button("admin", "Unsubscribe", unsubscribe));
  }

  // -- acts

  const pause = () => order({ title: "Pause", verb: "Pause", path: `${path}/pause`, done: load,
    text: "Nothing more is handed out. Messages in flight can be settled; members stay attached." });
  const resume = () => order({ title: "Resume", verb: "Resume", path: `${path}/resume`, done: load, text: "Messages are handed out again." });
  const drain = () => order({ title: "Drain", verb: "Drain", path: `${path}/drain`, done: load,
    text: "Pauses the subscription and waits until nothing is in flight. It stays paused.",
    fields: [{ name: "timeout", label: "Longest wait, seconds", type: "number", value: "10", read: Number }] });
  const seek = () => order({ title: "Seek", verb: "Move it", path: `${path}/seek`, careful: true, effect: moves, done: load,
    text: "Messages from there on are delivered again, those before are skipped. No member may be attached.",
    fields: [{ name: "to", label: "earliest, latest, group:NAME, a time (UTC unless it says its zone), or offsets as {\"0\": 17}", value: "earliest",
      read: (text) => (text.trim().startsWith("{") ? JSON.parse(text) : text.trim()) }] });
  const restore = () => order({ title: "Restore a snapshot", verb: "Restore it", path: `${path}/restore`, careful: true, effect: moves, done: load,
    fields: [{ name: "snapshot", label: "Content of the snapshot (JSON)", type: "area", read: JSON.parse }] });
  const fork = () => order({ title: "Fork", verb: "Fork", path: `${path}/fork`, done: (told) => { location.hash = "#/"; return told; },
    text: "Makes a second subscription at the same position; from then on they are independent.",
    fields: [{ name: "new", label: "Name of the new one, or CLIENT_ID~NAME" }] });
  const alter = () => order({ title: "Alter the definition", verb: "Alter it", path: `${path}/alter`, careful: true, done: load, effect: differences,
    text: "What is settled and what waits is kept. No member may be attached.",
    fields: [{ name: "changes", label: "Parts that change (JSON), such as {\"max_attempts\": 10, \"backoff\": 1.5}", type: "area",
      value: "{\"max_attempts\": 10}", read: JSON.parse }] });
  const unsubscribe = () => order({ title: "Unsubscribe", verb: "Delete it", path: `${path}/unsubscribe`, careful: true,
    done: () => { location.hash = "#/"; }, text: "Deletes the subscription with all that waits in it.",
    effect: (told) => h("p", { class: "bad" }, `Would delete ${told.subscription}; messages waiting: ${count(told.backlog)}.`) });

  const evict = (member) => order({ title: `Evict ${member.name || member.id}`, verb: "Evict it", path: `${path}/evict`, careful: true, done: load,
    text: "Its messages are delivered again, elsewhere, and count as attempts. If its process lives, it attaches again.",
    fields: [{ name: "member", label: "Id", value: member.id }],
    effect: (told) => h("p", {}, `Would end the session of ${told.name || told.member}, which has ${plural(told.leases, "lease")}.`) });

  async function snapshot() {
    let taken;
    try {
      taken = await ask(`${path}/snapshot`);
    } catch (error) {
      parts.head.append(trouble(error));
      return;
    }
    const link = h("a", { download: `${id}-${taken.taken}.json`,
      href: URL.createObjectURL(new Blob([JSON.stringify(taken, null, 1)], { type: "application/json" })) });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  function moves(told) {
    const total = (name) => told.partitions.reduce((sum, each) => sum + each[name], 0);
    return h("div", {}, h("p", {}, `At most ${plural(total("again"), "settled message")} would be delivered again, ` +
      `and at most ${plural(total("skipped"), "unsettled message")} skipped.`), table(told.partitions, [
      { title: "partition", number: true, cell: (each) => String(each.partition) },
      { title: "settled to", number: true, cell: (each) => count(each.before) },
      { title: "goes to", number: true, cell: (each) => count(each.after) },
      { title: "come again", number: true, cell: (each) => count(each.again) },
      { title: "skipped", number: true, cell: (each) => count(each.skipped) },
    ]));
  }

  function differences({ before, after }) {
    const flat = (part, at = "") => Object.entries(part ?? {}).flatMap(([name, value]) =>
      value && typeof value === "object" && !Array.isArray(value) ? flat(value, `${at}${name}.`) : [[`${at}${name}`, value]]);
    const old = Object.fromEntries(flat(before));
    const rows = flat(after).filter(([name, value]) => JSON.stringify(old[name]) !== JSON.stringify(value));
    return rows.length ? table(rows, [{ title: "part", cell: ([name]) => name },
      { title: "is", cell: ([name]) => JSON.stringify(old[name] ?? null) }, { title: "becomes", cell: ([, value]) => JSON.stringify(value) }])
      : h("p", {}, "Nothing would change.");
  }

  // -- what is shown

  function members(found) {
    if (!found.members.length) return h("p", { class: "quiet" }, "No member is attached.");
    return table(found.members, [
      { title: "member", name: true, cell: (each) => each.name || each.id },
      { title: "attached", cell: (each) => ago(each.since) },
      { title: "leases", number: true, cell: (each) => count(each.leases) },
      { title: "credit", number: true, cell: (each) => count(each.credit) },
      { title: "state", cell: (each) => h("span", { class: each.heard ? "good" : "bad" }, each.heard ? "attached" : "gone") },
      { title: "evict", cell: (each) => h("button", { type: "button", disabled: !may("admin"), onclick: () => evict(each) }, "Evict") },
    ]);
  }

  function partitions(found, holes) {
    const at = Object.fromEntries(holes.map((each) => [each.partition, each.ranges]));
    return table(found.partitions, [
      { title: "partition", number: true, cell: (each) => String(each.partition) },
      { title: "offsets that Kafka keeps", cell: (each) => strip(each, at[each.partition] ?? []) },
      { title: "settled to", number: true, cell: (each) => count(each.floor) },
      { title: "granted to", number: true, cell: (each) => count(each.next) },
      { title: "end", number: true, cell: (each) => count(each.log_end) },
      { title: "in flight", number: true, cell: (each) => count(each.in_flight) },
      { title: "came back", number: true, cell: (each) => count(each.exceptions) },
      { title: "backlog", number: true, cell: (each) => count(each.backlog) },
    ]);
  }

  function definition(found) {
    return facts([["type", found.type], ["topic", found.topic], ["selector", found.selector], ["version", String(found.version)],
      ["unattended", found.unattended_since ? `since ${clock(found.unattended_since)}` : null],
      ["id", found.id], ["everything", h("details", {}, h("summary", {}, "show"), h("pre", { tabindex: "0" }, JSON.stringify(found.definition, null, 2)))]]);
  }

  function looking(text, load) {
    const shown = h("div", { "aria-live": "polite" });
    const button = h("button", { type: "button", onclick: async () => {
      button.disabled = true;
      try {
        shown.replaceChildren(await load());
      } catch (error) {
        shown.replaceChildren(trouble(error));
      }
      button.disabled = false;
      button.textContent = "Read again";
    } }, text);
    return h("div", {}, button, shown);
  }

  const why = async () => h("div", {}, (await ask(`${path}/why`)).map(explanation));

  function explaining(found) {
    const shown = h("div", { "aria-live": "polite" });
    const partition = h("select", {}, found.partitions.map((each) => h("option", {}, String(each.partition))));
    const offset = h("input", { type: "number", min: "0", required: true });
    return h("div", {}, h("form", { class: "bar", onsubmit: async (event) => {
      event.preventDefault();
      try {
        shown.replaceChildren(explanation(await ask(`${path}/explain`, { partition: partition.value, offset: offset.value })));
      } catch (error) {
        shown.replaceChildren(trouble(error));
      }
    } }, h("label", {}, "Partition", partition), h("label", {}, "Offset", offset), h("button", {}, "Explain")), shown);
  }

  function explanation(told) {
    const lease = told.lease && `${told.lease.name ?? told.lease.member}, ${told.lease.kind} ${told.lease.start} to ${told.lease.horizon}`;
    return h("div", {}, h("p", {}, h("b", {}, `${told.topic}[${told.partition}]@${told.offset}`), ` is ${told.verdict ?? told.state}`),
      facts([["attempt", told.attempt === null ? null : String(told.attempt)], ["due", told.due && clock(told.due)], ["held by", lease],
        ["redelivered", told.redelivered ? "it was perhaps delivered before" : null],
        ...told.notes.map((note) => ["note", note])]));
  }

  function deliveries() {
    const shown = h("div", { "aria-live": "polite" });
    const place = h("input", { placeholder: "0:17", pattern: "[0-9]+:[0-9]+" });
    const member = h("input", { maxlength: "250" });
    return h("div", {}, h("form", { class: "bar", onsubmit: async (event) => {
      event.preventDefault();
      const [partition, offset] = place.value.trim() ? place.value.trim().split(":") : [null, null];
      try {
        shown.replaceChildren(recorded(await ask(`${path}/history`, { partition, offset, member: member.value.trim() || null })));
      } catch (error) {
        shown.replaceChildren(trouble(error));
      }
    } }, h("label", {}, "Message (partition:offset)", place), h("label", {}, "Member (name or id)", member), h("button", {}, "Show deliveries")), shown);
  }

  function recorded({ entries, more, missing }) {
    if (!entries.length) return h("p", {}, "No delivery is recorded.");
    const place = (each) => `${each.partition}:${each.start}` + (each.end - each.start > 1 ? `-${each.end - 1}` : "");
    const again = (each) => (each.delay_ms > 0 ? `, again in ${duration(each.delay_ms / 1000)}` : "") + (each.cause ? `: ${each.cause}` : "");
    return h("div", {}, table(entries.toReversed(), [
      { title: "at", cell: (each) => clock(each.at) },
      { title: "messages", cell: place },
      { title: "attempt", number: true, cell: (each) => count(each.attempt) },
      { title: "outcome", cell: (each) => each.outcome + again(each) },
      { title: "held", number: true, cell: (each) => (each.held_ms === null ? "–" : duration(each.held_ms / 1000)) },
      { title: "member", name: true, cell: (each) => each.name },
    ], { caption: more ? `The last ${entries.length}, the newest first.` : `${plural(entries.length, "line")}, the newest first.` }),
    missing ? h("p", { class: "bad" }, `${plural(missing, "message")} not recorded: Kafka did not take the entries.`) : null);
  }

  async function messages() {
    const { entries, more } = await ask(`${path}/messages`, { limit: 50 });
    if (!entries.length) return h("p", {}, more ? "None of the first messages is taken by the selector." : "No message waits.");
    const caption = more ? `The first ${entries.length}.` : plural(entries.length, "message");
    return table(entries, [
      { title: "place", cell: (each) => `${each.partition}@${each.offset}` },
      { title: "state", cell: (each) => each.state + (each.holder ? ` by ${each.holder}` : "") + (each.due ? `, due ${clock(each.due)}` : "") },
      { title: "attempts", number: true, cell: (each) => count(each.attempts) },
      { title: "written", cell: (each) => clock(each.timestamp) },
      { title: "key", name: true, cell: (each) => (each.hidden ? "hidden" : readable(each.key)) },
      { title: "value", name: true, cell: (each) => (each.hidden ? h("span", { class: "quiet" }, "hidden: it needs the role operator") : value(each)) },
    ], { caption });
  }

  function value(message) {
    const text = readable(message.value);
    const shown = h("pre", { tabindex: "0" }, text);
    const kinds = h("select", { "aria-label": "Show the value as", onchange: () => {
      const raw = typeof message.value === "string" ? message.value : JSON.stringify(message.value);
      shown.textContent = { JSON: text, text: raw, hex: bytesOf(message.value) }[kinds.value];
    } }, ["JSON", "text", "hex"].map((kind) => h("option", {}, kind)));
    const properties = Object.keys(message.properties).length ? h("pre", { tabindex: "0" }, JSON.stringify(message.properties, null, 2)) : null;
    return h("details", {}, h("summary", {}, text.slice(0, 60)), kinds, shown, properties);
  }

  async function dead() {
    const where = h("input", { placeholder: "_cause = 'attempts'" });
    const shown = h("div");
    const asked = () => where.value.trim() || null;
    const handled = (verb) => (told) => h("p", {}, `Would ${verb} ${plural(told.letters, "dead letter")} of ${told.subscription}.` +
      (verb === "redrive" ? " Every subscription of the topic gets them again." : ""));
    async function read() {
      try {
        shown.replaceChildren(letters((await ask(`${path}/dead`, { where: asked() })).entries));
      } catch (error) {
        shown.replaceChildren(trouble(error));
      }
    }
    const order_ = (verb, word) => order({ title: `${word} dead letters`, verb: word, path: `${path}/dead/${verb}`, careful: true,
      effect: handled(verb), done: read, fields: [{ name: "where", label: "Only those that match (selector)", value: where.value, required: false, read: (text) => text.trim() || null }] });
    await read();
    return h("div", {}, h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); read(); } },
      h("label", {}, "Only those that match (selector)", where), h("button", {}, "Filter"),
      h("button", { type: "button", disabled: !may("operator"), onclick: () => order_("redrive", "Redrive") }, "Redrive"),
      h("button", { type: "button", class: "danger", disabled: !may("admin"), onclick: () => order_("purge", "Purge") }, "Purge")), shown);
  }

  function letters(found) {
    if (!found.length) return h("p", {}, "There are no dead letters.");
    return table(found, [
      { title: "letter", cell: (each) => each.letter },
      { title: "message", name: true, cell: (each) => each.origin },
      { title: "cause", cell: (each) => each.cause },
      { title: "attempts", number: true, cell: (each) => count(each.attempts) },
      { title: "reason", name: true, cell: (each) => each.reason || "–" },
      { title: "sent", cell: (each) => clock(each.timestamp) },
      { title: "payload", name: true, cell: (each) => (may("operator") ? looking("Show", async () => {
        const letter = await ask(`${path}/dead/${encodeURIComponent(each.letter)}`);
        return h("pre", { tabindex: "0" }, `key: ${letter.key ?? ""}\n${readable(letter.value)}\n${JSON.stringify(letter.properties)}`);
      }) : "hidden") },
    ]);
  }

  main.replaceChildren(...Object.values(parts));
  parts.head.replaceChildren(h("h1", {}, id), h("p", { class: "quiet" }, "Reading…"));
  load();
  return { looked: load, close: () => { closed = true; } };
}
