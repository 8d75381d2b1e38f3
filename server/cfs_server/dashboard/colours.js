// One colour for each agent, the same in the tree, the columns, the timeline and the files.

import { rootOf } from "./ids.js";

const COLOURS = 8;
/** By session: its number in the order in which the agents of its tree were created. @type {Map<string, number>} */
const numbers = new Map();
/** By root: how many agents have a number. @type {Map<string, number>} */
const counts = new Map();

/**
 * Give sessions their numbers: neighbours in time get different colours, and a reload changes none.
 * @param {Iterable<{ id: string, created: number }>} sessions
 */
export function introduce(sessions) {
  const fresh = [...sessions].filter(({ id }) => !numbers.has(id));
  fresh.sort((one, other) => one.created - other.created || (one.id < other.id ? -1 : 1));
  for (const { id } of fresh) {
    const root = rootOf(id);
    const count = id === root ? 0 : (counts.get(root) ?? 1); // the root has the first colour, whenever it is seen
    numbers.set(id, count);
    counts.set(root, Math.max(1, count + 1, counts.get(root) ?? 1));
  }
}

/**
 * The number of an agent's colour, 0 to 7: set it as `data-agent`, and `--agent` is the colour.
 * @param {string} id a session's id
 */
export function agentColour(id) {
  return (numbers.get(id) ?? 0) % COLOURS;
}
