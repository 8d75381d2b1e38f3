// The command palette: every session and every action, found by a few letters (a combobox with a list).

import { el, mark } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./text.js";

const MOST = 50;

/**
 * @typedef {object} Entry
 * @property {string} label
 * @property {string} icon
 * @property {string} [aside] what stands at the end of the line: an id, a shortcut
 * @property {() => void} run
 */

/**
 * Open the palette.
 * @param {(query: string) => Entry[]} entries what there is to choose from for a query, best first
 */
export function openPalette(entries) {
  /** @type {Entry[]} */
  let shown = [];
  let active = 0;
  const list = el("ul", { role: "listbox", id: "palette-list", "aria-label": t("Sessions and actions") });
  const field = el("input", { type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list",
    "aria-label": t("Go to a session or run an action"), placeholder: t("Go to a session or run an action"),
    autocomplete: "off", spellcheck: false, oninput: () => draw(), onkeydown: (event) => key(event) });
  const dialog = el("dialog", { className: "palette", "aria-label": t("Command palette"), onclose: () => dialog.remove(),
    onclick: (event) => event.target === dialog && dialog.close() }, field, list);

  function draw() {
    shown = entries(field.value.trim()).slice(0, MOST);
    active = 0;
    list.replaceChildren(...shown.map((entry, index) =>
      el("li", { role: "option", id: `palette-${index}`, "aria-selected": "false", onclick: () => run(index),
          onpointermove: () => choose(index) },
        icon(entry.icon), el("span", { className: "main" }, entry.label),
        entry.aside ? el("span", { className: "aside" }, entry.aside) : null)));
    choose(0);
  }

  function choose(index) {
    list.children[active]?.setAttribute("aria-selected", "false");
    active = index;
    const chosen = list.children[active];
    chosen?.setAttribute("aria-selected", "true");
    chosen?.scrollIntoView({ block: "nearest" });
    mark(field, "aria-activedescendant", chosen?.id ?? null);
  }

  function run(index) {
    dialog.close();
    shown[index]?.run();
  }

  function key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && shown.length) choose((active + step + shown.length) % shown.length);
    else if (event.key === "Enter" && !event.isComposing) run(active);
    else return;
    event.preventDefault();
  }

  document.body.append(dialog);
  dialog.showModal();
  draw();
  field.focus();
}

/**
 * How well a text fits a query: 0 not at all, more is better. The letters of the query stand in the text in this order.
 * @param {string} text
 * @param {string} query
 */
export function fit(text, query) {
  const [within, wanted] = [text.toLowerCase(), query.toLowerCase()];
  if (wanted === "") return 1;
  const at = within.indexOf(wanted);
  if (at >= 0) return 1000 - Math.min(at, 500) + (at === 0 || /\W/.test(within[at - 1]) ? 500 : 0);
  let from = 0;
  for (const letter of wanted) {
    const next = within.indexOf(letter, from);
    if (next < 0) return 0;
    from = next + 1;
  }
  return Math.max(1, 200 - from);
}
