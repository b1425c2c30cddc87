// Charts, and strips of partitions, as SVG.

import { h, svg } from "./dom.js";
import { count, duration, plural, rate } from "./format.js";

const WIDTH = 320, HEIGHT = 120, LEFT = 44, BOTTOM = 18, TOP = 8;

function path(samples, value, x, y) {
  let drawn = "", apart = true;
  for (const sample of samples) {
    const number = value(sample);
    if (number === null) { apart = true; continue; }
    drawn += `${apart ? "M" : "L"}${x(sample.at).toFixed(1)} ${y(number).toFixed(1)}`;
    apart = false;
  }
  return drawn;
}

function nice(number) {
  const ten = 10 ** Math.floor(Math.log10(Math.max(number, 1)));
  return [1, 2, 5, 10].map((step) => step * ten).find((step) => step >= number) ?? number;
}

// Lines: [{name, value: sample => number|null}], at most two.
export function chart(title, samples, lines, show = count, nothing = "Not enough data yet.") {
  const last = samples.at(-1);
  const now = lines.map(({ name, value }, index) =>
    h("span", { class: index ? "two-name" : "one-name" }, `${name}: ${last ? show(value(last)) : "–"}`));
  const caption = h("figcaption", {}, h("b", {}, title), now);
  const known = samples.flatMap((sample) => lines.map(({ value }) => value(sample))).filter((n) => n !== null);
  if (known.length < 2) return h("figure", {}, caption, h("p", { class: "quiet" }, nothing));
  const top = nice(Math.max(...known, 1));
  const first = samples[0].at, span = Math.max(last.at - first, 1);
  const x = (at) => LEFT + ((at - first) / span) * (WIDTH - LEFT - 4);
  const y = (number) => TOP + (1 - number / top) * (HEIGHT - TOP - BOTTOM);
  const said = `${title}, ${duration(Math.round(span / 1000))}: ` + lines.map(({ name, value }) => {
    const numbers = samples.map(value).filter((n) => n !== null);
    return `${name} from ${show(numbers[0])} to ${show(numbers.at(-1))}, at most ${show(Math.max(...numbers))}`;
  }).join("; ");
  const marks = [0, top / 2, top].map((number) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y(number), y2: y(number) }),
    svg("text", { x: LEFT - 4, y: y(number) + 4, "text-anchor": "end" }, short(number)),
  ]);
  const seconds = Math.round(span / 1000);
  return h("figure", {}, caption,
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: "100%", role: "img", "aria-label": said },
      marks.flat(),
      svg("text", { x: LEFT, y: HEIGHT - 3 }, seconds > 30 ? `${duration(seconds)} ago` : ""),
      svg("text", { x: WIDTH, y: HEIGHT - 3, "text-anchor": "end" }, "now"),
      lines.map(({ value }, index) => svg("path", { class: index ? "two" : "one", d: path(samples, value, x, y) }))));
}

function short(number) {
  if (number >= 1e6) return `${+(number / 1e6).toFixed(1)}M`;
  if (number >= 1e3) return `${+(number / 1e3).toFixed(1)}k`;
  return String(+number.toFixed(1));
}

export function charts(samples, longer = false) {
  return h("div", { class: "charts" },
    chart("Backlog", samples, [{ name: "messages", value: (s) => s.backlog }]),
    chart("Rate, messages a second", samples,
      [{ name: "arrived", value: (s) => s.arrived_per_s }, { name: "settled", value: (s) => s.settled_per_s }], rate,
      longer ? "Rates are kept for an hour." : undefined),
    chart("In flight", samples, [{ name: "messages", value: (s) => s.in_flight }]),
    chart("Came back", samples, [{ name: "messages", value: (s) => s.came_back }]));
}

// A partition from the first offset that Kafka keeps to the end of its log.
export function strip(partition, holes) {
  const { log_start: start, log_end: end, floor, next } = partition;
  if (start === null || end === null || end <= start) return h("span", { class: "quiet" }, "empty");
  const x = (offset) => (Math.min(Math.max(offset, start), end) - start) / (end - start) * 1000;
  const bar = (from, to, kind, least = 0) => to > from &&
    svg("rect", { class: kind, x: x(from), width: Math.max(x(to) - x(from), least), y: 0, height: 18 });
  const label = `settled to ${floor}, granted to ${Math.min(next, end)}, end ${end}; ` +
    `${plural(partition.exceptions, "message")} came back`;
  return svg("svg", { class: "strip", viewBox: "0 0 1000 18", preserveAspectRatio: "none", role: "img", "aria-label": label },
    bar(start, Math.max(floor, start), "settled"), bar(Math.max(floor, start), next, "granted"), bar(next, end, "waiting"),
    holes.map((hole) => bar(hole.start, hole.end, "hole", 3)));
}

export function legend() {
  return h("p", { class: "legend" }, [["settled", "settled"], ["granted", "granted, some of it settled"], ["hole", "came back"],
    ["waiting", "not granted yet"]].map(([kind, text]) => h("span", {}, h("i", { class: kind }), text)));
}
