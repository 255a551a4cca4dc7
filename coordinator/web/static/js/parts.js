// Parts that several pages use.

import { h, s } from "./dom.js";
import { glyph, tone, words } from "./words.js";

const GLYPHS = {
  play: ["M4.5 2.5v11l9-5.5z", true],
  check: ["M2.8 8.6l3.4 3.4 7-8", false],
  cross: ["M3.5 3.500l9 9M12.500 3.500l-9 9", false],
  clock: ["M8 1.800a6.200 6.200 0 1 0 0 12.400a6.200 6.200 0 1 0 0-12.400M8 4.500V8l2.400 1.600", false],
  pause: ["M5.200 3v10M10.800 3v10", false],
  slash: ["M8 2a6 6 0 1 0 0 12a6 6 0 1 0 0-12M4 12l8-8", false],
  flag: ["M4 14V2.500h8l-2 3 2 3H4", false],
  down: ["M8 2.500v8M4.500 7.500L8 11l3.500-3.500M3 13.500h10", false],
  dots: ["M3.200 8h.1M8 8h.1M12.700 8h.1", false],
  alert: ["M8 2L1.800 13.500h12.400zM8 6.500v3.200M8 11.700v.1", false],
};

export function icon(name) {
  const [path, filled] = GLYPHS[name] ?? GLYPHS.dots;
  const drawn = filled
    ? s("path", { d: path, fill: "currentcolor" })
    : s("path", { d: path, fill: "none", stroke: "currentcolor", "stroke-width": 1.9, "stroke-linecap": "round", "stroke-linejoin": "round" });
  return s("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, drawn);
}

export function state(name, { pill = false, label = words(name) } = {}) {
  return h("span", { class: `state tone-${tone(name)}${pill ? " pill" : ""}` }, icon(glyph(name)), label);
}

export function figure(name, value, under = "") {
  return h("div", { class: "figure" }, h("dt", {}, name), h("dd", {}, value), under && h("div", { class: "under" }, under));
}

export function card(title, width, ...content) {
  const id = `card-${title.toLowerCase().replace(/\W+/g, "-")}`;
  return h("section", { class: `card ${width}`, "aria-labelledby": id, "data-key": id }, h("h2", { id }, title), ...content);
}

/** Shares of a whole as one bar, with the words for those who do not see it. */
export function meter(parts, label) {
  const total = parts.reduce((sum, [, share]) => sum + share, 0) || 1;
  const shown = parts.filter(([, share]) => share > 0);
  return h("span", { class: "meter", role: "img", "aria-label": label, title: label },
    shown.map(([kind, share]) => h("i", { class: `fill-${kind}`, style: { width: `${(100 * share) / total}%` } })));
}

export function tasksMeter(tasks) {
  const order = ["FINISHED", "READY_TO_CLOSE", "RUNNING", "DEPLOYING", "CREATED", "SUSPENDED", "FAILED", "CANCELED"];
  const names = Object.keys(tasks).sort((a, b) => order.indexOf(a) - order.indexOf(b));
  const label = names.map((name) => `${tasks[name]} ${words(name).toLowerCase()}`).join(", ") || "no tasks";
  return meter(names.map((name) => [tone(name), tasks[name]]), label);
}

export function toast(text, kind = "") {
  const made = h("div", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(made);
  setTimeout(() => made.remove(), kind === "bad" ? 9000 : 5000);
}

/** Ask before something is done. Resolves to the fields' values, or null. */
export function ask({ title, text, fields = [], yes, danger = false }) {
  return new Promise((resolve) => {
    const inputs = fields.map(({ name, label, value = "", required = false, type = "text", hint = "" }) =>
      h("label", {}, label, h("input", { name, value, required, type, placeholder: hint, autocomplete: "off" })));
    const form = h("form", { method: "dialog" },
      h("h2", { id: "ask-title" }, title), text && h("p", { class: "note" }, text), inputs,
      h("div", { class: "buttons" },
        h("button", { type: "button", value: "no", onclick: () => dialog.close("no") }, "Keep as it is"),
        h("button", { type: "submit", value: "yes", class: `primary${danger ? " danger" : ""}` }, yes)));
    const dialog = h("dialog", { "aria-labelledby": "ask-title" }, form);
    dialog.addEventListener("close", () => {
      const values = Object.fromEntries(new FormData(form).entries());
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? values : null);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function helpDialog(keys) {
  const dialog = h("dialog", { "aria-labelledby": "help-title" },
    h("form", { method: "dialog" }, h("h2", { id: "help-title" }, "Keyboard"),
      h("div", { class: "keys" }, keys.map(([key, what]) => [h("span", {}, key.split(" ").map((one) => h("kbd", {}, one))), h("span", {}, what)])),
      h("div", { class: "buttons" }, h("button", { class: "primary" }, "Close"))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
