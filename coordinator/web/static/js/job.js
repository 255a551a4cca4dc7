// A job: what it does and why, its graph, its tasks over time, its checkpoints, everything that happened to it, and
// what can be done about it.

import { command } from "./api.js";
import { checkpointChart, spark, taskTimeline } from "./charts.js";
import { h, replace } from "./dom.js";
import { graph } from "./graph.js";
import { ask, card, figure, state, toast } from "./parts.js";
import { bytes, clock, count, lasted, moment, short, words } from "./words.js";

const HISTORY = 300;
const POINTS = 400;
const EXPLAIN_MS = 3000;
const GOES_ON = ["SCHEDULED", "RUNNING"];
const CAN_CANCEL = ["CREATED", "SCHEDULED", "RUNNING", "SAVEPOINTING", "DRAINING", "PAUSING", "PAUSED"];

export class JobPage {
  constructor(main, app, { id }) {
    Object.assign(this, { main, app, id, detail: null, history: [], checkpoints: [], why: null, cluster: null, speeds: [] });
    this.keys = { s: () => this._savepoint(), x: () => this._cancel() };
  }

  open() {
    document.title = `${this.id} · Detent`;
    this.body = h("div", {});
    this.main.append(this.body);
    this.resized = new ResizeObserver(() => { if (this.detail) this._draw(); });
    this.resized.observe(this.main);
    this.app.follow({ view: "job", job: this.id }, (event, data) => {
      if (event === "job") this._sampled(data.job);
      if (event === "hello" || data.logged) this.fresh = false;
      if (event === "hello" || event === "changed") this.app.refresh();
    });
  }

  close() {
    clearTimeout(this.later);
    this.resized.disconnect();
  }

  moved() {
    this.speeds = [];
    this.fresh = false;
  }

  /** What is on the log is asked for again only when there is more of it; what workers say, each time. At first the job
   * itself is shown as soon as it is there. */
  async load() {
    const path = `/jobs/${encodeURIComponent(this.id)}`;
    const again = !this.fresh;
    this.fresh = true;
    const rest = again && Promise.all([
      this.app.get(`${path}/history`, { limit: HISTORY }), this.app.get(`${path}/checkpoints`), this._explained(path),
      this.app.get("/cluster"),
    ]);
    if (rest) rest.catch(() => {}); // it is told below; the job may fail first
    this.detail = await this.app.get(path);
    this.fetchedAt = this.app.now();
    if (!rest || !this.cluster) this._draw();
    if (!rest) return;
    const [history, checkpoints, why, cluster] = await rest;
    Object.assign(this, { history: history.items, checkpoints: checkpoints.items, why, cluster });
    this._draw();
  }

  /** Telling it takes longer than showing it, so that is done less often; the facts are worth showing without it. */
  async _explained(path) {
    const moment = this.app.at ?? Math.floor(Date.now() / EXPLAIN_MS);
    if (this.why && this.explained === moment && !this.detail?.job.isEnded) {
      clearTimeout(this.later);
      this.later = setTimeout(() => { this.fresh = false; this.app.refresh(); }, EXPLAIN_MS);
      return this.why;
    }
    this.explained = moment;
    return this.app.get(`${path}/explain`, { utcOffset: -new Date().getTimezoneOffset() }).catch(() => null);
  }

  failed(error) {
    this.fresh = false;
    if (error.status === 404) {
      replace(this.body, this._crumb(), h("h1", {}, this.id),
        h("p", { class: "quiet centre" }, this.app.at === null ? "There is no such job. It may have been cleaned up." : "It was not there at that moment."));
    } else if (!this.detail) replace(this.body, h("p", { class: "quiet centre" }, `${error.message}.`));
  }

  _sampled(job) {
    this.speeds.push([this.app.now(), job.rowsPerSecond]);
    if (this.speeds.length > POINTS) this.speeds.shift();
  }

  // Doing ------------------------------------------------------------------------------------------------------------

  async _send(action, done) {
    try {
      const sent = await command(this.id, action);
      const outcome = await this.app.get(`/jobs/${encodeURIComponent(this.id)}/commands/${sent.id}`, { after: sent.after });
      if (outcome.state === "REFUSED") toast(`Refused: ${outcome.reason}`, "bad");
      else toast(outcome.state === "ACCEPTED" ? done : "Sent; nobody has answered yet", "good");
    } catch (error) {
      toast(error.message, "bad");
    }
    this.app.refresh({ soon: true });
  }

