// Making elements. Text is always text, never markup: nothing that a user wrote is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child !== null && child !== undefined && child !== false && child !== "") element.append(child);
  }
}

/** Put new content in place of the old, without losing the focus, the scroll or the open details of those within. */
export function replace(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const open = new Set([...element.querySelectorAll("details[open][data-key]")].map((one) => one.dataset.key));
  const scrolled = new Map([...element.querySelectorAll("[data-scroll]")].map((one) => [one.dataset.scroll, one.scrollTop]));
  const made = document.createDocumentFragment();
  add(made, children);
  element.replaceChildren(made);
  for (const one of element.querySelectorAll("details[data-key]")) if (open.has(one.dataset.key)) one.open = true;
  for (const one of element.querySelectorAll("[data-scroll]")) one.scrollTop = scrolled.get(one.dataset.scroll) ?? 0;
  if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}
