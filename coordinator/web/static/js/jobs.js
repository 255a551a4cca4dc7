// The overview: how many jobs are in which state, and a list of any length of which only what is in sight is fetched
// and drawn.

import { h, replace } from "./dom.js";
import { figure, icon, state, tasksMeter } from "./parts.js";
import { count, glyph, lasted, short, tone, words } from "./words.js";

const CHUNK = 100;
const FILTERS = [
  ["", "All", []],
  ["running", "Running", ["RUNNING", "DRAINING", "SAVEPOINTING", "PAUSING"]],
  ["starting", "Starting", ["CREATED", "SCHEDULED"]],
  ["failing", "Failed", ["FAILING", "FAILED"]],
  ["paused", "Paused", ["PAUSED", "SAVEPOINTED"]],
  ["finished", "Finished", ["FINISHED"]],
  ["canceled", "Canceled", ["CANCELED", "CANCELLING"]],
];
const GLYPH_OF = { running: "RUNNING", starting: "SCHEDULED", failing: "FAILED", paused: "PAUSED", finished: "FINISHED", canceled: "CANCELED" };

export class JobsPage {
  constructor(main, app, _params, query) {
    Object.assign(this, { main, app, filter: query.get("state") ?? "", search: query.get("q") ?? "" });
    Object.assign(this, { chunks: new Map(), total: 0, counts: {}, selected: -1, cluster: null, error: null });
    this.keys = { "/": () => this.field.focus(), j: () => this._select(1), k: () => this._select(-1) };
  }

  open() {
    document.title = "Jobs · Detent";
    this.heading = h("div", { class: "page-head" });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Filter by state" });
    this.field = h("input", {
      type: "search", placeholder: "Search by name", value: this.search, "aria-label": "Search jobs by name", spellcheck: "false",
      oninput: () => this._searched(),
      onkeydown: (event) => { if (event.key === "Enter" || event.key === "ArrowDown") { this.field.blur(); this._select(1); } },
    });
    this.searchBox = h("div", { class: "search" }, this.field, h("kbd", { "aria-hidden": "true" }, "/"));
    this.spacer = h("div", { class: "spacer", role: "list", "aria-label": "Jobs" });
    this.viewport = h("div", { class: "viewport", onscroll: () => this._scrolled() }, this.spacer);
    this.empty = h("p", { class: "quiet centre", hidden: true });
    const columns = [["State"], ["Job"], ["Tasks", "hide-2"], ["Rows/s", "n hide-2"], ["Rows", "n hide-1 hide-2"], ["Checkpoint age", "n"], ["For", "n hide-1 hide-2"]];
    this.main.append(this.heading, h("div", { class: "filters" }, this.chips, this.searchBox),
      h("div", { class: "card list" },
        h("div", { class: "row-head", "aria-hidden": "true" }, columns.map(([name, kind = ""]) => h("span", { class: kind }, name))),
        this.viewport, this.empty));
    this.resized = new ResizeObserver(() => this._draw());
    this.resized.observe(this.viewport);
    this.app.follow({ view: "overview" }, (event) => { if (event === "changed" || event === "hello") this.app.refresh(); });
    this.ticking = setInterval(() => { if (this.app.at === null) this._draw(); }, 1000);
  }

  close() {
    this.resized.disconnect();
    clearInterval(this.ticking);
  }

  get rowHeight() { return matchMedia("(max-width: 720px)").matches ? 64 : 48; }

  _query() {
    const states = FILTERS.find(([name]) => name === this.filter)?.[2] ?? [];
    return { state: states, search: this.search, limit: CHUNK };
  }

  _inSight() {
    const first = Math.floor(this.viewport.scrollTop / this.rowHeight);
    const last = Math.ceil((this.viewport.scrollTop + this.viewport.clientHeight) / this.rowHeight);
    return [Math.max(0, first - 8), last + 8];
  }

  async load() {
    const [first, last] = this._inSight();
    const starts = new Set([Math.floor(first / CHUNK) * CHUNK, Math.floor(Math.min(last, Math.max(0, this.total - 1)) / CHUNK) * CHUNK]);
    const asked = JSON.stringify([this.filter, this.search, this.app.at]);
    const [cluster, ...pages] = await Promise.all([
      this.app.get("/overview"),
      ...[...starts].map((start) => this.app.get("/jobs", { ...this._query(), start })),
    ]);
    if (asked !== JSON.stringify([this.filter, this.search, this.app.at])) return;
    this.error = null;
    this.cluster = cluster;
    this.chunks = new Map(pages.map((page) => [page.start, page.items]));
    this.total = pages[0].total;
    this.counts = pages[0].counts;
    this.fetchedAt = this.app.now();
    this._draw();
  }

  failed(error) {
    this.error = error;
    this._draw();
  }

  _searched() {
    this.search = this.field.value.trim();
    this._changed();
  }

  _choose(name) {
    this.filter = name;
    this._changed();
  }

  _changed() {
    const query = new URLSearchParams();
    if (this.filter) query.set("state", this.filter);
    if (this.search) query.set("q", this.search);
    history.replaceState(null, "", `#/jobs${query.size ? `?${query}` : ""}`);
    this.viewport.scrollTop = 0;
    this.selected = -1;
    this.app.refresh({ soon: true });
  }

