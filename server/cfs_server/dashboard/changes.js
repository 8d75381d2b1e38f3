// The files of a workspace, and who changed which: read from the calls of tools in the agents' messages.

import { isFailure } from "./items.js";

const WRITES = new Set(["write_file", "edit_file"]);

/**
 * A change of a file by an agent. `before` and `after` are the whole texts, null where they are not known; `pending`
 * while the call has no result.
 * @typedef {{ path: string, by: string, tool: string, arguments: any, time: number | null, index: number,
 *   pending: boolean, before: string | null, after: string | null }} Change
 */

/** By conversation: what was found in it, and in which revision. @type {WeakMap<object, { revision: number | undefined, found: any[] }>} */
const known = new WeakMap();

/**
 * Changes by path, in the order in which they happened as far as that is known.
 * @param {Iterable<{ id: string, messages: any[], times: Map<number, number>, revision?: number }>} conversations
 * @returns {Map<string, Change[]>}
 */
export function changesOf(conversations) {
  const found = [...conversations].flatMap(changesIn);
  found.sort((one, other) => (one.time ?? 0) - (other.time ?? 0));
  /** @type {Map<string, Change[]>} */
  const byPath = new Map();
  for (const change of found) {
    const history = byPath.get(change.path) ?? [];
    byPath.set(change.path, history);
    const before = history.at(-1)?.after ?? null;
    history.push({ ...change, before, after: applied(change, before) });
  }
  return byPath;
}

/** Paths of agents are relative to the workspace, or begin with its name. @param {string} path */
export function normal(path) {
  return path.replace(/^\.?\/+/, "").replace(/^workspace\//, "");
}

/**
 * The two texts that a change is shown as: the whole ones, or the replaced piece where these are not known.
 * @param {Change} change
 */
export function sidesOf({ tool, arguments: given, before, after }) {
  const whole = tool === "write_file" || (before !== null && after !== null);
  return whole ? [before ?? "", after ?? ""] : [String(given.old ?? ""), String(given.new ?? "")];
}

/**
 * Folders and files as a tree: folders first, and a folder with nothing but one folder in it together with that.
 * @typedef {{ name: string, path: string, children: Entry[] | null }} Entry
 * @param {Iterable<string>} paths
 * @returns {Entry[]}
 */
export function treeOf(paths) {
  /** @type {Entry} */
  const top = { name: "", path: "", children: [] };
  const folders = new Map([["", top]]);
  const folder = (/** @type {string} */ path) => {
    const found = folders.get(path);
    if (found) return found;
    const cut = path.lastIndexOf("/");
    /** @type {Entry} */
    const made = { name: path.slice(cut + 1), path, children: [] };
    folders.set(path, made);
    folder(cut < 0 ? "" : path.slice(0, cut)).children?.push(made);
    return made;
  };
  for (const path of paths) {
    const cut = path.lastIndexOf("/");
    folder(cut < 0 ? "" : path.slice(0, cut)).children?.push({ name: path.slice(cut + 1), path, children: null });
  }
  return orderly(top.children ?? []);
}

/** @param {Entry[]} entries @returns {Entry[]} */
function orderly(entries) {
  const tidy = entries.map((entry) => {
    if (entry.children === null) return entry;
    let { name, path, children } = entry;
    while (children.length === 1 && children[0].children !== null) {
      name += `/${children[0].name}`;
      ({ path, children } = /** @type {{ path: string, children: Entry[] }} */ (children[0]));
    }
    return { name, path, children: orderly(children) };
  });
  const rank = (/** @type {Entry} */ entry) => (entry.children === null ? 1 : 0);
  return tidy.sort((one, other) => rank(one) - rank(other) || one.name.localeCompare(other.name, undefined, { numeric: true }));
}

/** Without the whole texts: these depend on the changes by others. A conversation that has not grown is not read again. */
function changesIn(conversation) {
  const { messages, revision } = conversation;
  const old = known.get(conversation);
  if (old && revision !== undefined && old.revision === revision) return old.found;
  const results = new Map();
  for (const { role, tool_call_id, content } of messages) if (role === "tool") results.set(tool_call_id, content);
  const found = messages.flatMap((message, index) =>
    (message.tool_calls ?? [])
      .filter((call) => WRITES.has(call.name) && typeof call.arguments?.path === "string")
      .filter((call) => !isFailure(results.get(call.id) ?? ""))
      .map((call) => ({
        path: normal(call.arguments.path), by: conversation.id, tool: call.name, arguments: call.arguments, index,
        time: conversation.times.get(index) ?? null, pending: !results.has(call.id),
      })));
  known.set(conversation, { revision, found });
  return found;
}

/** The text after a change; null when it is not known what stood there before. */
function applied({ tool, arguments: { content, old, new: fresh } }, before) {
  if (tool === "write_file") return String(content ?? "");
  if (before === null || !before.includes(old)) return null;
  return before.replace(old, () => String(fresh ?? ""));
}
