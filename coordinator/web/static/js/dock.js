// The dock of time: what happened when, a slider to any moment of the log, and play.

import { get } from "./api.js";
import { h, s, replace } from "./dom.js";
import { clock, day, lasted } from "./words.js";

const STEPS = 1000;
const BUCKETS = 160;
const TICK_MS = 250;
const FRESH_MS = 5000;
const SPEEDS = [1, 5, 20, 100, 500];

export class Dock {
  constructor(element, app, travel) {
    Object.assign(this, { app, travel, from: 0, to: 0, marks: [], buckets: [], playing: null, fetched: 0 });
    this.slider = h("input", {
      type: "range", min: 0, max: STEPS, value: STEPS, step: 1, "aria-label": "Moment of the log",
      oninput: () => this._dragged(),
      ongoto: (event) => this.goTo(event.detail),
    });
    this.bars = s("svg", { class: "past-bars", preserveAspectRatio: "none", viewBox: `0 0 ${BUCKETS} 34`, "aria-hidden": "true" });
    this.button = h("button", { class: "icon", type: "button", "aria-label": "Play from here", title: "Play (space)", onclick: () => this.play() }, "▶");
    this.speed = h("select", { "aria-label": "Speed" }, SPEEDS.map((one) => h("option", { value: one, selected: one === 5 }, `${one}×`)));
    this.label = h("div", { class: "moment" });
    element.append(
      h("div", { class: "controls" }, this.button, this.speed),
      h("div", { class: "track" }, this.bars, this.slider),
      this.label,
    );
  }

  start() {
    this._fetch();
    setInterval(() => this._tick(), TICK_MS);
  }

  /** What the live connection says: something happened, so the bars are old. */
  heard(event) {
    if (event === "changed" && performance.now() - this.fetched > FRESH_MS) this._fetch();
  }

  async _fetch() {
    this.fetched = performance.now();
    try {
      const { from, to, buckets, marks } = await get("/timeline", { buckets: BUCKETS });
      Object.assign(this, { from: from ?? 0, to: to ?? 0, buckets, marks });
      this._drawBars();
      this._draw();
    } catch (error) {
      if (error.status !== 0 && error.status !== 503) throw error; // that the server is away is said elsewhere
    }
  }

  get end() {
    return this.app.at === null ? Math.max(this.to, Date.now() + this.app.clockSkew) : Math.max(this.to, this.app.at);
  }

  _tick() {
    if (this.playing !== null) {
      const next = this.app.at + TICK_MS * Number(this.speed.value);
      if (next >= Date.now() + this.app.clockSkew) return this.toNow();
      this.travel(next);
    }
    this._draw();
  }

  goTo(at) {
    this._pause();
    this.travel(at);
    this._draw();
  }

  _dragged() {
    this._pause();
    const share = Number(this.slider.value) / STEPS;
    if (share >= 1) return this.toNow();
    this.travel(Math.round(this.from + share * (this.end - this.from)));
    this._draw();
  }

  /** A small step, or with shift to the next thing worth seeing. */
  step(direction, far) {
    this._pause();
    const at = this.app.now();
    const marks = this.marks.map((mark) => mark.at).filter((one) => (direction > 0 ? one > at : one < at));
    const target = far && marks.length
      ? (direction > 0 ? Math.min(...marks) : Math.max(...marks))
      : at + (direction * (this.end - this.from)) / 200;
    if (target >= Date.now() + this.app.clockSkew) return this.toNow();
    this.travel(Math.round(Math.max(this.from, target)));
    this._draw();
  }

  play() {
    if (this.playing !== null) return this._pause();
    this.playing = true;
    if (this.app.at === null) this.travel(this.from);
    this.button.textContent = "❚❚";
    this.button.setAttribute("aria-label", "Pause");
  }

  _pause() {
    this.playing = null;
    this.button.textContent = "▶";
    this.button.setAttribute("aria-label", "Play from here");
  }

  toNow() {
    this._pause();
    if (this.app.at !== null) this.travel(null);
    this._draw();
  }

  _draw() {
    const span = Math.max(1, this.end - this.from);
    const share = this.app.at === null ? 1 : (this.app.at - this.from) / span;
    this.slider.value = String(Math.round(share * STEPS));
    this.slider.style.setProperty("--done", `${100 * share}%`);
    const at = this.app.now();
    this.slider.setAttribute("aria-valuetext", this.app.at === null ? "now" : `${day(at)} ${clock(at)}`);
    replace(this.label,
      h("b", {}, this.app.at === null ? "Now" : clock(at, { millis: false })),
      h("small", {}, this.app.at === null ? clock(at) : `${lasted(Date.now() + this.app.clockSkew - at)} ago`));
  }

  _drawBars() {
    const most = Math.max(1, ...this.buckets);
    const span = Math.max(1, this.to - this.from);
    const bucketOf = (at) => Math.min(BUCKETS - 1, Math.floor((BUCKETS * (at - this.from)) / span));
    const failed = new Set(this.marks.filter((mark) => mark.kind === "failed").map((mark) => bucketOf(mark.at)));
    const bar = (number, index) => {
      const height = number ? 2 + 30 * Math.sqrt(number / most) : 0;
      return s("rect", { x: index + 0.15, width: 0.7, y: 34 - height, height, class: failed.has(index) ? "trouble" : "" });
    };
    const takeovers = this.marks.filter((mark) => mark.kind === "takeover");
    const diamond = (mark) => s("rect", { class: "takeover-mark", x: (BUCKETS * (mark.at - this.from)) / span - 0.5, y: 0, width: 1, height: 34, opacity: 0.75 }, s("title", {}, mark.text));
    replace(this.bars, s("g", { class: "bars" }, this.buckets.map(bar)), takeovers.map(diamond));
  }
}
