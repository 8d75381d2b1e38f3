// Tabs that the arrow keys move through (role `tablist`).

import { el, mark, say } from "./dom.js";
import { icon } from "./icons.js";

/** @typedef {{ key: string, title: string, icon: string, count?: number | null }} Tab */

/** A row of tabs; `onChoose` gets the key of the one that was chosen. */
export class Tabs extends HTMLElement {
  /** @type {Map<string, { button: HTMLButtonElement, count: HTMLElement }>} */
  #tabs = new Map();
  #onChoose;

  /**
   * @param {string} label
   * @param {(key: string) => void} onChoose
   */
  constructor(label, onChoose) {
    super();
    this.#onChoose = onChoose;
    this.className = "tabs";
    this.role = "tablist";
    this.ariaLabel = label;
    this.addEventListener("keydown", (event) => this.#key(event));
  }

  /**
   * Show these tabs, one of them chosen.
   * @param {Tab[]} items
   * @param {string} chosen
   * @param {string} panel the id of what they show
   */
  show(items, chosen, panel) {
    const keys = new Set(items.map(({ key }) => key));
    for (const [key, { button }] of this.#tabs) {
      if (keys.has(key)) continue;
      button.remove();
      this.#tabs.delete(key);
    }
    items.forEach((item, index) => {
      const { button, count } = this.#tabs.get(item.key) ?? this.#made(item, panel);
      say(count, item.count ? String(item.count) : "");
      count.hidden = !item.count;
      mark(button, "aria-selected", item.key === chosen);
      button.tabIndex = item.key === chosen ? 0 : -1;
      if (this.children[index] !== button) this.insertBefore(button, this.children[index] ?? null);
    });
  }

  /** The id of a tab's element, for the panel that it labels. @param {string} key */
  idOf(key) {
    return this.#tabs.get(key)?.button.id ?? null;
  }

  /**
   * @param {Tab} item
   * @param {string} panel
   */
  #made({ key, title, icon: name }, panel) {
    const count = el("span", { className: "count figure", hidden: true });
    const button = el("button", { type: "button", className: "tab", role: "tab", id: `tab-${key}`, "aria-controls": panel,
      onclick: () => this.#onChoose(key) }, icon(name), el("span", {}, title), count);
    const made = { button, count };
    this.#tabs.set(key, made);
    return made;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const all = /** @type {HTMLElement[]} */ ([...this.children]);
    const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    const next = all[(to + all.length) % all.length];
    next.focus();
    next.click();
  }
}

customElements.define("cfs-tabs", Tabs);
