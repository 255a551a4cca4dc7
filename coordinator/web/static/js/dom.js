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
    if (name.startsWith("on")) listen(element, name.slice(2), value);
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

/** What is to be done on an event can be changed later: a kept element does what its newest picture would do. */
function listen(element, event, act) {
  element.acts ??= {};
  if (!(event in element.acts)) element.addEventListener(event, (happened) => element.acts[event]?.(happened));
  element.acts[event] = act;
}

/** Let the element's content become this. What is there already stays the same element, so a button that is being
 * pressed, a selected text, the focus, a scrolled list and opened details outlive every redraw. Children are told
 * apart by their data-key, those without one by their place. */
export function replace(element, ...children) {
  const made = document.createDocumentFragment();
  add(made, children);
  become(element, made);
}

function become(element, made) {
  const keys = new Set([...made.children].map(keyOf));
  const kept = new Map();
  for (const one of [...element.children]) {
    const key = keyOf(one);
    if (key && !keys.has(key)) one.remove();
    else if (key) kept.set(key, one);
  }
  let here = element.firstChild;
  for (const one of [...made.childNodes]) {
    const key = keyOf(one);
    const old = key ? kept.get(key) : here && !keyOf(here) ? here : null;
    kept.delete(key); // a key that comes twice keeps one
    if (old?.nodeName !== one.nodeName) {
      element.insertBefore(one, here);
      continue;
    }
    if (old === here) here = here.nextSibling;
    else element.insertBefore(old, here);
    if (old.nodeType === Node.ELEMENT_NODE) turn(old, one);
    else if (old.data !== one.data) old.data = one.data;
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

const keyOf = (node) => node.dataset?.key;

function turn(old, made) {
  for (const { name } of [...old.attributes]) {
    if (!made.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of made.attributes) {
    if (old.getAttribute(name) === value) continue;
    if (name === "style") old.style.cssText = value; // as an attribute it would be against the page's policy
    else old.setAttribute(name, value);
  }
  for (const event of Object.keys(old.acts ?? {})) if (!made.acts?.[event]) old.acts[event] = null;
  for (const [event, act] of Object.entries(made.acts ?? {})) listen(old, event, act);
  become(old, made);
}
