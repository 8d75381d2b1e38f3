// What the tree knows of one session: a line of a listing, kept up to date by events.

import { SessionState, spent } from "./session_state.js";

const KEPT_TURNS = 500;

/** A session in the tree: its state, and what the timeline shows of it. Times are seconds since the epoch. */
export class Node extends SessionState {
  /** @type {Node | null} */
  parent = null;
  /** @type {Node[]} */
  children = []; // in the order of their ids
  busyBelow = 0; // how many sessions below are working
  known = false; // false: only a name above one that the caller may see
  created = 0;
  updated = 0;
  turns = new Map(); // by turn: { start, end, tokens, reason }
  calls = []; // { time, name, path } of tool calls that were seen
  pastRead = false;

  constructor(id) {
    super();
    this.id = id;
  }

  get busy() {
    return this.state === "generating";
  }

  get driver() {
    return this.settings?.driver ?? null;
  }

  get paused() {
    return this.settings?.paused ?? false;
  }

  /** Tokens that its turns took; of the running one those that were seen. */
  get spent() {
    return this.tokens + (this.turn === null || this.turn.ended ? 0 : this.turn.tokens);
  }

  /** Take what a listing says. */
  describe(info) {
    this.restore(info);
    this.known = true;
    this.created = info.created_at;
    this.updated = info.updated_at;
  }

  /** Take what a listing does not say from the node that stood here before, if it is the same session. */
  inherit(older) {
    if (older === undefined || older.created !== this.created) return;
    this.settings = older.settings;
    this.turns = older.turns;
    this.calls = older.calls.filter(({ number }) => number <= this.event); // a crash may have taken back the last ones
    this.pastRead = older.pastRead;
    if (this.busy) this.tool = older.tool;
  }

  /** Take an event, unless a listing has told as much already; true when something shown has changed. */
  take(event) {
    this.remember(event);
    if (!this.apply(event)) return false;
    this.updated = event.time;
    this.known = true;
    if (event.type === "session.created") this.created = event.time;
    return true;
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
}
