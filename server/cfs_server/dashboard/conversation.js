// One session's messages as they grow: what the server says it is, and from then on its events.

import { soon } from "./frame.js";
import { SessionState } from "./session_state.js";

/** A conversation that somebody looks at. `watch` it to be called before the next frame after a change. */
export class Conversation {
  queue = [];
  usage = new Map(); // index of a reply: what its turn cost
  times = new Map(); // index of a message: when it was added, where that was seen
  loaded = false;
  gone = null; // a sentence, once it has been deleted
  movedTo = null;
  error = null;
  #api;
  #session = new SessionState();
  #before = []; // messages that are shown while a replaced history is read
  #stored = { turn: null, text: 0, thinking: 0, calls: 0 }; // how much of the running turn is in messages already
  #loading = null;
  #again = false;
  #waiting = [];
  #watchers = new Set();
  #tell = () => this.#watchers.forEach((watcher) => watcher());

  constructor(api, id) {
    this.#api = api;
    this.id = id;
  }

  get messages() {
    return this.#session.history ?? this.#before;
  }

  get settings() {
    return this.#session.settings;
  }

  get state() {
    return this.gone === null ? this.#session.state : "idle";
  }

  get queued() {
    return this.#session.queued;
  }

  get busy() {
    return this.state === "generating";
  }

  /** What the running turn has generated and is in no message yet: { turn, text, thinking, calls }; or null. */
  get partial() {
    const { turn } = this.#session;
    if (turn === null || turn.ended || !this.busy) return null;
    const stored = this.#stored.turn === turn ? this.#stored : { text: 0, thinking: 0, calls: 0 };
    const text = stored.text ? turn.text.slice(stored.text).trimStart() : turn.text;
    return { turn: turn.id, text, thinking: turn.thinking.slice(stored.thinking), calls: turn.calls.slice(stored.calls) };
  }

  watch(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }

  /** Read the session anew; events that come meanwhile are taken afterwards. */
  load() {
    if (this.#loading !== null) {
      this.#again = true;
      return this.#loading;
    }
    const mine = this.#read().finally(() => {
      if (this.#loading === mine) this.#loading = null;
      if (!this.#again) return undefined;
      this.#again = false;
      return this.load();
    });
    this.#loading = mine;
    return this.#loading;
  }

  /** Take an event of this session. A hole in the numbers means that something was missed: then all is read anew. */
  take(event) {
    if (this.#loading !== null) {
      this.#waiting.push(event);
      return;
    }
    if (event.type === "session.deleted") this.#end(event.data.renamed_to);
    else if (event.type === "session.created" && (!this.loaded || event.number <= this.#session.event)) this.load(); // (again)
    else if (!this.loaded || event.number <= this.#session.event) return;
    else if (event.number > this.#session.event + 1) this.load();
    else this.#apply(event);
    soon(this.#tell);
  }

  async #read() {
    let detail;
    try {
      detail = await this.#api.session(this.id);
    } catch (error) {
      const made = this.#waiting.some(({ type }) => type === "session.created"); // meanwhile
      this.#waiting = [];
      this.loaded = false;
      this.#again ||= made;
      if (error.status === 404) this.gone ??= "This session does not exist.";
      else this.error = error.message;
      soon(this.#tell);
      return;
    }
    if (detail.event < this.#session.event) this.usage.clear();
    this.#session.restore(detail);
    Object.assign(this, { queue: [...detail.queue], loaded: true, gone: null, error: null });
    this.#store(this.messages.at(-1));
    const waiting = this.#waiting;
    this.#waiting = [];
    this.#loading = null;
    for (const event of waiting) this.take(event);
    soon(this.#tell);
  }

  #end(renamedTo) {
    this.movedTo = renamedTo ?? null;
    this.gone = renamedTo ? `This session was renamed to ${renamedTo}.` : "This session was deleted.";
  }

  #apply(event) {
    const { type, data, time } = event;
    this.#before = this.messages;
    this.#session.apply(event);
    const { turn, history, queued } = this.#session;
    if (type === "message.added") {
      this.times.set(data.index, time);
      this.#store(data.message);
      this.#unqueue(data.message);
    } else if (type === "turn.finished" || type === "turn.failed") {
      this.usage.set(this.messages.length - 1, { ...data.usage, reason: data.finish_reason, left: turn?.left ?? 0 });
    }
    // What the history is, and what waits, only the server knows:
    if (history === null || (type === "state.changed" && queued !== this.queue.length)) this.load();
  }

  /** An agent streams a text and then adds it as a message: it is not to be seen twice. */
  #store(message) {
    const { turn } = this.#session;
    if (turn === null || turn.ended || message?.role !== "assistant") return;
    const stored = this.#stored.turn === turn ? this.#stored.text : 0;
    const said = message.content.trim();
    const rest = turn.text.slice(stored).trimStart();
    const text = said !== "" && rest.startsWith(said) ? turn.text.length - rest.length + said.length : stored;
    this.#stored = { turn, text, thinking: turn.thinking.length, calls: turn.calls.length };
  }

  #unqueue(message) {
    const first = this.queue[0];
    if (first && first.role === message.role && first.content === message.content) this.queue.shift();
  }
}
