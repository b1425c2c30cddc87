// Asks the service. A token is kept for this tab only, and sent as a header: no other site can use it.

const KEPT = "kafkadur-token";

export class Refused extends Error {
  constructor(status, told) {
    super(told.message);
    this.status = status;
    this.told = told;
  }
}

export function keepToken(token) {
  sessionStorage.setItem(KEPT, token);
}

function headers(writing) {
  const token = sessionStorage.getItem(KEPT);
  return {
    ...(token ? { Authorization: `Bearer ${token}` } : {}),
    ...(writing ? { "Content-Type": "application/json", "X-Kafkadur-Write": "yes" } : {}),
  };
}

async function answered(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { message: "The service does not answer.", remedy: "see that it runs; the page tries again" });
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  const detail = Array.isArray(told.detail)
    ? told.detail.map((each) => `${each.loc.slice(1).join(".")}: ${each.msg}`).join("; ") : told.detail;
  throw new Refused(response.status, told.message ? told : { message: detail ?? `Status ${response.status}.` });
}

export async function ask(path, query = {}, signal = undefined) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== null));
  const response = await answered(`api/v1/${path}?${asked}`, { headers: headers(false), signal });
  return response.json();
}

export async function act(path, order) {
  const options = { method: "POST", headers: headers(true), body: JSON.stringify(order ?? {}) };
  return (await answered(`api/v1/${path}`, options)).json();
}

// Calls `told` after each look of the service, and `lost` with the reason while it does not answer.
export async function follow(told, lost, signal) {
  while (!signal.aborted) {
    try {
      const response = await answered("api/v1/events", { headers: headers(false), signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        text += part.value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) {
          const data = event.split("\n").find((line) => line.startsWith("data: "));
          if (data) told(JSON.parse(data.slice(6)));
        }
      }
      throw new Refused(0, { message: "The service has ended." });
    } catch (error) {
      if (signal.aborted) return;
      lost(error);
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
}
