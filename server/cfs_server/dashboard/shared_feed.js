// One stream of events for all tabs of a browser: it allows six connections to a server, and each stream is one.
//
// The tab that holds a lock of the browser leads: it reads the stream and sends each event to the others. When it is
// closed, crashes or is frozen, another tab gets the lock and goes on after the last event that it has seen. Each event
// names the one before it, so a tab that has missed some notices, and asks the leader for them.

import { Feed } from "./feed.js";

const RECENT = 500; // events that each tab keeps for those that have missed some
const SILENCE = 60_000; // milliseconds after which a leader that says nothing is taken to be dead
const BEAT = 10_000; // milliseconds after which a leader says that it is there

/**
 * What tabs send to each other. The leader says what there is (`present`), what happens (`event`), that something was
 * missed (`gap`), and to one tab what it has missed (`again`: null if that is not known any more). A new tab says `hello`.
 * @typedef {{ id: string | null, previous: string | null, event: any }} Sent
 * @typedef {{ kind: "present", state: string, cursor: string | null } | ({ kind: "event" } & Sent)
 *   | { kind: "gap", cursor: string | null } | { kind: "again", to: string, sent: Sent[] | null, cursor: string | null }
 *   | { kind: "hello" } | { kind: "missed", me: string, cursor: string | null }} News
 */

/** Follows `/v1/events` as `Feed` does, together with the other tabs that have the same token. */
export class SharedFeed {
  #api;
  #told;
  #me = Math.random().toString(36).slice(2);
  /** @type {BroadcastChannel | null} */
  #channel = null;
  /** @type {Feed | null} the stream, where this tab leads */
  #feed = null;
  #state = "";
  /** @type {string | null} the last event that this tab has seen */
  #cursor = null;
  #joined = false; // it knows where it is in the stream
  #asked = false; // for what it has missed
  /** @type {Sent[]} */
  #recent = [];
  #ended = new AbortController();
  #waiting = new AbortController(); // for the lock
  #frozen = false;
  #leave = () => {};
  #awake = () => {};
  #spoken = 0;
  #timer = 0;

  /** @param {any} api @param {{ onEvent: (event: any) => void, onGap: () => void, onState: (state: string) => void }} told */
  constructor(api, told) {
    this.#api = api;
    this.#told = told;
  }

