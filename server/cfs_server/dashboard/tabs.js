// Tabs that the arrow keys move through (role `tablist`).

import { el, mark } from "./dom.js";

/** A row of tabs; `onChoose` gets the key of the one that was chosen. */
export class Tabs {
  #tabs = new Map();
  #onChoose;
  #prefix;

  constructor(label, prefix, onChoose) {
    this.#onChoose = onChoose;
    this.#prefix = prefix;
    this.element = el("div", { className: `tabs ${prefix}`, role: "tablist", "aria-label": label,
      onkeydown: (event) => this.#key(event) });
  }

  /** Show these tabs, `{ key, title, state }`, one of them chosen. */
  show(items, chosen, panel) {
    const keys = new Set(items.map(({ key }) => key));
    for (const [key, tab] of this.#tabs) {
      if (keys.has(key)) continue;
      tab.remove();
      this.#tabs.delete(key);
    }
    items.forEach(({ key, title, state = null }, index) => {
      const tab = this.#tabs.get(key) ?? this.#made(key, title, panel);
      mark(tab, "data-state", state);
      mark(tab, "aria-selected", key === chosen);
      tab.tabIndex = key === chosen ? 0 : -1;
      if (this.element.children[index] !== tab) this.element.insertBefore(tab, this.element.children[index] ?? null);
    });
  }

  /** The id of a tab's element, for the panel that it labels. */
  idOf(key) {
    return this.#tabs.get(key)?.id ?? null;
  }

  #made(key, title, panel) {
    const id = `${this.#prefix}-${key.replace(/[^\w-]/g, (sign) => `_${sign.codePointAt(0)}`)}`;
    const tab = el("button", { type: "button", className: "tab", role: "tab", id, "aria-controls": panel,
      onclick: () => this.#onChoose(key) }, title);
    tab.title = key;
    this.#tabs.set(key, tab);
    return tab;
  }

  #key(event) {
    const all = [...this.element.children];
    const at = all.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    const next = all[(to + all.length) % all.length];
    next.focus();
    next.click();
  }
}
