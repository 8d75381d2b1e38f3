// What is shown of a conversation: each reply with the calls that it makes and their results, and what they took.

/**
 * @typedef {{ id: string, name: string, arguments: Record<string, any> }} Call
 * @typedef {{ role: string, content: string, thinking?: string | null, name?: string | null,
 *   tool_call_id?: string | null, tool_calls?: Call[], forgotten?: boolean }} Message
 * @typedef {{ call: Call, result: Message | null, at: number | null }} Step a call, its result, the index of that
 * @typedef {{ index: number, end: number, message: Message, steps: Step[], first: boolean }} Item
 */

/**
 * Group messages: results of tools belong to the reply that called them. `first` says whether somebody else spoke
 * before.
 * @param {Message[]} messages
 * @param {number} from the index at which to begin
 * @returns {Item[]}
 */
export function itemsOf(messages, from = 0) {
  /** @type {Item[]} */
  const items = [];
  for (let index = from; index < messages.length; index++) {
    const message = messages[index];
    const step = message.role === "tool" ? awaiting(items, message) : undefined;
    if (step) {
      step.result = message;
      step.at = index;
      /** @type {Item} */ (items.at(-1)).end = index + 1;
      continue;
    }
    const steps = (message.tool_calls ?? []).map((call) => ({ call, result: null, at: null }));
    const before = items.at(-1);
    items.push({ index, end: index + 1, message, steps, first: before === undefined || side(before.message) !== side(message) });
  }
  return items;
}

/** @param {Item[]} items @param {Message} message */
function awaiting(items, message) {
  return items.at(-1)?.steps.find(({ call, result }) => result === null && call.id === message.tool_call_id);
}

/** Results that answer no known call stand with the replies. @param {Message} message */
function side({ role }) {
  return role === "tool" ? "assistant" : role;
}

/** Where to begin so that about so many messages are shown and no result is parted from its call. */
export function beginning(/** @type {Message[]} */ messages, /** @type {number} */ count) {
  let begin = Math.max(0, messages.length - count);
  while (begin > 0 && messages[begin]?.role === "tool") begin--;
  return begin;
}

/**
 * Seconds between a call and its result; null where they are not known, or were written at once.
 * @param {Item} item
 * @param {Step} step
 * @param {(index: number) => number | null} timeOf
 */
export function secondsOf(item, step, timeOf) {
  if (step.at === null) return null;
  const began = timeOf(item.index);
  const ended = timeOf(step.at);
  return began === null || ended === null || ended <= began ? null : ended - began;
}

/** Whether a result says that the tool failed. @param {string} content */
export function isFailure(content) {
  const code = commandOf(content)?.exit_code;
  return /^\[?(Error\b|No result:|错误)/.test(content) || (typeof code === "number" && code !== 0);
}

/**
 * The result of a command, where it is one.
 * @param {string} content
 * @returns {{ stdout?: string, stderr?: string, exit_code?: number, timed_out?: boolean } | null}
 */
export function commandOf(content) {
  if (!content.startsWith("{") || !content.includes('"exit_code"')) return null;
  try {
    const found = JSON.parse(content);
    return typeof found.exit_code === "number" || found.exit_code === null ? found : null;
  } catch {
    return null;
  }
}

/** How a message ended that failed or was stopped: its class. @param {Message} message */
export function ending({ role, content }) {
  if (role !== "assistant") return "";
  return content.startsWith("[Error: ") ? "failed" : content.endsWith("[Cancelled]") ? "cancelled" : "";
}

/**
 * The file, the command or the agent that a call is about, and the arguments that are left.
 * @param {Call} call
 * @returns {{ subject: string, rest: [string, any][] }}
 */
export function subjectOf(call) {
  const entries = Object.entries(call.arguments ?? {});
  for (const key of ["path", "file_path", "command", "agent_name", "pattern", "query", "url", "name"]) {
    const found = entries.find(([name, value]) => name === key && typeof value === "string" && value !== "");
    if (found) return { subject: found[1], rest: entries.filter((entry) => entry !== found) };
  }
  return { subject: "", rest: entries };
}

/** A value of an argument as text. @param {unknown} value */
export function written(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "";
}

/**
 * The model that answers in a session: the one that its settings name, or the server's default; null if it is not known.
 *
 * @param {any} me the caller, as the server knows it
 * @param {any} settings of the session
 */
export function modelOf(me, settings) {
  const named = (me?.models ?? []).find((/** @type {any} */ model) => model.name === settings?.model);
  return named ?? me?.model ?? null;
}

/**
 * The price of a turn in the currency of the model; null without one. Prices are for a million tokens.
 * @param {{ prompt_tokens: number, completion_tokens: number, cost?: number }} usage
 * @param {{ prompt: number, completion: number, currency: string } | null | undefined} price
 */
export function costOf(usage, price) {
  if (!price) return null;
  if (typeof usage.cost === "number") return usage.cost;
  return (usage.prompt_tokens * price.prompt + usage.completion_tokens * price.completion) / 1e6;
}

/**
 * How much of the model's context a turn has used: 0 to 1, or null where the model's is not known.
 * @param {{ prompt_tokens: number, completion_tokens: number } | null} usage
 * @param {number | null | undefined} context
 */
export function contextUsed(usage, context) {
  if (!usage || !context || !usage.prompt_tokens) return null;
  return Math.min(1, (usage.prompt_tokens + usage.completion_tokens) / context);
}
