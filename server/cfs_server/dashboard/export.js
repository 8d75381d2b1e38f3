// A session as a file: its transcript, its JSON, or markdown to read.

import { place } from "./api.js";
import { el } from "./dom.js";
import { itemsOf, subjectOf, written } from "./items.js";

const FORMS = {
  txt: { type: "text/plain", make: async (api, id) => (await api.transcript(id)).text },
  json: { type: "application/json", make: async (api, id) => JSON.stringify(await api.json(place(id)), null, 2) },
  md: { type: "text/markdown", make: async (api, id) => markdownOf(id, await api.json(place(id))) },
};

/**
 * Have the browser save a session as a file.
 * @param {import("./api.js").Api} api
 * @param {string} id
 * @param {"txt" | "json" | "md"} form
 */
export async function exportSession(api, id, form) {
  const { type, make } = FORMS[form];
  save(new Blob([await make(api, id)], { type }), `${id.replaceAll("/", "-")}.${form}`);
}

/** Save bytes by the browser: they are here already, and the token is in no address. @param {Blob} blob @param {string} name */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/**
 * A session as markdown.
 * @param {string} id
 * @param {{ title?: string | null, history: import("./items.js").Message[], times?: number[] }} detail
 */
export function markdownOf(id, { title, history, times = [] }) {
  const parts = [`# ${title ?? id}`];
  for (const { message, steps, first, index } of itemsOf(history)) {
    if (first) {
      const time = times[index] === undefined ? "" : ` · ${new Date(times[index] * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
      parts.push(`## ${{ system: "System", user: "User", assistant: "Assistant", tool: "Tool" }[message.role]}${time}`);
    }
    if (message.content !== "") parts.push(message.role === "tool" ? fenced(message.content) : message.content.trim());
    for (const { call, result } of steps) {
      const { subject, rest } = subjectOf(call);
      parts.push(`**${call.name}** ${subject === "" ? "" : inline(subject)}`.trim());
      for (const [name, value] of rest) parts.push(`${name}:`, fenced(written(value)));
      if (result !== null) parts.push(fenced(result.content));
    }
  }
  return `${parts.join("\n\n")}\n`;
}

/** @param {string} text */
function inline(text) {
  const ticks = "`".repeat(longest(text) + 1);
  return `${ticks} ${text.replaceAll("\n", " ")} ${ticks}`;
}

/** @param {string} text */
function fenced(text) {
  const fence = "`".repeat(Math.max(3, longest(text) + 1));
  return `${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** The longest run of backticks. @param {string} text */
function longest(text) {
  return Math.max(0, ...[...text.matchAll(/`+/g)].map(([found]) => found.length));
}
