// Numbers, times and states as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (number) => WHOLE.format(number ?? 0);
export const short = (number) => ((number ?? 0) < 10_000 ? WHOLE.format(number ?? 0) : SHORT.format(number));

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  let left = number;
  while (left >= 1000 && at < units.length - 1) {
    left /= 1000;
    at += 1;
  }
  return `${left < 10 && at ? left.toFixed(1) : Math.round(left)} ${units[at]}`;
}

/** A length of time in its two largest units. */
export function lasted(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${pad(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${pad((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${pad((seconds % 86_400) / 3600)} h`;
}

const pad = (number, width = 2) => String(Math.floor(number)).padStart(width, "0");

export function clock(ms, { millis = false } = {}) {
  if (!ms) return "–";
  const at = new Date(ms);
  const text = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  return millis ? `${text}.${pad(at.getMilliseconds(), 3)}` : text;
}

export function day(ms) {
  return new Date(ms).toLocaleDateString("en-GB", { weekday: "short", day: "numeric", month: "short" });
}

export function moment(ms) {
  if (!ms) return "–";
  return new Date().toDateString() === new Date(ms).toDateString() ? clock(ms) : `${day(ms)} ${clock(ms)}`;
}

// Each state has a tone (a colour) and a glyph (a shape): neither is the only sign.
const STATES = {
  CREATED: ["wait", "dots"], SCHEDULED: ["wait", "clock"], DEPLOYING: ["wait", "clock"], RUNNING: ["go", "play"],
  FINISHED: ["good", "check"], FAILING: ["bad", "cross"], FAILED: ["bad", "cross"], CANCELLING: ["off", "slash"],
  CANCELED: ["off", "slash"], SAVEPOINTING: ["hold", "flag"], SAVEPOINTED: ["hold", "flag"], DRAINING: ["good", "down"],
  PAUSING: ["hold", "pause"], PAUSED: ["hold", "pause"], SUSPENDED: ["hold", "pause"], READY_TO_CLOSE: ["good", "down"],
  TRIGGERED: ["wait", "clock"], COMPLETED: ["go", "play"], COMMITTED: ["good", "check"], ABORTED: ["bad", "cross"],
  ABANDONED: ["bad", "cross"], HEARD: ["good", "check"], SILENT: ["wait", "clock"], LOST: ["bad", "cross"],
  BACK: ["good", "check"], LEADING: ["good", "check"], VACANT: ["wait", "clock"], ACCEPTED: ["good", "check"],
  REFUSED: ["bad", "cross"], PENDING: ["wait", "clock"], TAKING: ["wait", "clock"], KEPT: ["hold", "flag"],
  UNHEALTHY: ["bad", "alert"], WAITING: ["wait", "clock"], HEALTHY: ["good", "check"],
};

export const tone = (state) => (STATES[state] ?? ["off", "dots"])[0];
export const glyph = (state) => (STATES[state] ?? ["off", "dots"])[1];

export function words(state) {
  const text = (state || "unknown").toLowerCase().replaceAll("_", " ");
  return text[0].toUpperCase() + text.slice(1);
}
