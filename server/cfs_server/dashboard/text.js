// The words of the page: English in the code, other languages in tables.

import { ZH } from "./zh.js";

const KEPT = "cfs.language";
/** @type {Record<string, Record<string, string>>} */
const TABLES = { zh: ZH };

/** Languages that the page can be shown in, each with its own name. */
export const LANGUAGES = { en: "English", zh: "中文" };

/** The language of this page: the chosen one, else the browser's. */
export const language = chosen() ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");

/**
 * Return a text in the language of the page; `{name}` is replaced by a value.
 * @param {string} text
 * @param {Record<string, string | number>} [values]
 */
export function t(text, values) {
  const found = TABLES[language]?.[text] ?? text;
  return values ? found.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole)) : found;
}

/**
 * Return the text for one or for several: `many("{n} session", "{n} sessions", 3)`.
 * @param {string} one
 * @param {string} several
 * @param {number} n
 */
export function many(one, several, n) {
  return t(n === 1 ? one : several, { n });
}

/**
 * Return a message of the server as a sentence of the page.
 * @param {string} message
 */
export function sentence(message) {
  return `${message.charAt(0).toUpperCase()}${message.slice(1)}${/[.!?]$/.test(message) ? "" : "."}`;
}

/** The chosen language, or null for the browser's. */
export function chosen() {
  const found = localStorage.getItem(KEPT);
  return found !== null && found in LANGUAGES ? found : null;
}

/**
 * Show the page in another language from now on: null is the browser's.
 * @param {string | null} code
 */
export function choose(code) {
  if (code === null) localStorage.removeItem(KEPT);
  else localStorage.setItem(KEPT, code);
  location.reload();
}
