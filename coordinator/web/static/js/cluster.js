// The cluster: who leads which shard, changes of leaders and where their time went, coordinators, workers.

import { h, replace } from "./dom.js";
import { card, figure, meter, state } from "./parts.js";
import { clock, count, lasted, moment } from "./words.js";

const PARTS = [["detectMs", "detect", "noticed"], ["fenceMs", "fence", "fenced"], ["replayMs", "replay", "replayed"], ["firstCommitMs", "commit", "first commit"]];
const MOST_TAKEOVERS = 30;
const SILENT_MS = 2000; // a coordinator beats ten times a second

export class ClusterPage {
  constructor(main, app) {
    Object.assign(this, { main, app, known: null });
  }

  open() {
    document.title = "Cluster · Detent";
    this.body = h("div", {});
    this.main.append(this.body);
    this.app.follow({ view: "cluster" }, (event) => { if (event === "changed" || event === "hello" || event === "tick") this.app.refresh(); });
  }

  async load() {
    this.known = await this.app.get("/cluster");
    this._draw();
  }

  failed(error) {
    replace(this.body, h("p", { class: "quiet centre" }, `${error.message}.`));
  }

  _draw() {
    const { shards, coordinators, workers, at } = this.known;
    const now = this.app.at === null;
    const led = shards.filter((shard) => shard.state === "LEADING").length;
    const takeovers = shards.flatMap((shard) => shard.takeovers).sort((a, b) => b.at - a.at);
    replace(this.body,
      h("div", { class: "page-head" }, h("h1", {}, "Cluster"),
        h("dl", { class: "figures right" },
          figure("Shards led", [count(led), h("small", {}, `/${count(shards.length)}`)]),
          now && figure("Coordinators", count(coordinators.filter((one) => at - one.heardAt <= SILENT_MS).length)),
          now && figure("Workers", count(workers.filter((one) => one.state === "HEARD").length)),
          figure("Jobs", count(shards.reduce((sum, shard) => sum + shard.jobs, 0))))),
      h("div", { class: "grid" },
        card("Who leads", "wide", h("div", { class: "shards" }, shards.map((shard) => this._shard(shard)))),
        card("Changes of leader", "wide", this._takeovers(takeovers)),
        card("Workers", "two-thirds", this._workers(workers)),
        card("Coordinators", "third", this._coordinators(coordinators, at))));
  }

  _shard(shard) {
    const vacant = shard.state !== "LEADING";
    return h("div", { class: `shard${vacant ? " vacant" : ""}` },
      h("div", { class: "soft" }, `Shard ${shard.shard}`),
      vacant ? state("VACANT", { label: "Nobody leads" }) : h("b", {}, shard.leader),
      h("div", { class: "soft" }, `Epoch ${count(shard.epoch)} · since ${moment(shard.since)}`),
      h("div", { class: "soft" }, `${count(shard.jobs)} ${shard.jobs === 1 ? "job" : "jobs"} · offset ${count(shard.nextOffset)}`),
      h("div", { class: "soft" }, shard.standingBy.length ? `${shard.standingBy.join(", ")} stand${shard.standingBy.length > 1 ? "" : "s"} by` : "Nobody stands by"));
  }

  _takeovers(takeovers) {
    if (!takeovers.length) return h("p", { class: "note" }, "None so far.");
    const shown = takeovers.slice(0, MOST_TAKEOVERS);
    const most = Math.max(1, ...shown.map((one) => one.totalMs ?? 0));
    const line = (one) => {
      const parts = PARTS.filter(([field]) => one[field] !== null);
      const told = parts.map(([field, , name]) => `${name} ${lasted(one[field])}`).join(", ");
      return h("div", { class: "takeover" },
        h("span", {}, h("b", {}, `Shard ${one.shard}`), h("span", { class: "soft" }, ` · ${moment(one.at)}`)),
        h("span", { class: "split", role: "img", "aria-label": told, title: told },
          parts.map(([field, kind]) => h("i", { class: `split-${kind}`, style: { width: `${(100 * one[field]) / most}%` } }))),
        h("span", { class: "n" }, lasted(one.totalMs)),
        h("span", { class: "said" }, `${one.before ? `${one.before} → ` : ""}${one.leader}, epoch ${one.epoch}${one.reason ? `: ${one.reason}` : ""}${told ? ` (${told})` : ""}`));
    };
    return [
      h("div", { class: "legend" }, [["detect", "noticing"], ["fence", "fencing"], ["replay", "reading to the end"], ["commit", "first commit"]].map(([kind, name]) => h("span", {}, h("i", { class: `split-${kind}` }), name))),
      h("div", { class: "tall" }, shown.map(line)),
    ];
  }

  _workers(workers) {
    if (!workers.length) return h("p", { class: "note" }, "Nobody was heard so far. Start one: detent worker");
    const line = (one) => h("tr", {},
      h("td", {}, h("b", {}, one.id), h("div", { class: "quiet" }, [one.host, one.version].filter(Boolean).join(" · "))),
      h("td", {}, state(one.state), one.reason && h("div", { class: "quiet" }, one.reason)),
      h("td", {}, meter([["go", one.used], ["none", Math.max(0, one.slots - one.used)]], `${one.used} of ${one.slots} slots used`), h("div", { class: "quiet" }, `${count(one.used)} of ${count(one.slots)}`)),
      h("td", { class: "n nowrap" }, one.secondsSinceHeard === null ? "never" : `${lasted(one.secondsSinceHeard * 1000)} ago`));
    return h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}, "Worker"), h("th", {}, "State"), h("th", {}, "Slots"), h("th", { class: "n" }, "Heard"))),
      h("tbody", {}, workers.map(line))));
  }

  _coordinators(coordinators, at) {
    if (!coordinators.length) return h("p", { class: "note" }, this.app.at === null ? "Nobody was heard so far. Start one: detent coordinator" : "What coordinators said then is not on the log; who led is.");
    const line = (one) => {
      const leads = Object.keys(one.leads);
      const age = Math.max(0, at - one.heardAt);
      if (age > SILENT_MS) {
        return h("tr", {}, h("td", {}, h("b", {}, one.id), h("div", {}, state("SILENT"))), h("td", { class: "n nowrap" }, `${lasted(age)} ago`));
      }
      return h("tr", {},
        h("td", {}, h("b", {}, one.id), h("div", { class: "quiet" }, leads.length ? `leads ${leads.join(", ")}` : "leads none", one.standingBy.length ? `, stands by for ${one.standingBy.join(", ")}` : "")),
        h("td", { class: "n nowrap" }, `${lasted(age)} ago`, h("div", { class: "quiet" }, `up since ${clock(one.startedAt)}`)));
    };
    return h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, coordinators.map(line))));
  }
}
