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
  return `${new Date(when).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

// The bytes of a value as the API gives it, in hexadecimal digits.
export function bytesOf(value) {
  const binary = value !== null && typeof value === "object" && typeof value.base64 === "string";
  const bytes = binary ? Uint8Array.from(atob(value.base64), (each) => each.charCodeAt(0)) : new TextEncoder().encode(value ?? "");
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

// A value of a message as it can be looked at: JSON in lines, else as it is.
export function readable(value) {
  if (value === null || value === undefined) return "(none)";
  if (typeof value !== "string") return JSON.stringify(value, null, 2);
  if (/[0-9]{16}/.test(value)) return value; // numbers that this language would round
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}