  _scrolled() {
    this._draw();
    const [first, last] = this._inSight();
    if (!this._row(first) || !this._row(Math.min(last, this.total - 1))) this.app.refresh({ soon: true });
  }

  _row(index) {
    return this.chunks.get(Math.floor(index / CHUNK) * CHUNK)?.[index % CHUNK];
  }

  _select(direction) {
    if (!this.total) return;
    this.selected = Math.max(0, Math.min(this.total - 1, this.selected + direction));
    const top = this.selected * this.rowHeight;
    const { scrollTop, clientHeight } = this.viewport;
    if (top < scrollTop) this.viewport.scrollTop = top;
    else if (top + this.rowHeight > scrollTop + clientHeight) this.viewport.scrollTop = top + this.rowHeight - clientHeight;
    this._draw();
    this.spacer.querySelector(`[data-key="row-${this.selected}"]`)?.focus({ preventScroll: true });
  }

  _draw() {
    this._drawHeading();
    this._drawChips();
    this.spacer.style.height = `${this.total * this.rowHeight}px`;
    this.viewport.hidden = this.total === 0;
    const [first, last] = this._inSight();
    const rows = [];
    for (let index = first; index < Math.min(last, this.total); index += 1) rows.push(this._drawRow(index, this._row(index)));
    replace(this.spacer, rows);
    this.empty.hidden = this.total > 0;
    this.empty.textContent = this.error ? `${this.error.message}.`
      : this.search || this.filter ? "No job fits." : "No job so far. Submit one: detent submit examples/hello.yaml";
  }

  _drawHeading() {
    const known = this.cluster;
    if (!known) return replace(this.heading, h("h1", {}, "Jobs"));
    const now = this.app.at === null; // what workers say is not on the log: of the past nobody knows it
    replace(this.heading, h("h1", {}, "Jobs"),
      h("dl", { class: "figures right" },
        now && figure("Rows per second", short(known.rowsPerSecond)),
        now && figure("Unhealthy", h("span", { class: known.unhealthy ? "late" : "" }, count(known.unhealthy))),
        now && figure("Workers", [count(known.workers), h("small", {}, ` ${count(known.slotsUsed)}/${count(known.slots)} slots`)]),
        figure("Shards led", [count(known.shardsLed), h("small", {}, `/${count(known.shards)}`)])));
  }

  _drawChips() {
    const sum = (states) => (states.length ? states : Object.keys(this.counts)).reduce((total, name) => total + (this.counts[name] ?? 0), 0);
    const chip = ([name, label, states]) => h("button", {
      class: "chip", type: "button", "data-key": `chip-${name}`, "aria-pressed": String(this.filter === name), onclick: () => this._choose(name),
    }, name && h("span", { class: `state tone-${tone(GLYPH_OF[name])}` }, icon(glyph(GLYPH_OF[name]))), label, h("b", {}, count(sum(states))));
    const shown = FILTERS.filter(([name, , states]) => !name || name === this.filter || name === "running" || sum(states));
    replace(this.chips, shown.map(chip));
  }

  _drawRow(index, job) {
    const place = { class: "place", "data-key": `place-${index}`, role: "listitem", "aria-setsize": this.total, "aria-posinset": index + 1, style: { top: `${index * this.rowHeight}px` } };
    if (!job) return h("div", place, h("div", { class: "row loading" }, "…"));
    const passed = Math.max(0, this.app.now() - this.fetchedAt);
    const since = job.since ? this.app.now() - job.since : null;
    const age = job.isEnded || job.secondsSinceLastCheckpoint === null ? null : job.secondsSinceLastCheckpoint * 1000 + passed;
    const unwell = job.health === "UNHEALTHY";
    const said = unwell || job.health === "WAITING" ? job.healthReason : job.reason;
    const link = { class: "row", "data-key": `row-${index}`, href: `#/jobs/${encodeURIComponent(job.id)}`,
      "aria-label": `${job.id}, ${words(job.state)}${unwell ? `, unhealthy: ${job.healthReason}` : ""}` };
    return h("div", place, h("a", link,
      unwell ? state("UNHEALTHY", { label: words(job.state) }) : state(job.state),
      h("span", { class: "name" }, h("b", {}, job.id), h("small", { class: unwell || job.state === "FAILED" ? "bad" : "" }, said || (job.mode === "STREAMING" ? "Streaming" : "Batch"))),
      h("span", { class: "tasks hide-2" }, Object.keys(job.tasks).length > 0 && tasksMeter(job.tasks)),
      h("span", { class: "n hide-2" }, job.isEnded || this.app.at !== null ? "" : short(job.rowsPerSecond)),
      h("span", { class: "n hide-1 hide-2" }, short(Math.max(job.rows, job.rowsPublished))),
      h("span", { class: `n age${unwell ? " late" : ""}` }, age === null ? "" : lasted(age)),
      h("span", { class: "n hide-1 hide-2 soft" }, since === null ? "" : lasted(since))));
  }
}