  get _may() {
    return this.app.at === null && this.app.role === "operate";
  }

  async _cancel() {
    if (!this._may || !CAN_CANCEL.includes(this.detail?.job.state)) return;
    const given = await ask({
      title: `Cancel ${this.id}?`, text: "Its tasks stop now. What no completed checkpoint names is discarded; what is published stays.",
      fields: [{ name: "reason", label: "Why, for the record" }], yes: "Cancel the job", danger: true,
    });
    if (given) await this._send({ type: "cancel", reason: given.reason }, `${this.id} is being canceled`);
  }

  async _savepoint() {
    if (!this._may || !GOES_ON.includes(this.detail?.job.state)) return;
    const given = await ask({
      title: `Savepoint of ${this.id}`, text: "A checkpoint of every pipeline is kept under this name, to restore from. The job goes on.",
      fields: [{ name: "name", label: "Name", value: `at-${new Date(this.app.now()).toISOString().slice(0, 19).replaceAll(":", "-")}`, required: true }], yes: "Take it",
    });
    if (given) await this._send({ type: "savepoint", name: given.name }, `Savepoint ${given.name} is being taken`);
  }

  async _restart() {
    const kept = this.detail.savepoints.filter((one) => one.state === "KEPT").map((one) => one.name);
    const given = await ask({
      title: `Restart ${this.id}?`, text: "It runs again from its newest committed checkpoint, or from a savepoint.",
      fields: [{ name: "savepoint", label: kept.length ? `Savepoint (${kept.join(", ")}), or empty` : "Savepoint, or empty" }], yes: "Restart",
    });
    if (given) await this._send({ type: "restore", savepoint: given.savepoint }, `${this.id} runs again`);
  }

  async _simple(type, title, text, yes, done) {
    const given = await ask({ title, text, fields: [{ name: "reason", label: "Why, for the record" }], yes });
    if (given) await this._send({ type, reason: given.reason }, done);
  }

  _actions(job) {
    const button = (label, can, act, kind = "") => h("button", { type: "button", class: kind, "data-key": `act-${label}`, disabled: !(this._may && can), onclick: act }, label);
    const ended = job.isEnded;
    return h("div", { class: "actions right" },
      !ended && button("Savepoint", GOES_ON.includes(job.state), () => this._savepoint()),
      !ended && job.state !== "PAUSED" && button("Pause", GOES_ON.includes(job.state), () => this._simple("pause", `Pause ${this.id}?`, "It stops after a checkpoint and keeps its place.", "Pause", `${this.id} is pausing`)),
      job.state === "PAUSED" && button("Resume", true, () => this._simple("resume", `Resume ${this.id}?`, "It goes on from its last checkpoint.", "Resume", `${this.id} goes on`)),
      !ended && button("Drain", GOES_ON.includes(job.state), () => this._simple("stop", `Drain ${this.id}?`, "What it has read is published; then it is finished.", "Drain", `${this.id} is draining`)),
      !ended && button("Cancel", CAN_CANCEL.includes(job.state), () => this._cancel(), "danger"),
      ended && button("Restart", true, () => this._restart()));
  }

  // Showing ----------------------------------------------------------------------------------------------------------

  _crumb() {
    return h("div", { class: "crumb" }, h("a", { href: "#/jobs" }, "Jobs"), " / ");
  }

  _draw() {
    const { job, tasks, graph: steps, pipelines } = this.detail;
    const width = Math.max(320, this.main.clientWidth - 60);
    const ended = job.isEnded;
    replace(this.body, this._crumb(),
      h("div", { class: "page-head" },
        h("div", { class: "title" }, h("h1", {}, this.id), state(job.state, { pill: true }), job.health === "UNHEALTHY" && state("UNHEALTHY", { pill: true })),
        this._actions(job)),
      h("div", { class: "grid" },
        this._summary(job),
        this.why && this._why(job),
        !ended && this.app.at === null && card("Rows per second", "third", spark(this.speeds, { width: 360, now: this.app.now() }), h("p", { class: "note" }, `${short(job.rowsPerSecond)} now`)),
        steps.length > 0 && card("Pipeline", ended || this.app.at !== null ? "wide" : "two-thirds", this._graph(steps, tasks, pipelines)),
        (tasks.length > 0 || this.history.some((one) => one.kind === "task")) && card("Tasks over time", "wide", this._timeline(job, tasks, width)),
        card("Checkpoints", "wide", checkpointChart(this.checkpoints, { width }), this._pipelines(pipelines)),
        tasks.length > 0 && card("Tasks", "wide", this._tasks(tasks)),
        card("Everything that happened", "wide", this._history()),
        (this.detail.commands.length > 0 || this.detail.savepoints.length > 0) && card("Commands and savepoints", "wide", this._commands()),
        Object.keys(this.detail.specification).length > 0 && h("section", { class: "card wide", "data-key": "specification" },
          h("details", {}, h("summary", {}, "Specification"), h("pre", { class: "spec", tabindex: 0 }, JSON.stringify(this.detail.specification, null, 2))))));
  }

