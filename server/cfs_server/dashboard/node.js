// What the tree knows of one session: a line of a listing, kept up to date by events.

const KEPT_TURNS = 500;

/** A session in the tree. Times are seconds since the epoch. */
export class Node {
  parent = null;
  children = []; // in the order of their ids
  busyBelow = 0; // how many sessions below are working
  known = false; // false: only a name above one that the caller may see
  driver = null;
  state = "idle";
  queued = 0;
  messages = 0;
  created = 0;
  updated = 0;
  event = 0;
  tool = null;
  paused = false;
  ended = 0; // tokens of the turns that have ended
  turns = new Map(); // by turn: { start, end, tokens, reason }
  calls = []; // { time, name, path } of tool calls that were seen
  pastRead = false;
  #fresh = 0; // of the running turn

  constructor(id) {
    this.id = id;
  }

  get busy() {
    return this.state === "generating";
  }

  /** Tokens that its turns took; of the running one those that were seen. */
  get tokens() {
    return this.ended + this.#fresh;
  }

  /** Take what a listing says. */
  describe(info) {
    this.known = true;
    this.state = info.state;
    this.queued = info.queued;
    this.messages = info.messages;
    this.ended = info.tokens;
    this.created = info.created_at;
    this.updated = info.updated_at;
    this.event = info.event;
  }

  /** Take what a listing does not say from the node that stood here before, if it is the same session. */
  inherit(older) {
    if (older === undefined || older.created !== this.created) return;
    this.driver = older.driver;
    this.paused = older.paused;
    this.turns = older.turns;
    this.calls = older.calls;
    this.pastRead = older.pastRead;
    if (this.busy) this.tool = older.tool;
  }

  /** Take an event, unless a listing has told as much already; true when something shown has changed. */
  take(event) {
    const { type, data, time, number } = event;
    this.remember(event);
    if (number <= this.event) return false;
    this.event = number;
    this.updated = time;
    this.known = true;
    switch (type) {
      case "session.created":
        this.created = time;
        this.messages = data.messages;
        this.configure(data.settings);
        break;
      case "settings.changed":
        this.configure(data.settings);
        break;
      case "message.added":
        this.messages = data.index + 1;
        this.#follow(data.message);
        break;
      case "history.replaced":
        this.messages = data.messages;
        break;
      case "state.changed":
        this.queued = data.queued;
        break; // the state itself is set by the tree, which counts
      case "token":
        this.#fresh += data.tokens;
        if (data.calls?.length) this.tool = data.calls.at(-1).name;
        break;
      case "turn.finished":
      case "turn.failed":
        this.ended += spent(data.usage);
        this.#fresh = 0;
        this.tool = null;
        break;
    }
    return true;
  }

  configure(settings) {
    this.driver = settings.driver;
    this.paused = settings.paused ?? false;
  }

  /** Keep what the timeline shows; the same event may come twice, from the past and from the present. */
  remember({ type, data, time, number }) {
    if (type === "turn.started") {
      if (!this.turns.has(data.turn)) this.turns.set(data.turn, { start: time, end: null, tokens: 0, reason: null });
      if (this.turns.size > KEPT_TURNS) this.turns.delete(this.turns.keys().next().value);
    } else if (type === "turn.finished" || type === "turn.failed") {
      const turn = this.turns.get(data.turn);
      if (turn) Object.assign(turn, { end: time, tokens: spent(data.usage), reason: data.finish_reason });
    } else if (type === "message.added" && data.message.tool_calls?.length) {
      if (this.calls.some((call) => call.number === number)) return;
      for (const call of data.message.tool_calls) this.calls.push({ number, time, index: data.index, name: call.name });
      if (this.calls.length > KEPT_TURNS) this.calls.splice(0, this.calls.length - KEPT_TURNS);
    }
  }

  /** Which tool works now: the last one that was called and has not answered. */
  #follow(message) {
    if (message.role === "tool") this.tool = null;
    else if (message.tool_calls?.length) this.tool = message.tool_calls.at(-1).name;
  }
}

function spent(usage) {
  return (usage?.prompt_tokens ?? 0) + (usage?.completion_tokens ?? 0);
}
