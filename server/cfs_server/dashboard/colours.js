// One colour for each agent, the same in the tree, the columns, the timeline and the files.

const COLOURS = 8;

/**
 * The number of an agent's colour, 0 to 7: set it as `data-agent`, and `--agent` is the colour.
 * @param {string} id a session's id
 */
export function agentColour(id) {
  let hash = 7;
  for (const sign of id) hash = (hash * 31 + (sign.codePointAt(0) ?? 0)) >>> 0;
  return ((hash ^ (hash >>> 11)) >>> 0) % COLOURS;
}
