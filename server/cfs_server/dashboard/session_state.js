// The state of a session, computed from its events: the twin of `cfs.state` in Python, without imports.
// Both run the same recorded events, tests/fixtures/events/*.json.

const ERROR = /^\[Error: [^]*\]$/;

/** One turn: what it has generated so far, and its result once it has ended. */
export class TurnState {
  text = "";
  thinking = "";
  calls = [];
  tokens = 0;
  left = 0; // messages that did not fit into the prompt
  ended = false;
  reply = "";
  error = null;
  finish_reason = null;
  usage = null;

  constructor(id = "", text = "", since = 0) {
    this.id = id; // empty while it is not known
    this.text = text;
    this.since = since; // events up to this number are included already
  }

  apply({ type, data }) {
    switch (type) {
      case "token":
        this.text += data.text;
        this.thinking += data.thinking ?? "";
        if (data.calls) this.calls.push(...data.calls);
        this.tokens += data.tokens ?? 0;
        break;
      case "context.shifted":
        this.left = data.messages;
        break;
      case "turn.finished":
      case "turn.failed":
        this.ended = true;
        this.reply = data.reply;
        this.error = data.error ?? null;
        this.finish_reason = data.finish_reason ?? null;
        this.usage = data.usage ?? null;
        break;
    }
  }
}

/**
 * What an agent says of its work. A job's `state` is "running", or how it has ended; the cost is in US dollars.
 * @typedef {{ plan: { text: string, status: string }[], jobs: { id: number, command: string, state: string }[],
 *   budget: { limit: string, tokens: number, cost: number } | null, folder?: string }} Work
 */

/** A session as far as its events show it. Times are seconds since the epoch. */
export class SessionState {
  event = 0; // number of the last event that is included
  life = "";
  state = "idle";
  queued = 0;
  messages = 0; // how many
  size = 0;
  changed_at = 0; // when the transcript changed
  tokens = 0; // of the turns that have ended
  tool = null; // the one that was called and has not answered yet
  /** @type {any} */
  settings = null;
  /** @type {TurnState | null} */
  turn = null;
  /** @type {any[] | null} */
  history = null; // the messages themselves, where they are followed
  open_questions = 0; // of its agent
  questions = {}; // those that are known, by id, oldest first: a listing only counts them
  /** @type {Work | null} */
  work = null; // what its agent has said last of its work, where it is followed
  failed = false; // the newest message is the error of a failed turn
  title = null;
  origin = null; // {session, messages} of the original, for a copy
  deleted = false;
  renamed_to = null;

  /** Take over the present state from a listing, or with history and settings from the session itself. */
  restore(info) {
    this.event = info.event;
    this.life = info.etag.replace(/"/g, "").split("-")[0];
    this.state = info.state;
    this.queued = info.queued;
    this.messages = info.messages;
    this.size = info.size;
    this.changed_at = info.updated_at;
    this.tokens = info.tokens;
    this.tool = null;
    this.turn = typeof info.partial === "string" ? new TurnState("", info.partial, info.event) : null;
    this.settings = info.settings ?? null;
    this.history = info.history ? [...info.history] : null;
    this.open_questions = info.open_questions ?? 0;
    this.failed = info.failed ?? false;
    this.title = info.title ?? null;
    this.origin = info.origin ?? null;
    this.work = info.work ?? null;
    this.questions = Object.fromEntries((info.questions ?? []).map((question) => [question.id, question]));
  }

  /** Take the next event; false, and nothing changes, for one that is included already. */
  apply(event) {
    const { type, data, time, number } = event;
    if (number <= this.event) return false;
    this.event = number;
    if (data.title !== undefined) this.title = data.title;
    switch (type) {
      case "session.created":
        this.title = data.title ?? null;
        this.failed = data.failed ?? false;
        this.origin = data.origin ?? null;
        this.life = data.life ?? "";
        this.changed_at = time;
        this.messages = data.messages;
        this.size = data.size;
        this.settings = data.settings;
        this.history = this.history !== null && data.messages === 0 ? [] : null;
        this.deleted = false;
        this.renamed_to = null;
        if (data.renamed_from === undefined) {
          this.open_questions = 0;
          this.questions = {};
          this.work = null;
        }
        break;
      case "message.added":
        this.#add(data, time);
        break;
      case "history.replaced":
        this.messages = data.messages;
        this.size = data.size;
        this.changed_at = time;
        this.history = null;
        this.failed = data.failed ?? false;
        break;
      case "settings.changed":
        this.settings = data.settings;
        break;
      case "turn.started":
        this.turn = new TurnState(data.turn);
        this.state = "generating";
        break;
      case "turn.interrupted":
        this.turn = null; // it starts again
        break;
      case "token":
      case "context.shifted":
        this.#turn(event);
        break;
      case "turn.finished":
      case "turn.failed":
        this.#turn(event);
        this.tokens += spent(data.usage);
        this.tool = null;
        break;
      case "state.changed":
        this.state = data.state;
        this.queued = data.queued;
        break;
      case "question.asked":
        this.open_questions += 1;
        this.questions = { ...this.questions, [data.id]: { asked_at: time, state: "open", ...data } };
        break;
      case "question.answered": {
        const { [data.id]: closed, ...open } = this.questions;
        this.open_questions -= 1;
        this.questions = open;
        break;
      }
      case "work.reported":
        this.work = data.work;
        break;
      case "session.deleted":
        this.deleted = true;
        this.renamed_to = data.renamed_to ?? null;
        break;
    }
    return true;
  }

  #add({ message, index, size, state }, time) {
    this.messages = index + 1;
    this.changed_at = time;
    this.size = size ?? this.size;
    this.failed = message.role === "assistant" && ERROR.test(message.content);
    this.history?.splice(index, Infinity, message);
    if (message.role === "user") this.state = state ?? "generating";
    else if (message.role === "tool") this.tool = null;
    else if (message.tool_calls?.length) this.tool = message.tool_calls.at(-1).name;
  }

  #turn(event) {
    const turn = this.turn;
    if (turn === null || (turn.id !== "" && turn.id !== event.data.turn) || event.number <= turn.since) return;
    turn.apply(event);
    if (event.data.calls?.length) this.tool = event.data.calls.at(-1).name;
  }
}

/** Tokens that a turn read and wrote. */
export function spent(usage) {
  return (usage?.prompt_tokens ?? 0) + (usage?.completion_tokens ?? 0);
}
