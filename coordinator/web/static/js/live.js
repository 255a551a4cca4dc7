// The connection that tells what has changed. It is made again whenever it ends, ever less often, and says so.

import { stream } from "./api.js";

const FIRST_MS = 250;
const LONGEST_MS = 5000;
const SILENT_MS = 15_000; // the server says something every few seconds: longer silence is a dead connection

export class Live {
  constructor(changed) {
    this._changed = changed; // (state, words) of the connection
    this._heard = () => {};
    this._query = {};
    this._stop = null;
  }

  /** Follow something: `heard(event, data)` is called with each message. Replaces what was followed before. */
  follow(query, heard) {
    this.stop();
    this._query = query;
    this._heard = heard;
    this._stop = new AbortController();
    this._run(this._stop.signal);
  }

  stop() {
    this._stop?.abort();
    this._stop = null;
  }

  async _run(ended) {
    let pause = FIRST_MS;
    while (!ended.aborted) {
      const connection = new AbortController();
      const end = () => connection.abort();
      ended.addEventListener("abort", end);
      let watchdog = setTimeout(end, SILENT_MS);
      try {
        await stream("/live", this._query, connection.signal, (event, data) => {
          if (ended.aborted) return;
          clearTimeout(watchdog);
          watchdog = setTimeout(end, SILENT_MS);
          pause = FIRST_MS;
          this._changed("live", "Live");
          if (event) this._heard(event, data);
        });
      } catch (error) {
        if (ended.aborted) return;
      } finally {
        clearTimeout(watchdog);
        ended.removeEventListener("abort", end);
      }
      if (ended.aborted) return;
      this._changed("lost", "Connection lost, trying again");
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(2 * pause, LONGEST_MS);
    }
  }
}
