// The job's graph as a drawing: steps in columns, each as far right as its longest way from a source; lines between.

import { s } from "./dom.js";

const WIDTH = 168;
const HEIGHT = 54;
const GAP_X = 74;
const GAP_Y = 18;

function columns(steps) {
  const byName = new Map(steps.map((step) => [step.name, step]));
  const depth = new Map();
  const depthOf = (step, seen = new Set()) => {
    if (depth.has(step.name)) return depth.get(step.name);
    if (seen.has(step.name)) return 0;
    seen.add(step.name);
    const inputs = step.inputs.map((name) => byName.get(name)).filter(Boolean);
    const found = inputs.length ? 1 + Math.max(...inputs.map((one) => depthOf(one, seen))) : 0;
    depth.set(step.name, found);
    return found;
  };
  const last = Math.max(0, ...steps.map((step) => depthOf(step)));
  const places = Array.from({ length: last + 1 }, () => []);
  for (const step of steps) places[step.role === "sink" ? last : depthOf(step)].push(step);
  return places.filter((column) => column.length);
}

/** Each column is ordered by the middle of what its steps read: fewer lines cross. */
function arranged(steps) {
  const placed = columns(steps);
  const at = new Map();
  const rows = Math.max(...placed.map((column) => column.length));
  placed.forEach((column, index) => {
    const middle = (step) => step.inputs.reduce((sum, name) => sum + (at.get(name)?.y ?? 0), 0) / (step.inputs.length || 1);
    const ordered = index ? [...column].sort((a, b) => middle(a) - middle(b)) : column;
    const offset = ((rows - ordered.length) * (HEIGHT + GAP_Y)) / 2;
    ordered.forEach((step, row) => at.set(step.name, { step, x: index * (WIDTH + GAP_X), y: offset + row * (HEIGHT + GAP_Y) }));
  });
  return { at, width: placed.length * (WIDTH + GAP_X) - GAP_X, height: rows * (HEIGHT + GAP_Y) - GAP_Y };
}

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

export function graph(steps, { flows = () => false, under = (step) => step.kind } = {}) {
  if (!steps.length) return null;
  const { at, width, height } = arranged(steps);
  const edges = [];
  for (const { step, x, y } of at.values()) {
    for (const name of step.inputs) {
      const from = at.get(name);
      if (!from) continue;
      const [x0, y0, x1, y1] = [from.x + WIDTH, from.y + HEIGHT / 2, x, y + HEIGHT / 2];
      const bend = GAP_X / 2; // right after the step, then straight: a long line passes beside the steps between
      edges.push(s("path", { class: `edge${flows(step) ? " flows" : ""}`, d: `M${x0} ${y0}C${x0 + bend} ${y0} ${x0 + bend} ${y1} ${x0 + GAP_X} ${y1}L${x1} ${y1}` }));
    }
  }
  const boxes = [...at.values()].map(({ step, x, y }) => s("g", { transform: `translate(${x} ${y})` },
    s("title", {}, `${step.name} (${step.kind})`),
    s("rect", { class: `box box-${step.role}`, width: WIDTH, height: HEIGHT, rx: 10 }),
    s("text", { class: "step-name", x: 14, y: 23 }, cut(step.name, 20)),
    s("text", { x: 14, y: 40 }, cut(under(step), 24))));
  const label = steps.map((step) => (step.inputs.length ? `${step.name} reads ${step.inputs.join(" and ")}` : `${step.name} is a ${step.role}`)).join("; ");
  const frame = { class: "graph", viewBox: `-2 -2 ${width + 4} ${height + 4}`, role: "img", "aria-label": `Graph: ${label}`, style: { "max-width": `${width * 1.15}px` } };
  return s("svg", frame, edges, boxes);
}
