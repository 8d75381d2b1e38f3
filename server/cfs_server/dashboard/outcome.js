// How an agent's work ended, read from what its session says: a report, an error, or a mark that it was cancelled.

const CANCELLED = "[Cancelled]";
const ERROR = /^\[Error: ([^]*)\]$/;
const REPORT = "sys_finish_task";
const BUDGET = /budget of .* is used up|came to no end in \d+ turns|took longer than [\d.e+]+ s|预算已用完|\d+ 轮内没有结束|用时超过/;
const STOPPED = /^(it was cancelled|its parent has ended|cancelled|它被取消了|它的上级已结束)/i;
const UNVERIFIED = /^\[[^\]\n]+ (unverified|未证实)\]/;

/**
 * `finished`, `failed`, `cancelled`, `budget` (tokens, replies or time are used up) or `unverified` (its report does not
 * agree with the files); `text` is its report or the reason.
 * @typedef {{ kind: "finished" | "failed" | "cancelled" | "budget" | "unverified", text: string }} Outcome
 */

/**
 * How the last turn ended; null while there is none, or while it runs.
 * @param {{ state: string, messages: any[] }} conversation
 * @returns {Outcome | null}
 */
export function outcomeOf({ state, messages }) {
  const last = messages.at(-1);
  if (state !== "idle" || last === undefined || last.role === "system" || last.role === "user") return null;
  const report = reportIn(messages);
  const said = last.role === "assistant" ? last.content.trim() : "";
  const error = ERROR.exec(said);
  if (error) return { kind: kindOf(error[1]), text: error[1] };
  if (said.endsWith(CANCELLED)) return { kind: "cancelled", text: said.slice(0, -CANCELLED.length).trim() };
  if (UNVERIFIED.test(said)) return { kind: "unverified", text: said.replace(UNVERIFIED, "").trim() };
  const text = report?.summary || said;
  return { kind: report?.status === "failed" ? "failed" : "finished", text: String(text) };
}

/**
 * The kind of a failure by its reason, as an agent's runtime words it.
 * @param {string} reason
 * @returns {"budget" | "cancelled" | "failed"}
 */
export function kindOf(reason) {
  if (BUDGET.test(reason)) return "budget";
  return STOPPED.test(reason) ? "cancelled" : "failed";
}

/** What it reported in its last turn. @param {any[]} messages */
function reportIn(messages) {
  for (let index = messages.length - 1; index >= 0 && messages[index].role !== "user"; index--) {
    const call = messages[index].tool_calls?.find((each) => each.name === REPORT);
    if (call) return call.arguments ?? {};
  }
  return null;
}

/**
 * The tool that runs: the last call without a result; null when there is none.
 * @param {{ messages: any[], times: Map<number, number> }} conversation
 */
export function runningCall({ messages, times }) {
  const ended = new Set();
  for (let index = messages.length - 1; index >= 0; index--) {
    const { role, tool_call_id, tool_calls } = messages[index];
    if (role === "tool") ended.add(tool_call_id);
    else if (tool_calls?.length) {
      const call = tool_calls.findLast((each) => !ended.has(each.id));
      return call ? { name: call.name, arguments: call.arguments ?? {}, since: times.get(index) ?? null } : null;
    } else return null;
  }
  return null;
}