  _summary(job) {
    const passed = Math.max(0, this.app.now() - this.fetchedAt);
    const age = job.secondsSinceLastCheckpoint === null ? null : job.secondsSinceLastCheckpoint * 1000 + passed;
    const began = job.startedAt ?? job.submittedAt;
    const facts = [
      figure("Rows read", short(job.rows), bytes(job.bytesRead)),
      figure("Rows published", short(job.rowsPublished)),
      job.isEnded ? figure("Checkpoints", count(job.checkpoints))
        : figure("Last checkpoint", [age === null ? "none yet" : lasted(age), age !== null && h("small", {}, " ago")], job.lastCheckpointId ? `number ${count(job.lastCheckpointId)}, took ${lasted(job.lastCheckpointDurationMs)}` : "since it began"),
      figure(job.isEnded ? "Ran for" : "Running for", lasted((job.endedAt ?? this.app.now()) - began), `since ${moment(began)}`),
      figure("Restarts", count(job.restarts)),
      figure("Shard", String(job.shard), job.submittedBy ? `submitted by ${job.submittedBy}` : `incarnation ${job.incarnation}`),
    ];
    return h("section", { class: "card wide", "aria-label": "Figures" }, h("dl", { class: "figures" }, facts));
  }

  _why(job) {
    const bad = job.health === "UNHEALTHY" || job.state === "FAILED" || job.state === "FAILING";
    const { headline, why, waits, story, ignored, notes } = this.why;
    const wait = (one) => h("li", {}, one.what, one.moves && h("div", { class: "quiet" }, one.moves));
    const happened = (one) => h("li", { class: `told-${one.kind}` }, h("time", {}, clock(one.time, { millis: true })), h("span", {}, one.text));
    const shown = card(bad ? "What went wrong" : "In words", "wide",
      h("p", { class: "sentence" }, headline),
      why.length > 0 && h("ol", { class: "why" }, why.map((one) => h("li", {}, one))),
      waits.length > 0 && h("ul", { class: "waits" }, waits.map(wait)),
      h("details", { "data-key": "story" }, h("summary", {}, `The whole story (${count(story.length)})`),
        h("ol", { class: "story", tabindex: 0 }, story.map(happened)),
        ignored.length > 0 && h("p", { class: "note" }, `Late or ignored: ${ignored.map((one) => one.text).join(" ")}`),
        notes.map((one) => h("p", { class: "note" }, one))));
    shown.dataset.key = "why"; // whichever title it has: an opened story stays open when the job gets well
    if (bad) shown.classList.add("trouble");
    return shown;
  }

  _graph(steps, tasks, pipelines) {
    const running = new Set(pipelines.filter((one) => one.state === "RUNNING").map((one) => one.pipeline));
    const under = (step) => {
      const mine = tasks.filter((task) => task.pipeline === step.pipeline && step.tasks.includes(task.task));
      if (step.role !== "source" || !mine.length) return step.kind;
      return `${step.kind} · ${mine.length} task${mine.length > 1 ? "s" : ""} · ${short(mine.reduce((sum, task) => sum + task.rowsPerSecond, 0))}/s`;
    };
    return h("div", { class: "scroll" }, graph(steps, { flows: (step) => running.has(step.pipeline) && this.app.at === null, under }));
  }

  _timeline(job, tasks, width) {
    const transitions = [...this.history].reverse();
    const first = transitions.find((one) => one.kind === "task")?.time ?? job.submittedAt;
    const to = job.endedAt ?? this.app.now();
    const shard = this.cluster?.shards.find((one) => one.shard === job.shard);
    return taskTimeline(transitions, tasks, { from: Math.min(first, to - 1000), to, takeovers: shard?.takeovers ?? [], width });
  }