  stop() {
    this.#ended.abort();
    this.#waiting.abort();
    this.#leave();
    this.#awake();
    this.#channel?.close();
    clearTimeout(this.#timer);
    document.removeEventListener("freeze", this.#freeze);
    document.removeEventListener("resume", this.#resume);
  }

  async run() {
    if (!globalThis.isSecureContext || !navigator.locks) { // by plain HTTP from another machine
      await this.#read();
      return;
    }
    const name = `cfs-events-${await digest(this.#api.token ?? "")}`;
    if (this.#ended.signal.aborted) return;
    this.#channel = new BroadcastChannel(name);
    this.#channel.addEventListener("message", ({ data }) => this.#hear(data, name));
    document.addEventListener("freeze", this.#freeze);
    document.addEventListener("resume", this.#resume);
    this.#say({ kind: "hello" });
    while (!this.#ended.signal.aborted) {
      if (this.#frozen) await new Promise((/** @type {(value?: undefined) => void} */ resolve) => (this.#awake = resolve));
      this.#waiting = new AbortController();
      this.#listen(name);
      await this.#lock(name, { signal: this.#waiting.signal });
    }
  }

  /** Lead as soon as the lock is there, and until it is taken away. @param {string} name @param {LockOptions} options */
  async #lock(name, options) {
    try {
      await navigator.locks.request(name, options, () => this.#lead());
    } catch {
      this.#leave(); // another tab has taken it, or this one does not wait for it any more
    } finally {
      this.#listen(name);
    }
  }

  async #lead() {
    if (this.#ended.signal.aborted || this.#frozen) return;
    clearTimeout(this.#timer);
    const left = new Promise((/** @type {(value?: undefined) => void} */ resolve) => (this.#leave = resolve));
    const refused = await Promise.race([this.#read().then(() => true), left]);
    this.#feed?.stop();
    this.#feed = null;
    if (refused && !this.#frozen) this.stop(); // its token is not valid any more
  }

  /** Read the stream from where this tab is. */
  #read() {
    this.#feed = new Feed(this.#api, {
      onState: (state) => {
        this.#state = state;
        this.#told.onState(state);
        this.#say({ kind: "present", state, cursor: this.#cursor });
      },
      onGap: (cursor) => {
        this.#miss(cursor);
        this.#say({ kind: "gap", cursor });
      },
      onEvent: (event, id) => {
        const sent = { id, previous: this.#cursor, event };
        this.#take(sent);
        this.#say({ kind: "event", ...sent });
      },
      onBeat: () => {
        if (performance.now() - this.#spoken > BEAT) this.#say({ kind: "present", state: this.#state, cursor: this.#cursor });
      },
    }, this.#cursor);
    this.#ended.signal.addEventListener("abort", () => this.#feed?.stop());
    return this.#feed.run();
  }

  /** @param {News} news @param {string} name */
  #hear(news, name) {
    if (news.kind === "hello" || news.kind === "missed") {
      if (this.#feed !== null && this.#state !== "") this.#answer(news);
      return;
    }
    if (this.#feed !== null) return; // from a leader that does not know yet that it is none
    this.#listen(name);
    if (news.kind === "present") this.#present(news.state, news.cursor);
    else if (news.kind === "gap") this.#miss(news.cursor);
    else if (news.kind === "again" && news.to === this.#me) this.#catchUp(news);
    else if (news.kind === "event" && this.#joined) this.#follow(news.previous, news.id, () => this.#take(news));
  }

  /** @param {{ kind: "hello" } | { kind: "missed", me: string, cursor: string | null }} news */
  #answer(news) {
    if (news.kind === "hello") {
      this.#say({ kind: "present", state: this.#state, cursor: this.#cursor });
      return;
    }
    const after = this.#recent.findIndex(({ previous }) => previous === news.cursor);
    this.#say({ kind: "again", to: news.me, sent: after < 0 ? null : this.#recent.slice(after), cursor: this.#cursor });
  }

  /** @param {string} state @param {string | null} cursor */
  #present(state, cursor) {
    if (state !== this.#state) this.#told.onState(state);
    this.#state = state;
    this.#asked = false; // a new leader has not heard it
    if (state !== "live") return;
    if (this.#joined) this.#follow(cursor, cursor, () => {});
    else this.#miss(cursor);
  }

  /** Do something where the last event is this one. @param {string | null} previous @param {string | null} id @param {() => void} then */
  #follow(previous, id, then) {
    if (previous === this.#cursor) then();
    else if (this.#recent.some((sent) => sent.id === id) || this.#asked) return; // known, or about to come
    else {
      this.#asked = true;
      this.#say({ kind: "missed", me: this.#me, cursor: this.#cursor });
    }
  }

  /** @param {{ sent: Sent[] | null, cursor: string | null }} news */
  #catchUp({ sent, cursor }) {
    this.#asked = false;
    if (sent === null) this.#miss(cursor);
    else for (const each of sent) if (each.previous === this.#cursor) this.#take(each);
  }

  /** @param {Sent} sent */
  #take(sent) {
    this.#cursor = sent.id ?? this.#cursor;
    this.#recent.push(sent);
    if (this.#recent.length > 2 * RECENT) this.#recent.splice(0, RECENT);
    this.#told.onEvent(sent.event);
  }

  /** What happened up to an event is not known. @param {string | null} cursor */
  #miss(cursor) {
    this.#cursor = cursor;
    this.#joined = true;
    this.#asked = false;
    this.#recent = [];
    this.#told.onGap();
  }

  /** @param {News} news */
  #say(news) {
    this.#spoken = performance.now();
    if (!this.#ended.signal.aborted) this.#channel?.postMessage(news);
  }

  /** Take the lock from a leader that has been silent for too long: its page is frozen, and it does not know. @param {string} name */
  #listen(name) {
    clearTimeout(this.#timer);
    if (this.#ended.signal.aborted) return;
    this.#timer = setTimeout(() => this.#feed === null && !this.#frozen && this.#lock(name, { steal: true }),
      SILENCE * (1 + Math.random() / 4)); // not all at once
  }

  /** The browser stops this page: another tab leads, and this one does not wait for that. */
  #freeze = () => {
    this.#frozen = true;
    this.#leave();
    this.#waiting.abort();
  };

  #resume = () => {
    this.#frozen = false;
    this.#awake();
  };
}

/** A name for a token that does not tell it. @param {string} token */
async function digest(token) {
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(token)));
  return [...bytes.slice(0, 16)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
