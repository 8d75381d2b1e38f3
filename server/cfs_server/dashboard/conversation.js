// One session's messages as they grow: what the server says it is, and from then on its events.

import { soon } from "./frame.js";

/** A conversation that somebody looks at. `watch` it to be called before the next frame after a change. */
export class Conversation {
  messages = [];
  partial = null; // { turn, text, thinking, calls } of the running turn
  queue = [];
  settings = null;
  state = "idle";
  queued = 0;
  usage = new Map(); // index of a reply: what its turn cost
  times = new Map(); // index of a message: when it was added, where that was seen
  loaded = false;
  gone = null; // a sentence, once it has been deleted
  movedTo = null;
  error = null;
  #api;
  #event = 0;
  #left = 0; // messages that left the prompt in the running turn
  #loading = null;
  #again = false;
  #waiting = [];
  #watchers = new Set();
  #tell = () => this.#watchers.forEach((watcher) => watcher());

  constructor(api, id) {
    this.#api = api;
    this.id = id;
  }

  get busy() {
    return this.state === "generating";
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
    else if (event.type === "session.created" && (!this.loaded || event.number <= this.#event)) this.load(); // (again)
    else if (!this.loaded || event.number <= this.#event) return;
    else if (event.number > this.#event + 1) this.load();
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
    Object.assign(this, {
      messages: [...detail.history],
      queue: [...detail.queue],
      queued: detail.queued,
      settings: detail.settings,
      state: detail.state,
      loaded: true,
      gone: null,
      error: null,
    });
    if (detail.event < this.#event) this.usage.clear();
    this.#event = detail.event;
    this.partial = detail.partial === null ? null : { turn: null, text: detail.partial, thinking: "", calls: [] };
    this.#strip(this.messages.at(-1));
    const waiting = this.#waiting;
    this.#waiting = [];
    this.#loading = null;
    for (const event of waiting) this.take(event);
    soon(this.#tell);
  }

  #end(renamedTo) {
    this.movedTo = renamedTo ?? null;
    this.gone = renamedTo ? `This session was renamed to ${renamedTo}.` : "This session was deleted.";
    this.partial = null;
    this.state = "idle";
  }

  #apply({ type, data, time, number }) {
    this.#event = number;
    switch (type) {
      case "message.added":
        this.messages.length = Math.min(this.messages.length, data.index);
        this.messages.push(data.message);
        this.times.set(data.index, time);
        this.#strip(data.message);
        this.#unqueue(data.message);
        break;
      case "turn.started":
        this.partial = { turn: data.turn, text: "", thinking: "", calls: [] };
        break;
      case "token":
        this.partial ??= { turn: data.turn, text: "", thinking: "", calls: [] };
        this.partial.text += data.text;
        this.partial.thinking += data.thinking ?? "";
        if (data.calls) this.partial.calls.push(...data.calls);
        break;
      case "turn.finished":
      case "turn.failed":
        this.partial = null;
        this.usage.set(this.messages.length - 1, { ...data.usage, reason: data.finish_reason, left: this.#left });
        this.#left = 0;
        break;
      case "context.shifted":
        this.#left = data.messages;
        break;
      case "settings.changed":
        this.settings = data.settings;
        break;
      case "state.changed":
        this.state = data.state;
        this.queued = data.queued;
        if (data.state !== "generating") this.partial = null;
        if (data.queued !== this.queue.length) this.load(); // who knows what waits there: the server
        break;
      case "history.replaced":
        this.load();
        break;
    }
  }

  /** An agent streams a text and then adds it as a message: it is not to be seen twice. */
  #strip(message) {
    if (this.partial === null || message?.role !== "assistant") return;
    const said = message.content.trim();
    const text = this.partial.text.trimStart();
    if (said !== "" && text.startsWith(said)) this.partial.text = text.slice(said.length).trimStart();
    this.partial.thinking = "";
    this.partial.calls = [];
  }

  #unqueue(message) {
    const first = this.queue[0];
    if (first && first.role === message.role && first.content === message.content) this.queue.shift();
  }
}
