// One message as an element. Whatever it says is text.

import { el } from "./dom.js";
import { TextFlow } from "./text_flow.js";
import { clock, duration, short } from "./times.js";

const FIRST_LINE = 90;
const ROLES = { system: "System", user: "User", assistant: "Assistant", tool: "Tool" };

/** Show a message; `cost` is what its turn took, `time` when it came, where that is known. */
export function messageView(message, { cost = null, time = null } = {}) {
  const label = message.role === "tool" && message.name ? `Tool ${message.name}` : ROLES[message.role];
  const head = el("div", { className: "head" }, el("span", { className: "role" }, label));
  if (time !== null) head.append(el("time", { className: "quiet" }, clock(time)));
  const parts = [head];
  if (message.thinking) parts.push(folded("thinking", "Thinking", message.thinking));
  if (message.role === "tool") parts.push(result(message));
  else if (message.content !== "") parts.push(new TextFlow(message.content).element);
  for (const call of message.tool_calls ?? []) parts.push(callView(call));
  if (cost !== null) parts.push(el("div", { className: "cost quiet" }, costOf(cost)));
  return el("li", { className: `message ${message.role}${failure(message)}` }, ...parts);
}

/** A call of a tool: its name and the file it is about; folded, its arguments. */
export function callView(call) {
  const subject = call.arguments?.path ?? call.arguments?.agent_name ?? call.arguments?.command ?? "";
  const title = [el("b", {}, call.name), typeof subject === "string" ? ` ${firstLine(subject)}` : ""];
  return folded("call", title, () => shown(call.arguments ?? {}));
}

/** Something folded; what is in it is made when it is opened for the first time. */
export function folded(className, title, content) {
  const inside = el("pre", { tabIndex: 0 });
  const ontoggle = (event) => {
    if (event.target.open && inside.textContent === "") {
      inside.textContent = typeof content === "function" ? content() : content;
    }
  };
  return el("details", { className: `folded ${className}`, ontoggle }, el("summary", {}, title), inside);
}

function result(message) {
  const text = message.content;
  if (text.length <= FIRST_LINE && !text.includes("\n")) return new TextFlow(text).element;
  const lines = text.split("\n").length;
  return folded("result", `${firstLine(text)} (${lines} ${lines === 1 ? "line" : "lines"})`, text);
}

function shown(values) {
  const lines = Object.entries(values).map(([name, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
    return text.includes("\n") ? `${name}:\n${text}` : `${name}: ${text}`;
  });
  return lines.join("\n") || "no arguments";
}

function firstLine(text) {
  const line = text.split("\n", 1)[0];
  return line.length > FIRST_LINE ? `${line.slice(0, FIRST_LINE)}…` : line;
}

function failure({ role, content }) {
  if (role !== "assistant") return "";
  return content.startsWith("[Error: ") ? " failed" : content.endsWith("[Cancelled]") ? " cancelled" : "";
}

function costOf(cost) {
  const parts = [`${short(cost.prompt_tokens + cost.completion_tokens)} tokens`];
  if (cost.cached_tokens) parts.push(`${short(cost.cached_tokens)} cached`);
  if (cost.total_seconds) parts.push(duration(cost.total_seconds));
  if (cost.reason === "length") parts.push("cut off");
  if (cost.left) parts.push(`${cost.left} old messages left the prompt`);
  return parts.join(" · ");
}
