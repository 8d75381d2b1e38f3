// Figures with a name and an explanation, and how full the model's context is.

import { el, mark, say, svg } from "./dom.js";
import { contextUsed, costOf } from "./items.js";
import { t } from "./text.js";
import { duration, short } from "./times.js";

const RADIUS = 6;
const ROUND = 2 * Math.PI * RADIUS;
const FULL = 0.9;

/** @typedef {{ name: string, value: string, help: string }} Figure */

/**
 * What a turn took, as figures with a name.
 * @param {any} usage
 * @param {any} model what the server says of its model
 * @returns {Figure[]}
 */
export function figuresOf(usage, model) {
  /** @type {Figure[]} */
  const found = [];
  const { prompt_tokens: read = 0, completion_tokens: wrote = 0, cached_tokens: cached = 0 } = usage;
  if (read + wrote) {
    const help = [t("Tokens that the model read: {n}", { n: read }), t("Of these, from the cache: {n}", { n: cached }),
      t("Tokens that it wrote: {n}", { n: wrote })];
    found.push({ name: t("Tokens"), value: t("{n} tokens", { n: short(read + wrote) }), help: help.join("\n") });
  }
  const speed = usage.tokens_per_second;
  if (speed) {
    const help = [t("Tokens per second, after the first one"), t("First token after: {time}", { time: duration(usage.first_token_seconds ?? 0) }),
      t("In the queue: {time}", { time: duration(usage.queue_seconds ?? 0) })];
    found.push({ name: t("Speed"), value: t("{n} tokens/s", { n: speed < 10 ? speed.toFixed(1) : Math.round(speed) }), help: help.join("\n") });
  }
  if (usage.total_seconds) {
    found.push({ name: t("Time"), value: duration(usage.total_seconds), help: t("Time from the message to the end of the reply") });
  }
  const cost = costOf(usage, model?.price);
  if (cost !== null) {
    found.push({ name: t("Cost"), value: money(cost, model.price.currency), help: t("Cost of this turn by the prices of the model") });
  }
  if (usage.reason === "length") {
    found.push({ name: t("End"), value: t("cut off"), help: t("The reply has reached max_tokens. Raise it in the settings.") });
  }
  if (usage.left) {
    found.push({ name: t("Context"), value: t("{n} old messages left the prompt", { n: usage.left }),
      help: t("The conversation is longer than the context of the model, which no longer reads its oldest messages.") });
  }
  return found;
}

/** A figure, which says what it is when one points at it or comes to it by keyboard. @param {Figure} figure */
export function figureView({ name, value, help }) {
  const made = el("span", { className: "measure", tabIndex: 0, role: "note", "aria-label": `${name}: ${value}. ${help}` },
    el("span", { className: "figure", "aria-hidden": "true" }, value));
  explain(made, () => `${name}\n${help}`);
  return made;
}

const tip = el("div", { className: "tooltip", popover: "manual", "aria-hidden": "true" });

/**
 * Show a text at an element while one points at it, or it has the focus.
 * @param {HTMLElement} element
 * @param {() => string} text
 */
function explain(element, text) {
  const show = () => {
    if (!tip.isConnected) document.body.append(tip);
    tip.textContent = text();
    tip.showPopover();
    const { left, top, width, bottom } = element.getBoundingClientRect();
    const { width: wide, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(left + width / 2 - wide / 2, innerWidth - wide - 8))}px`;
    tip.style.top = `${top > height + 12 ? top - height - 4 : bottom + 4}px`;
  };
  const hide = () => tip.isConnected && tip.hidePopover();
  element.addEventListener("pointerenter", show);
  element.addEventListener("pointerleave", hide);
  element.addEventListener("focus", show);
  element.addEventListener("blur", hide);
}

/** @param {number} amount @param {string} currency */
export function money(amount, currency) {
  try {
    return new Intl.NumberFormat(undefined, { style: "currency", currency, ...(amount < 1 ? { maximumSignificantDigits: 2 } : {}) })
      .format(amount);
  } catch {
    return `${amount.toPrecision(2)} ${currency}`;
  }
}

/** A ring that shows how much of the model's context the last turn has used. */
export class ContextRing extends HTMLElement {
  #arc = svg("circle", { cx: 8, cy: 8, r: RADIUS, fill: "none", stroke: "currentColor", "stroke-width": 3,
    "stroke-dasharray": `0 ${ROUND}`, transform: "rotate(-90 8 8)" });
  #text = el("span", { className: "figure", "aria-hidden": "true" });
  #help = "";

  connectedCallback() {
    if (this.childElementCount) return;
    this.className = "measure ring";
    this.tabIndex = 0;
    this.setAttribute("role", "meter");
    this.setAttribute("aria-valuemin", "0");
    this.setAttribute("aria-valuemax", "100");
    this.append(svg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" },
      svg("circle", { class: "track", cx: 8, cy: 8, r: RADIUS, fill: "none", "stroke-width": 3 }), this.#arc), this.#text);
    explain(this, () => this.#help);
  }

  /** @param {any} usage of the last turn @param {number | null | undefined} context tokens of the model */
  show(usage, context) {
    const used = contextUsed(usage, context);
    this.hidden = used === null;
    if (used === null) return;
    const percent = Math.round(used * 100);
    mark(this, "aria-valuenow", percent);
    mark(this, "data-state", used >= FULL ? "full" : null);
    this.#arc.setAttribute("stroke-dasharray", `${used * ROUND} ${ROUND}`);
    say(this.#text, `${percent} %`);
    this.#help = t("Context used: {used} of {all} tokens in the last turn. When it is full, the oldest messages leave the prompt.",
      { used: short(usage.prompt_tokens + usage.completion_tokens), all: short(context ?? 0) });
    mark(this, "aria-label", this.#help);
  }
}
customElements.define("cfs-context", ContextRing);
