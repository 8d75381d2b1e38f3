// The one stream of everything that happens, over lost connections and restarts of the server, without a gap.

import { Problem } from "./api.js";
import { Decoder } from "./sse.js";

const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 4000;
const SILENCE = 45_000; // three heartbeats: a connection that says nothing for so long is dead

/**
 * Follows `/v1/events`, after an event if there is a cursor. `onEvent` gets each event once and in order, with its id;
 * `onGap` is called when what happened up to an id is not known (at first, and when the server has lost it), `onState`
 * with `live` or `lost`, `onBeat` whenever the server has said something.
 */
export class Feed {
  #api;
  #told;
  /** @type {string | null} */
  #cursor;
  #ended = new AbortController();

  /**
   * @param {any} api
   * @param {{ onEvent: (event: any, id: string | null) => void, onGap: (cursor: string | null) => void,
   *   onState: (state: string) => void, onBeat: () => void }} told
   * @param {string | null} cursor
   */
  constructor(api, told, cursor = null) {
    this.#api = api;
    this.#told = told;
    this.#cursor = cursor;
  }

  stop() {
    this.#ended.abort();
  }

  async run() {
    let pause = FIRST_PAUSE;
    while (!this.#ended.signal.aborted) {
      const began = Date.now();
      let orderly = false;
      try {
        orderly = await this.#once(() => (pause = FIRST_PAUSE));
      } catch (error) {
        if (error instanceof Problem && error.status === 401) return;
      }
      if (this.#ended.signal.aborted) return;
      if (orderly && Date.now() - began >= FIRST_PAUSE) continue; // its time was over: at once again
      this.#told.onState("lost");
      await this.#rest(pause);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }

  /** Read one connection to its end; true when that was its time limit and not a loss. */
  async #once(connected) {
    const broken = new AbortController();
    const stop = () => broken.abort();
    this.#ended.signal.addEventListener("abort", stop);
    let silence = setTimeout(stop, SILENCE);
    try {
      const headers = { Accept: "text/event-stream" };
      if (this.#cursor !== null) headers["Last-Event-ID"] = this.#cursor;
      const answer = await this.#api.request("/v1/events", { headers, signal: broken.signal });
      connected();
      this.#told.onState("live");
      if (this.#cursor === null) this.#told.onGap(null);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const decoder = new Decoder();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return true;
        clearTimeout(silence);
        silence = setTimeout(stop, SILENCE);
        this.#told.onBeat();
        for (const event of decoder.feed(value)) {
          if (!this.#take(event)) return false;
        }
      }
    } finally {
      clearTimeout(silence);
      this.#ended.signal.removeEventListener("abort", stop);
      broken.abort();
    }
  }

  /** Pass one event on; false when the stream says goodbye. */
  #take({ id, event, data }) {
    if (id) this.#cursor = id;
    if (event === "goodbye") return false;
    if (event === "stale") this.#told.onGap(this.#cursor);
    else this.#told.onEvent(JSON.parse(data), id || null);
    return true;
  }

  /** Wait, but not longer than until the network is back. */
  #rest(milliseconds) {
    return new Promise((/** @type {(value?: undefined) => void} */ resume) => {
      const go = () => {
        clearTimeout(timer);
        removeEventListener("online", go);
        this.#ended.signal.removeEventListener("abort", go);
        resume();
      };
      const timer = setTimeout(go, milliseconds);
      addEventListener("online", go);
      this.#ended.signal.addEventListener("abort", go);
    });
  }
}
