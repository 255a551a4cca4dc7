// Charts: tasks on a timeline of states, checkpoints by duration and size, a line of the last minutes.

import { h, s } from "./dom.js";
import { bytes, clock, count, lasted, tone, words } from "./words.js";

const LEFT = 92;
const LANE = 24;
const MOST_LANES = 40;

/** Round times between two moments, about so many. */
function ticks(from, to, wanted) {
  const steps = [100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000, 86_400_000];
  const step = steps.find((one) => (to - from) / one <= wanted) ?? 86_400_000;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

function axis(from, to, width, height, left) {
  const x = (at) => left + ((width - left) * (at - from)) / Math.max(1, to - from);
  const fine = to - from < 5000;
  const marks = ticks(from, to, Math.max(2, Math.floor(width / 130)));
  return {
    x,
    drawn: marks.map((at) => [
      s("line", { class: "axis", x1: x(at), x2: x(at), y1: 0, y2: height - 18 }),
      s("text", { x: Math.min(x(at), width - 30), y: height - 4, "text-anchor": "middle" }, clock(at, { millis: fine })),
    ]),
  };
}

/** Spans of states of each task, out of its transitions, oldest first. */
function lanes(transitions, tasks, to) {
  const found = new Map(tasks.map((task) => [`task/${task.pipeline}/${task.task}`, { label: `${task.pipeline}.${task.task}`, spans: [] }]));
  for (const one of transitions) {
    if (one.kind !== "task") continue;
    const key = `task/${one.pipeline}/${one.task}`;
    if (!found.has(key)) found.set(key, { label: `${one.pipeline}.${one.task}`, spans: [] });
    const { spans } = found.get(key);
    if (spans.length) spans.at(-1).to = one.time;
    spans.push({ state: one.to, from: one.time, to, attempt: one.attempt, worker: one.worker });
  }
  return [...found.values()];
}

export function taskTimeline(transitions, tasks, { from, to, takeovers = [], width }) {
  const all = lanes(transitions, tasks, to);
  const shown = all.slice(0, MOST_LANES);
  const height = shown.length * LANE + 24;
  const { x, drawn } = axis(from, to, width, height, LEFT);
  const rects = shown.flatMap(({ label, spans }, row) => [
    s("text", { x: 0, y: row * LANE + 16 }, `Task ${label}`),
    ...spans.map((span) => {
      const ends = ["FINISHED", "CANCELED", "FAILED"].includes(span.state);
      const x0 = x(Math.max(from, span.from));
      const end = ends ? x0 + 7 : Math.max(x0 + 1.5, x(Math.min(to, span.to)) - 0.8);
      const told = `Task ${label}, attempt ${span.attempt}${span.worker ? ` on ${span.worker}` : ""}: ${words(span.state)} from ${clock(span.from, { millis: true })}${ends ? "" : ` for ${lasted(span.to - span.from)}`}`;
      return s("rect", { class: `fill-${tone(span.state)}`, x: x0, width: Math.max(1.5, end - x0), y: row * LANE + 4, height: LANE - 9, rx: 2.5 }, s("title", {}, told));
    }),
  ]);
  const marks = takeovers.filter((one) => one.at >= from && one.at <= to).map((one) => s("g", {},
    s("line", { class: "mark-line", x1: x(one.at), x2: x(one.at), y1: 0, y2: height - 18 }),
    s("title", {}, `${one.leader} took the shard over at ${clock(one.at, { millis: true })}`)));
  const states = [...new Set(shown.flatMap(({ spans }) => spans.map((span) => span.state)))];
  const byTone = new Map(states.map((state) => [tone(state), []]));
  for (const state of states) byTone.get(tone(state)).push(words(state));
  return [
    s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `States of ${all.length} tasks over time` }, drawn, rects, marks),
    h("div", { class: "legend" },
      [...byTone].map(([kind, names]) => h("span", {}, h("i", { class: `fill-${kind}` }), names.join(", "))),
      marks.length > 0 && h("span", {}, "┊ change of leader"),
      all.length > shown.length && h("span", {}, `and ${count(all.length - shown.length)} more tasks`)),
  ];
}

export function checkpointChart(checkpoints, { width, height = 190 }) {
  const shown = checkpoints.filter((one) => one.triggeredAt).sort((a, b) => a.triggeredAt - b.triggeredAt);
  if (!shown.length) return h("p", { class: "note" }, "No checkpoint so far.");
  const from = shown[0].triggeredAt;
  const to = Math.max(from + 1000, shown.at(-1).triggeredAt);
  const took = (one) => one.durationMs ?? one.ageMs ?? Math.max(0, (one.committedAt ?? one.completedAt ?? one.triggeredAt) - one.triggeredAt);
  const most = Math.max(10, ...shown.map(took));
  const left = 62;
  const { x, drawn } = axis(from, to, width - 12, height, left);
  const top = height - 26;
  const y = (ms) => top - (top - 12) * (ms / most);
  const wide = Math.max(2, Math.min(14, ((width - left) / shown.length) * 0.7));
  const lines = [0, 0.5, 1].map((share) => [
    s("line", { class: "axis", x1: left - 6, x2: width, y1: y(share * most), y2: y(share * most) }),
    s("text", { x: left - 12, y: y(share * most) + 4, "text-anchor": "end" }, lasted(share * most)),
  ]);
  const bars = shown.map((one) => {
    const told = `Checkpoint ${one.id} of pipeline ${one.pipeline}: ${words(one.state)}, ${lasted(took(one))}, ${count(one.rows)} rows, ${bytes(one.size)}${one.reason ? `: ${one.reason}` : ""}`;
    return s("rect", { class: `fill-${tone(one.state)}`, x: x(one.triggeredAt) - wide / 2, width: wide, y: y(took(one)), height: Math.max(2, top - y(took(one))), rx: Math.min(2, wide / 3) }, s("title", {}, told));
  });
  return s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${shown.length} checkpoints by how long they took; the longest ${lasted(most)}` }, lines, drawn, bars);
}

/** [time, value] pairs as a small line. */
export function spark(points, { width, height = 64, span = 120_000, now }) {
  const shown = points.filter(([at]) => at >= now - span && at <= now);
  if (shown.length < 2) return h("p", { class: "note" }, "Gathering…");
  const most = Math.max(1, ...shown.map(([, value]) => value));
  const first = Math.max(now - span, shown[0][0]);
  const x = (at) => (width * (at - first)) / Math.max(1, now - first);
  const y = (value) => height - 3 - (height - 8) * (value / most);
  const line = shown.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  return s("svg", { class: "chart spark", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Rows per second over the last ${lasted(now - first)}; at most ${count(most)}` },
    s("path", { class: "area", d: `${line}L${x(shown.at(-1)[0])} ${height}L0 ${height}Z` }), s("path", { class: "line", d: line }));
}
