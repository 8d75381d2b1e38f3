// Menus of actions (role `menu`): a button opens one, the arrow keys move in it, Escape closes it.

import { el } from "./dom.js";
import { icon } from "./icons.js";

/**
 * @typedef {object} Item one action of a menu; null is a line between two groups
 * @property {string} label
 * @property {string} [icon]
 * @property {string} [key] the keyboard shortcut, as it is shown
 * @property {boolean} [danger]
 * @property {boolean} [disabled]
 * @property {boolean} [checked] for an item that is one of several choices
 * @property {() => void} run
 */

/**
 * A button that opens a menu; the items are asked for each time.
 * @param {{ label: string, content?: (Node | string)[], className?: string, items: () => (Item | null)[] }} options
 * @returns {HTMLButtonElement}
 */
export function menuButton({ label, content = [icon("more")], className = "icon-button", items }) {
  const button = el("button", { type: "button", className, "aria-haspopup": "menu", "aria-expanded": "false",
    "aria-label": label, title: label, onclick: () => openMenu(button, items()) }, ...content);
  return button;
}

/**
 * Open a menu at an element, which gets the focus back when the menu closes.
 * @param {HTMLElement} anchor
 * @param {(Item | null)[]} items
 */
export function openMenu(anchor, items) {
  const menu = el("div", { className: "menu", role: "menu", popover: "auto", "aria-label": anchor.getAttribute("aria-label") });
  for (const item of items) menu.append(item === null ? el("hr", { role: "separator" }) : itemOf(item, menu));
  menu.addEventListener("keydown", (event) => move(event, menu));
  menu.addEventListener("toggle", (event) => {
    if (/** @type {ToggleEvent} */ (event).newState !== "closed") return;
    anchor.setAttribute("aria-expanded", "false");
    if (menu.contains(document.activeElement) || document.activeElement === document.body) anchor.focus();
    menu.remove();
  });
  document.body.append(menu);
  menu.showPopover();
  anchor.setAttribute("aria-expanded", "true");
  place(menu, anchor.getBoundingClientRect());
  focusable(menu)[0]?.focus();
}

/** @param {Item} item @param {HTMLElement} menu */
function itemOf({ label, icon: name, key, danger, disabled = false, checked, run }, menu) {
  const role = checked === undefined ? "menuitem" : "menuitemradio";
  const mark = checked === undefined ? name : checked ? "check" : null;
  const onclick = () => {
    menu.hidePopover();
    run();
  };
  return el("button", { type: "button", className: `item${danger ? " danger" : ""}`, role, disabled, tabIndex: -1, onclick,
      "aria-checked": checked === undefined ? null : String(checked) },
    mark ? icon(mark) : el("span", { className: "icon" }), el("span", {}, label),
    key ? el("kbd", { className: "kbd", "aria-hidden": "true" }, key) : null);
}

/** Below the button, or above it where there is no room; always inside the window. */
function place(menu, { left, right, top, bottom }) {
  const { width, height } = menu.getBoundingClientRect();
  const room = 8;
  const x = left + width + room <= innerWidth ? left : right - width;
  const y = bottom + height + room <= innerHeight ? bottom + 4 : top - height - 4;
  menu.style.left = `${Math.max(room, Math.min(x, innerWidth - width - room))}px`;
  menu.style.top = `${Math.max(room, Math.min(y, innerHeight - height - room))}px`;
}

/** @returns {HTMLElement[]} */
function focusable(menu) {
  return [...menu.querySelectorAll(".item:not(:disabled)")];
}

function move(event, menu) {
  if (event.key === "Tab") menu.hidePopover();
  const all = focusable(menu);
  const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined || all.length === 0) return;
  event.preventDefault();
  event.stopPropagation();
  all[(to + all.length) % all.length].focus();
}
