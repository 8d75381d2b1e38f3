// Markup that the server makes of texts: asked for in batches, kept for a while. No other markup gets into the page.

import { el, say } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./text.js";

const GATHER = 16; // milliseconds in which texts are collected for one request
const MOST_OF_A_REQUEST = 300_000; // characters; the server takes 1 MiB
const MOST_ITEMS = 200;
const KEPT = 400_000; // characters of texts and markup in the cache
const PAUSE_AFTER_ERROR = 2000;
const SAID = 1500; // milliseconds for which a button says what it did

/** Texts longer than this stay plain. */
export const LONGEST = 100_000;

/** @type {string | null} what the server has just returned */
let received = null;

const policy = globalThis.trustedTypes?.createPolicy("cfs-markup", {
  createHTML(html) {
    if (html !== received) throw new TypeError("the server has not made this markup");
    return html;
  },
});

/**
 * Markup of the server, which `insert` takes.
 * @typedef {{ toString(): string }} Html
 * @typedef {{ text: string, language: string | null, keep: boolean, done: (html: Html | null) => void }} Wanted
 */

/** Renders texts by one server. */
export class Markup {
  #api;
  /** @type {Wanted[]} */
  #wanted = [];
  /** @type {ReturnType<typeof setTimeout> | null} */
  #timer = null;
  #asking = false;
  /** @type {Map<string, Html>} */
  #kept = new Map();
  #size = 0;

  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.#api = api;
  }

  /**
   * Put the markup of a text into an element: at once if it is in the cache, else when it comes, as long as the
   * element is `current`. The element stays as it is when there is none.
   * @param {HTMLElement} element
   * @param {string} text
   * @param {string | null} language "markdown", the name of a language or of a file
   */
  fill(element, text, language, current = () => true) {
    const known = this.#found(keyOf(text, language));
    if (known !== null) insert(element, known);
    else this.html(text, language, true).then((html) => html !== null && current() && insert(element, html));
  }

  /**
   * The markup of a text; null when there is none.
   * @param {string} text
   * @param {string | null} language
   * @param {boolean} keep whether the same text may be asked for again
   * @returns {Promise<Html | null>}
   */
  html(text, language, keep = false) {
    if (text.length > LONGEST) return Promise.resolve(null);
    const known = this.#found(keyOf(text, language));
    if (known !== null) return Promise.resolve(known);
    return new Promise((done) => {
      this.#wanted.push({ text, language, keep, done });
      if (!this.#asking) this.#timer ??= setTimeout(() => this.#ask(), GATHER);
    });
  }

  /** @param {string} key */
  #found(key) {
    const html = this.#kept.get(key);
    if (html === undefined) return null;
    this.#kept.delete(key); // to the end: the first one is dropped first
    this.#kept.set(key, html);
    return html;
  }

  async #ask() {
    this.#asking = true;
    const batch = this.#next();
    /** @type {{ html: string }[]} */
    let found = [];
    try {
      const items = batch.map(({ text, language }) => ({ text, language }));
      found = (await this.#api.send("POST", "/v1/render", { items })).items;
    } catch {
      await new Promise((resume) => setTimeout(resume, PAUSE_AFTER_ERROR)); // they stay plain
    }
    batch.forEach(({ text, language, keep, done }, index) => {
      const html = found[index] ? trusted(found[index].html) : null;
      if (html !== null && keep) this.#keep(keyOf(text, language), html);
      done(html);
    });
    this.#asking = false;
    this.#timer = this.#wanted.length ? setTimeout(() => this.#ask(), GATHER) : null;
  }

  /** Texts for one request, each once. */
  #next() {
    let count = 0;
    for (let size = 0; count < Math.min(this.#wanted.length, MOST_ITEMS); count++) {
      size += this.#wanted[count].text.length;
      if (size > MOST_OF_A_REQUEST && count > 0) break;
    }
    return this.#wanted.splice(0, count);
  }

  /** @param {string} key @param {Html} html */
  #keep(key, html) {
    if (this.#kept.has(key)) return;
    this.#kept.set(key, html);
    this.#size += key.length + String(html).length;
    for (const [old, its] of this.#kept) {
      if (this.#size <= KEPT) break;
      this.#kept.delete(old);
      this.#size -= old.length + String(its).length;
    }
  }
}

/** @param {string} text @param {string | null} language */
function keyOf(text, language) {
  return `${language}\n${text}`;
}

/** @param {string} html @returns {Html} */
function trusted(html) {
  received = html;
  try {
    return policy?.createHTML(html) ?? html;
  } finally {
    received = null;
  }
}

/**
 * Put markup into an element, with a button to copy each block of code.
 * @param {HTMLElement} element
 * @param {Html} html
 */
export function insert(element, html) {
  element.innerHTML = /** @type {any} */ (html);
  for (const code of element.querySelectorAll(".code")) furnish(/** @type {HTMLElement} */ (code));
  for (const table of element.querySelectorAll("table")) {
    const frame = el("div", { className: "table", tabIndex: 0, role: "region", "aria-label": t("Table") });
    table.replaceWith(frame);
    frame.append(table);
  }
}

/** @param {HTMLElement} code */
function furnish(code) {
  const pre = code.querySelector("pre");
  if (pre === null) return;
  pre.tabIndex = 0; // it may scroll
  code.prepend(el("div", { className: "code-head" }, el("span", {}, code.dataset.language ?? ""),
    copyButton(() => pre.textContent ?? "", t("Copy code"))));
}

/**
 * A button that copies a text.
 * @param {() => string} text
 * @param {string} label
 */
export function copyButton(text, label) {
  const shown = el("span", { className: "unseen", role: "status" });
  const made = el("button", { type: "button", className: "icon-button copy", title: label, "aria-label": label,
    onclick: async () => {
      const done = await copied(text());
      made.firstChild.replaceWith(icon(done ? "check" : "alert"));
      say(shown, done ? t("Copied") : t("Not copied"));
      setTimeout(() => {
        made.firstChild.replaceWith(icon("copy"));
        say(shown, "");
      }, SAID);
    } }, icon("copy"));
  return el("span", { className: "copying" }, made, shown);
}

/** @param {string} text */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text); // a page that came by plain HTTP from another machine has no clipboard
  }
}

/** @param {string} text */
function copiedBySelection(text) {
  const field = el("textarea", { className: "unseen", value: text, readOnly: true });
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return done;
}
