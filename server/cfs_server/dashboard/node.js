// What the tree knows of one session: a line of a listing, kept up to date by events.

import { ending, isFailure, subjectOf } from "./items.js";
import { SessionState, spent } from "./session_state.js";

const KEPT_TURNS = 500;
const LONGEST = 80; // signs of what a call is about
const CLAIM = 3000; // milliseconds in which an attached agent claims a message
const SAME = 1; // second: a message and the start of its turn

/** A session in the tree: its state, and what the timeline shows of it. Times are seconds since the epoch. */
export class Node extends SessionState {
  /** @type {Node | null} */
  parent = null;
  /** @type {Node[]} */
  children = []; // in the order of their ids
  busyBelow = 0; // how many sessions below are working
  /** @type {number | null} */
  unclaimed = null; // since when a message waits for an agent, by this clock
  known = false; // false: only a name above one that the caller may see
  created = 0;
  updated = 0;
  turns = new Map(); // by turn: { start, end, tokens, reason }
  calls = []; // { number, index, id, name, about, time, until, failed } of tool calls
  asked = new Map(); // by question: { time, until, text, answer }
  decided = new Map(); // by the id of a call: what a rule or a person has decided about it
  pastRead = false;

  constructor(id) {
    super();
    this.id = id;
  }

  get busy() {
    return this.state === "generating";
  }

  /** Whether no agent has claimed a message for so long that none seems to be attached. */
  get waits() {
    return this.state === "waiting_for_agent" && (this.unclaimed === null || Date.now() - this.unclaimed >= CLAIM);
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
    this.asked = older.asked;
    this.decided = older.decided;
    this.pastRead = older.pastRead;
    if (this.busy) this.tool = older.tool;
  }

  /** Take an event, unless a listing has told as much already; true when something shown has changed. */
  take(event) {
    this.remember(event);
    const before = this.state;
    if (!this.apply(event)) return false;
    if (this.state !== before) this.unclaimed = Date.now();
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
      this.#endCalls(time, (call) => call.number < number);
    } else if (type === "message.added") {
      this.#rememberMessage(data.message, data.index, time, number);
    } else if (type === "call.decided") {
      this.decided.set(data.call, data);
      if (this.decided.size > KEPT_TURNS) this.decided.delete(this.decided.keys().next().value);
    } else if (type === "question.asked") {
      if (!this.asked.has(data.id)) this.asked.set(data.id, { time, until: null, text: data.text, answer: null });
      if (this.asked.size > KEPT_TURNS) this.asked.delete(this.asked.keys().next().value);
    } else if (type === "question.answered") {
      const question = this.asked.get(data.id);
      if (question) Object.assign(question, { until: time, answer: data.answer });
    }
  }

  /** Take from the messages what happened before the events that could still be read. Their turns have no costs. */
  recall({ history, times, state }) {
    if (history.length !== times?.length) return;
    const first = Math.min(...[...this.turns.values()].map(({ start }) => start));
    const turns = new Map();
    history.forEach((message, index) => {
      if (message.role !== "user" || times[index] >= first - SAME) return;
      let end = index;
      while (end + 1 < history.length && history[end + 1].role !== "user") end++;
      const open = end === history.length - 1 && state !== "idle";
      const reason = { failed: "error", cancelled: "cancelled" }[ending(history[end])] ?? "stop";
      turns.set(`message ${index}`, { start: times[index], end: open ? null : times[end], tokens: 0, reason: open ? null : reason });
    });
    this.turns = new Map([...[...turns].slice(-KEPT_TURNS), ...this.turns]);
    history.forEach((message, index) => {
      if (message.role === "user" && index > 0) this.#endCalls(times[index - 1], (call) => call.index < index);
      this.#rememberMessage(message, index, times[index], 0);
    });
    if (state === "idle" && history.length > 0) this.#endCalls(times.at(-1), (call) => call.index < history.length);
    this.calls.sort((one, other) => one.time - other.time);
  }

  /** No call outlives its turn: what has no result by then gets none, because the turn was cancelled, or had reported. */
  #endCalls(time, isOver) {
    for (const call of this.calls) if (call.until === null && isOver(call)) call.until = Math.max(call.time, time);
  }

  #rememberMessage({ role, content, tool_calls, tool_call_id }, index, time, number) {
    if (role === "tool") {
      const call = this.calls.findLast(({ id, index: before }) => id === tool_call_id && before < index);
      if (call && call.until === null) Object.assign(call, { until: time, failed: isFailure(content) });
    }
    if (!tool_calls?.length || this.calls.some((call) => call.index === index)) return;
    for (const { id, name, arguments: given } of tool_calls) {
      this.calls.push({ number, index, id, name, about: aboutOf(given), time, until: null, failed: false });
    }
    if (this.calls.length > KEPT_TURNS) this.calls.splice(0, this.calls.length - KEPT_TURNS);
  }
}

/** What a call is about, in one line. */
export function aboutOf(given) {
  const { subject } = subjectOf({ id: "", name: "", arguments: given ?? {} });
  return (subject || String(given?.agent_id ?? "")).split("\n", 1)[0].slice(0, LONGEST);
}