  _pipelines(pipelines) {
    const line = (one) => h("tr", {},
      h("td", {}, `Pipeline ${one.pipeline}`), h("td", {}, state(one.state), one.unhealthy && h("div", { class: "late" }, one.unhealthy)),
      h("td", { class: "n" }, one.lastCheckpointId ? count(one.lastCheckpointId) : "–"),
      h("td", { class: "n nowrap" }, one.lastCheckpointTime ? `${clock(one.lastCheckpointTime)}` : "–"),
      h("td", { class: "n nowrap" }, one.newest ? bytes(one.newest.size) : "–"),
      h("td", { class: "n nowrap" }, one.newest ? lasted(one.newest.durationMs) : "–"),
      h("td", {}, one.pending?.state === "TRIGGERED" ? `number ${one.pending.id} for ${lasted(one.pending.ageMs)}, waits for ${one.pending.waitsFor.length} of ${one.pending.tasks}` : one.reason || ""));
    return pipelines.length > 0 && h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", {}, "State"), h("th", { class: "n" }, "Last"), h("th", { class: "n" }, "At"), h("th", { class: "n" }, "Size"), h("th", { class: "n" }, "Took"), h("th", {}, "In flight"))),
      h("tbody", {}, pipelines.map(line))));
  }

  _tasks(tasks) {
    const line = (one) => h("tr", {},
      h("td", { class: "nowrap" }, `${one.pipeline}.${one.task}`, one.source && h("span", { class: "quiet" }, ` ${one.source}`)),
      h("td", {}, one.isStalled ? state("UNHEALTHY", { label: "Stalled" }) : one.isWaiting ? state("CREATED", { label: "Waits for room" }) : state(one.state), one.reason && h("div", { class: "quiet" }, one.reason)),
      h("td", {}, one.worker || "–"), h("td", { class: "n" }, count(one.attempt)), h("td", { class: "n" }, short(one.rows)),
      h("td", { class: "n" }, one.rowsPerSecond ? short(one.rowsPerSecond) : "–"), h("td", { class: "n nowrap" }, one.since ? lasted(this.app.now() - one.since) : "–"));
    return h("div", { class: "scroll tall" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}, "Task"), h("th", {}, "State"), h("th", {}, "Worker"), h("th", { class: "n" }, "Attempt"), h("th", { class: "n" }, "Rows"), h("th", { class: "n" }, "Rows/s"), h("th", { class: "n" }, "For"))),
      h("tbody", {}, tasks.map(line))));
  }

  _history() {
    if (!this.history.length) return h("p", { class: "note" }, this.cluster ? "The log no longer has it." : "Reading the log…");
    const line = (one) => h("tr", { "data-key": `at-${one.offset}` },
      h("td", { class: "nowrap" }, clock(one.time, { millis: true })),
      h("td", {}, one.entity),
      h("td", {}, h("span", { class: "transition" }, one.from && h("span", { class: "soft" }, words(one.from)), one.from && h("i", {}, "→"), one.to ? state(one.to) : h("span", { class: "quiet" }, "gone")), one.reason && h("div", { class: "quiet" }, one.reason)),
      h("td", { class: "soft" }, one.cause?.text ?? ""),
      h("td", { class: "n soft" }, one.attempt ? count(one.attempt) : ""),
      h("td", { class: "n soft" }, count(one.epoch)), h("td", { class: "n soft" }, count(one.offset)));
    return h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Transitions, newest first" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Time", "What", "From and to", "Cause"].map((one) => h("th", {}, one)), ["Attempt", "Epoch", "Offset"].map((one) => h("th", { class: "n" }, one)))),
      h("tbody", {}, this.history.map(line))));
  }

  _commands() {
    const said = [...this.detail.commands].sort((a, b) => b.decidedAt - a.decidedAt).map((one) => h("tr", {},
      h("td", { class: "nowrap" }, moment(one.decidedAt)), h("td", {}, words(one.action)), h("td", {}, one.by), h("td", {}, state(one.state), one.reason && h("div", { class: "quiet" }, one.reason))));
    const kept = this.detail.savepoints.map((one) => h("tr", {},
      h("td", { class: "nowrap" }, moment(one.keptAt ?? one.begunAt)), h("td", {}, "Savepoint"), h("td", {}, one.name), h("td", {}, state(one.state), one.reason && h("div", { class: "quiet" }, one.reason))));
    return h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, kept, said)));
  }
}
