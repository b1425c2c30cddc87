// Numbers and times for people.

export function count(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en");
}

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  return perSecond < 10 ? perSecond.toFixed(1) : count(Math.round(perSecond));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86400) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

export function ago(iso) {
  return iso ? `${duration(Math.max((Date.now() - Date.parse(iso)) / 1000, 0))} ago` : "–";
}

export function clock(when) {
  return new Date(when).toLocaleString("sv");
}

export function bytesOf(text) {
  return [...new TextEncoder().encode(text)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

// A value of a message as it can be looked at: JSON in lines, else as it is.
export function readable(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return JSON.stringify(value, null, 2);
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}
