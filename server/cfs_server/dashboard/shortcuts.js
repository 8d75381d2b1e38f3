// Keyboard shortcuts: one table, which also makes the list that "?" shows.

import { button, el } from "./dom.js";
import { t } from "./text.js";

/**
 * @typedef {object} Shortcut
 * @property {string} key as in `KeyboardEvent.key`; "mod+k" is Ctrl or Command
 * @property {string} label what it does
 * @property {() => void} run
 */

const TYPING = "input:not([type=checkbox], [type=range]), textarea, select, [contenteditable=true]";

/** Listens for shortcuts while it is started. Plain letters do nothing while somebody types in a field. */
export class Shortcuts {
  #table;
  #onKey = (event) => this.#key(event);

  /** @param {Shortcut[]} table */
  constructor(table) {
    this.#table = table;
  }

  start() {
    addEventListener("keydown", this.#onKey);
  }

  stop() {
    removeEventListener("keydown", this.#onKey);
  }

  /** Show all shortcuts in a dialog. */
  help() {
    const rows = this.#table.flatMap(({ key, label }) => [
      el("dt", {}, ...named(key).map((part) => el("kbd", { className: "kbd" }, part))), el("dd", {}, label),
    ]);
    const dialog = el("dialog", { "aria-labelledby": "keys-title", onclose: () => dialog.remove() },
      el("form", { method: "dialog" },
        el("h2", { id: "keys-title" }, t("Keyboard shortcuts")),
        el("dl", { className: "keys" }, ...rows),
        el("div", { className: "answers" }, button(t("Close"), () => dialog.close()))));
    document.body.append(dialog);
    dialog.showModal();
  }

  #key(event) {
    if (event.defaultPrevented || event.isComposing || event.altKey || document.querySelector("dialog[open]")) return;
    const mod = event.ctrlKey || event.metaKey;
    if (!mod && /** @type {Element} */ (event.target).closest?.(TYPING)) return;
    const pressed = (mod ? "mod+" : "") + event.key;
    const found = this.#table.find(({ key }) => key === pressed);
    if (found === undefined) return;
    event.preventDefault();
    found.run();
  }
}

/** How a key is shown. */
export function named(key) {
  const mod = navigator.platform.startsWith("Mac") ? "⌘" : "Ctrl";
  return key.split("+").map((part) => (part === "mod" ? mod : part.length === 1 ? part.toUpperCase() : part));
}
