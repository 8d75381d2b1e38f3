// Who changed which file: read from the calls of tools in the agents' messages.

const WRITES = new Set(["write_file", "edit_file"]);

/** Changes by path, in the order in which they happened as far as that is known. */
export function changesOf(conversations) {
  const found = [];
  for (const conversation of conversations) {
    const refused = refusedIn(conversation.messages);
    conversation.messages.forEach((message, index) => {
      for (const call of message.tool_calls ?? []) {
        const { path } = call.arguments ?? {};
        if (!WRITES.has(call.name) || typeof path !== "string" || refused.has(call.id)) continue;
        const time = conversation.times.get(index) ?? null;
        found.push({ path: normal(path), by: conversation.id, call, time, index });
      }
    });
  }
  found.sort((one, other) => (one.time ?? 0) - (other.time ?? 0));
  const byPath = new Map();
  for (const change of found) {
    const history = byPath.get(change.path) ?? [];
    byPath.set(change.path, history);
    const before = history.at(-1)?.after ?? null;
    history.push({ ...change, before, after: applied(change.call, before) });
  }
  return byPath;
}

/** Paths of agents are relative to the workspace, or begin with its name. */
export function normal(path) {
  return path.replace(/^\.?\/+/, "").replace(/^workspace\//, "");
}

/** The text after a change; null when it is not known what stood there before. */
function applied({ name, arguments: { content, old, new: fresh } }, before) {
  if (name === "write_file") return String(content ?? "");
  if (before === null || !before.includes(old)) return null;
  return before.replace(old, () => fresh);
}

function refusedIn(messages) {
  const failed = messages.filter(({ role, content }) => role === "tool" && /^(\[?Error\b|错误)/.test(content));
  return new Set(failed.map((message) => message.tool_call_id));
}
