// The frame: which page is shown, at which moment of the log, and the keys that work everywhere.

import { get } from "./api.js";
import { ClusterPage } from "./cluster.js";
import { Dock } from "./dock.js";
import { h, replace } from "./dom.js";
import { JobPage } from "./job.js";
import { JobsPage } from "./jobs.js";
import { Live } from "./live.js";
import { helpDialog, icon } from "./parts.js";
import { clock, day } from "./words.js";

const REFRESH_MS = 400; // at most so often, however much changes
const RESTS = 2; // for so many times as long as a refresh took: where they are slow, they are fewer

const main = document.getElementById("main");
const status = document.getElementById("live");
const past = document.getElementById("past");
const systemDark = matchMedia("(prefers-color-scheme: dark)");

const app = {
  at: null, // the moment that is shown, in ms; null for now
  role: "read",
  clockSkew: 0, // the server's clock minus ours
  page: null,
  now: () => app.at ?? Date.now() + app.clockSkew,
  get: (path, query = {}, signal = undefined) => get(path, { ...query, at: app.at }, signal),
  go: (hash) => { location.hash = hash; },
  follow: (query, heard) => { app.wanted = [query, heard]; if (app.at === null) live.follow(query, onLive(heard)); },
  refresh,
  said,
};

const live = new Live((state, words) => { if (app.at === null) said(state, words); });
const dock = new Dock(document.getElementById("dock"), app, travel);

function said(state, words) {
  if (status.dataset.state === state && status.textContent === words) return;
  status.dataset.state = state;
  status.textContent = words;
}

const onLive = (heard) => (event, data) => {
  if (event === "hello") {
    app.role = data.role;
    app.clockSkew = data.now - Date.now();
    document.documentElement.dataset.role = data.role;
  }
  dock.heard(event, data);
  heard(event, data);
};

// Refreshing: one at a time, and again when something changed meanwhile.

let running = false;
let again = false;
let next = 0; // not before
let waits = null;

function refresh({ soon = false } = {}) {
  if (running) {
    again = true;
    return;
  }
  if (waits) {
    if (!soon) return;
    clearTimeout(waits);
  }
  const pause = soon ? 0 : Math.max(0, next - performance.now());
  waits = setTimeout(async () => {
    waits = null;
    running = true;
    const began = performance.now();
    try {
      await app.page?.load();
    } catch (error) {
      if (error.name !== "AbortError") app.page?.failed?.(error);
    } finally {
      running = false;
      const ended = performance.now();
      next = Math.max(began + REFRESH_MS, ended + RESTS * (ended - began));
      if (again) {
        again = false;
        refresh();
      }
    }
  }, pause);
}

// Time travel.

function travel(at) {
  app.at = at;
  document.documentElement.dataset.past = at === null ? "" : "yes";
  past.hidden = at === null;
  if (at === null) {
    said("lost", "Connecting");
    if (app.wanted) live.follow(app.wanted[0], onLive(app.wanted[1]));
  } else {
    live.stop();
    said("past", "Paused");
    replace(past,
      h("span", {}, "As it was on ", h("b", {}, `${day(at)}, ${clock(at, { millis: true })}`)),
      h("button", { class: "plain", "data-key": "back-to-now", onclick: () => dock.toNow() }, "Back to now"));
  }
  app.page?.moved?.();
  refresh({ soon: at === null });
}

// Pages.

const PAGES = { jobs: JobsPage, job: JobPage, cluster: ClusterPage };

function route() {
  const [path, search = ""] = location.hash.slice(1).split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  const query = new URLSearchParams(search);
  if (parts[0] === "cluster") return ["cluster", {}, query];
  if (parts[0] === "jobs" && parts[1]) return ["job", { id: parts[1] }, query];
  return ["jobs", {}, query];
}

function show() {
  const [name, params, query] = route();
  const same = app.page?.name === name && app.page?.key === JSON.stringify(params);
  if (!same) {
    app.page?.close?.();
    main.replaceChildren();
    scrollTo(0, 0);
    app.page = new PAGES[name](main, app, params, query);
    app.page.name = name;
    app.page.key = JSON.stringify(params);
    for (const link of document.querySelectorAll(".bar nav a")) {
      const here = link.dataset.page === (name === "job" ? "jobs" : name);
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    app.page.open();
  }
  refresh({ soon: true });
}

// The theme: as the system has it, until somebody chooses.

function drawTheme() {
  const dark = document.documentElement.dataset.theme === "dark"
    || (!document.documentElement.dataset.theme && systemDark.matches);
  const button = document.getElementById("theme");
  button.textContent = dark ? "☾" : "☀";
  button.setAttribute("aria-pressed", String(dark));
  return dark;
}

function changeTheme() {
  const to = drawTheme() ? "light" : "dark";
  document.documentElement.dataset.theme = to;
  localStorage.setItem("detent-theme", to);
  drawTheme();
}

// Keys.

const KEYS = [
  ["/", "Search jobs"], ["j k", "Next, previous job"], ["Enter", "Open the job"], ["g j", "To the jobs"],
  ["g c", "To the cluster"], ["← →", "Back and forth in time"], ["Space", "Play from here"], ["n", "Back to now"],
  ["s", "Savepoint of the job"], ["x", "Cancel the job"], ["t", "Light or dark"], ["?", "This list"],
];
let before = "";

function onKey(event) {
  const typing = event.target.matches("input:not([type=range]), textarea, select");
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const both = `${before} ${event.key}`;
  before = event.key;
  const acts = {
    "?": () => helpDialog(KEYS), t: changeTheme, n: () => dock.toNow(),
    ArrowLeft: () => dock.step(-1, event.shiftKey), ArrowRight: () => dock.step(1, event.shiftKey),
    " ": () => dock.play(),
  };
  if (event.key === " " && event.target.matches("button, a, summary")) return;
  if (event.target.matches("input[type=range]") && event.key.startsWith("Arrow")) return;
  const act = both === "g j" ? () => app.go("#/jobs") : both === "g c" ? () => app.go("#/cluster")
    : app.page?.keys?.[event.key] ?? acts[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
}

document.getElementById("theme").append(icon("dots"));
document.getElementById("theme").addEventListener("click", changeTheme);
document.getElementById("help").addEventListener("click", () => helpDialog(KEYS));
systemDark.addEventListener("change", drawTheme);
addEventListener("keydown", onKey);
addEventListener("hashchange", show);
drawTheme();
said("lost", "Connecting");
dock.start();
show();
