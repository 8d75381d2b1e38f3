// One session's messages as they grow: what the server says it is, and from then on its events.

import { soon } from "./frame.js";
import { isFailure } from "./items.js";
import { Markup } from "./markup.js";
import { pastEvents } from "./past.js";
import { SessionState } from "./session_state.js";
import { t } from "./text.js";

const KEPT = 100_000; // characters of messages that are kept; earlier ones are read again when they are looked at
const KEPT_MESSAGES = 8;
const PAST = 500; // events that are read for the figures of the last turns
const LEAST = 0.5; // seconds after which a speed is known

/** Renders the texts of all conversations of a server. @type {WeakMap<object, Markup>} */
const renderers = new WeakMap();

/** @param {import("./api.js").Api} api */
export function markupOf(api) {
  const found = renderers.get(api) ?? new Markup(api);
  renderers.set(api, found);
  return found;
}

/** A conversation that is looked at. `watch` it to be called before the next frame after a change. */
export class Conversation {
  queue = [];
  usage = new Map(); // index of a reply: what its turn cost
  times = new Map(); // index of a message: when it was added
  revision = 0; // grows when a message, its time or its cost changes
  remembered = 0; // the first message whose text is here
  loaded = false;
  /** @type {string | null} */
  gone = null; // a sentence, once it has been deleted
  movedTo = null;
  /** @type {string | null} */
  error = null;
  #api;
  #session = new SessionState();
  #before = []; // messages that are shown while a replaced history is read
  /** @type {{ turn: import("./session_state.js").TurnState | null, text: number, thinking: number, calls: number }} */
  #stored = { turn: null, text: 0, thinking: 0, calls: 0 }; // how much of the running turn is in messages already
  /** @type {{ turn: import("./session_state.js").TurnState | null, first: number, last: number, tokens: number }} */
  #pace = { turn: null, first: 0, last: 0, tokens: 0 };
  #size = 0; // characters of the messages that are remembered
  #whole = false; // all messages were asked for: none is forgotten
  #figures = false; // the figures of the last turns have been asked for
  /** @type {Promise<any> | null} */
  #loading = null;
  #again = false;
  #waiting = [];
  #watchers = new Set();
  #tell = () => this.#watchers.forEach((watcher) => watcher());

  constructor(api, id) {
    this.#api = api;
    this.markup = markupOf(api);
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

  /** Open questions of its agent, by id. */
  get questions() {
    return this.gone === null ? this.#session.questions : {};
  }

  /** What its agent has said last of its work. */
  get work() {
    return this.gone === null ? this.#session.work : null;
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

  /** When a message was added, in seconds since the epoch; null where that is not known. */
  timeOf(index) {
    return this.times.get(index) ?? null;
  }

  /** Tokens a second of the running turn; null where they are not known. */
  get speed() {
    const { turn, first, last, tokens } = this.#pace;
    return turn !== null && turn === this.#session.turn && last - first >= LEAST ? tokens / (last - first) : null;
  }

  /** What the last turn took, or null. */
  get lastUsage() {
    const last = Math.max(...this.usage.keys());
    return this.usage.get(last) ?? null;
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

  /** Read the messages that have been forgotten, and forget none from now on. */
  async recall() {
    this.#whole = true;
    if (this.remembered > 0) await this.load();
  }

  /** Find out what the last turns took, where the page has not seen it. */
  async readFigures() {
    const last = this.#session.event;
    if (this.#figures || !this.loaded || last === 0) return;
    this.#figures = true;
    let index = -1;
    const found = new Map();
    const take = ({ type, data }) => {
      if (type === "message.added") index = data.index;
      else if (type === "history.replaced") found.clear();
      else if (type === "turn.finished" && index >= 0) found.set(index, { ...data.usage, reason: data.finish_reason, left: 0 });
    };
    try {
      await pastEvents(this.#api, this.id, last, PAST, take);
    } catch {
      return; // it goes without them
    }
    for (const [at, usage] of found) {
      if (!this.usage.has(at) && at < this.messages.length) this.usage.set(at, usage);
    }
    this.#changed();
    soon(this.#tell);
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
      if (error.status === 404) this.gone ??= t("This session does not exist.");
      else this.error = error.message;
      soon(this.#tell);
      return;
    }
    if (detail.event < this.#session.event) this.usage.clear();
    this.#session.restore(detail);
    this.times = new Map((detail.times ?? []).entries());
    this.remembered = 0;
    this.#size = this.messages.reduce((sum, message) => sum + sizeOf(message), 0);
    this.#forget();
    this.#changed();
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
    this.gone = renamedTo ? t("This session was renamed to {name}.", { name: renamedTo }) : t("This session was deleted.");
  }

  #changed() {
    this.revision += 1;
  }

  /** Keep the memory of a long conversation flat: of its early messages only what they changed is kept. */
  #forget() {
    const { history } = this.#session;
    if (this.#whole || history === null) return;
    while (this.#size > KEPT && this.remembered < history.length - KEPT_MESSAGES) {
      const message = history[this.remembered];
      this.#size -= sizeOf(message);
      if (!message.tool_calls?.length) {
        const { role, tool_call_id } = message;
        history[this.remembered] = { role, tool_call_id, content: isFailure(message.content) ? "Error" : "", forgotten: true };
      }
      this.usage.delete(this.remembered);
      this.remembered += 1;
    }
  }

  /** How fast the running turn writes. */
  #paced({ data, time }) {
    const { turn } = this.#session;
    if (turn === null || !data.tokens) return;
    if (this.#pace.turn !== turn) this.#pace = { turn, first: time, last: time, tokens: 0 };
    else {
      this.#pace.tokens += data.tokens;
      this.#pace.last = time;
    }
  }

  #apply(event) {
    const { type, data, time } = event;
    this.#before = this.messages;
    this.#session.apply(event);
    const { turn, history, queued } = this.#session;
    if (type === "token") this.#paced(event);
    else this.#changed();
    if (type === "message.added") {
      this.times.set(data.index, time);
      this.#size += sizeOf(data.message);
      this.#forget();
      this.#store(data.message);
      this.#unqueue(data.message);
    } else if (type === "turn.finished" || type === "turn.failed") {
      this.usage.set(this.messages.length - 1, { ...data.usage, reason: data.finish_reason, left: turn?.left ?? 0 });
    }
    if (type === "history.replaced") this.usage.clear();
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

/** About how much memory a message takes. */
function sizeOf({ content, thinking, tool_calls: calls }) {
  return content.length + (thinking?.length ?? 0) + (calls?.length ? JSON.stringify(calls).length : 0);
}
