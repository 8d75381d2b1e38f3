// Branches of a conversation: copies of a session that begin at one of its messages. No message is ever lost.

import { place } from "./api.js";

/**
 * @typedef {{ session: string, messages: number }} Origin
 * @typedef {{ id: string, origin?: Origin | null, created?: number }} Known what a listing says of a session
 * @typedef {{ ids: string[], at: number }} Fork the sessions that differ from one message on; `at` is the shown one
 */

/**
 * The places at which a session parts from others: by the index of the first message that differs.
 * @param {Iterable<Known>} sessions
 * @param {string} id
 * @returns {Map<number, Fork>}
 */
export function forksOf(sessions, id) {
  /** @type {Map<string, Known>} */
  const known = new Map();
  for (const session of sessions) known.set(session.id, session);
  const family = new Map(); // by `session index`: the copies that begin there
  for (const session of known.values()) {
    const origin = originOf(known, session);
    if (origin === null) continue;
    const key = `${origin.messages} ${origin.session}`;
    family.set(key, [...(family.get(key) ?? []), session]);
  }
  /** @type {Map<number, Fork>} */
  const found = new Map();
  const seen = new Set();
  let shown = id;
  let before = Infinity; // messages of `shown` from here on are not those of the session that was asked for
  for (let session = known.get(id); session && !seen.has(shown); session = known.get(shown)) {
    seen.add(shown);
    for (const [key, copies] of family) {
      const cut = key.indexOf(" ");
      const index = Number(key.slice(0, cut));
      if (key.slice(cut + 1) === shown && index < before) add(found, index, [shown, ...ordered(copies)], shown);
    }
    const origin = originOf(known, session);
    if (origin === null) break;
    const siblings = ordered(family.get(`${origin.messages} ${origin.session}`) ?? []);
    const all = known.has(origin.session) ? [origin.session, ...siblings] : siblings;
    if (origin.messages < before) add(found, origin.messages, all, shown);
    before = Math.min(before, origin.messages);
    shown = origin.session;
  }
  return found;
}

/** @param {Map<number, Fork>} found @param {number} index @param {string[]} ids @param {string} shown */
function add(found, index, ids, shown) {
  if (ids.length > 1 && !found.has(index)) found.set(index, { ids, at: ids.indexOf(shown) });
}

/** @param {Known[]} sessions */
function ordered(sessions) {
  return sessions.sort((one, other) => (one.created ?? 0) - (other.created ?? 0) || (one.id < other.id ? -1 : 1))
    .map(({ id }) => id);
}

/**
 * Where a session parts from the one that had those messages first: a copy of a copy, made before the place at which
 * that one begins, is a copy of the original.
 * @param {Map<string, Known>} known
 * @param {Known} session
 * @returns {Origin | null}
 */
function originOf(known, session) {
  let origin = session.origin ?? null;
  const seen = new Set([session.id]);
  while (origin !== null && !seen.has(origin.session)) {
    seen.add(origin.session);
    const above = known.get(origin.session)?.origin ?? null;
    if (above === null || origin.messages > above.messages) break;
    origin = { session: above.session, messages: origin.messages };
  }
  return origin;
}

/** What one does to the messages of a session: each makes a copy of the part before, and goes there. */
export class Branches {
  #api;
  #live;
  #go;
  #conversation;
  /** @type {Map<number, Fork> | null} */
  #forks = null;

  /**
   * @param {{ api: import("./api.js").Api, live: import("./live.js").Live, go: (id: string) => void,
   *   conversation: import("./conversation.js").Conversation }} context
   */
  constructor({ api, live, go, conversation }) {
    this.#api = api;
    this.#live = live;
    this.#go = go;
    this.#conversation = conversation;
  }

  /** Whether a model answers here. An agent's copy would wait for an agent. */
  get answered() {
    return this.#conversation.settings?.driver !== "agent";
  }

  /** The places at which this session parts from others. */
  forks() {
    this.#forks ??= forksOf(this.#live.sessions.all(), this.#conversation.id);
    return this.#forks;
  }

  /** Call a function when there are other branches. @param {() => void} changed */
  watch(changed) {
    return this.#live.sessions.watch((/** @type {{ reshaped: boolean }} */ { reshaped }) => {
      if (!reshaped) return;
      this.#forks = null;
      changed();
    });
  }

  /** @param {string} id */
  go(id) {
    this.#go(id);
  }

  /** Copy the first messages, and go there. @param {number} count */
  async branch(count) {
    const made = await this.#api.send("POST", `${place(this.#conversation.id)}/fork`, { messages: count });
    this.#go(made.id);
    return made.id;
  }

  /** Say something else in the place of a message. @param {number} index @param {string} content */
  async edit(index, content) {
    const made = await this.#api.send("POST", `${place(this.#conversation.id)}/fork`, { messages: index });
    await this.#api.say(made.id, content);
    this.#go(made.id);
  }

  /** Have the question before a reply answered again. @param {number} index */
  async regenerate(index) {
    const { messages } = this.#conversation;
    for (let at = index; at >= 0; at--) {
      if (messages[at].role === "user") return this.edit(at, messages[at].content);
    }
    return undefined;
  }
}
