// The inbox: the open questions of all sessions in one place, each with the buttons that answer it.

import { place } from "./api.js";
import { el, say } from "./dom.js";
import { icon } from "./icons.js";
import { encoded, nameOf } from "./ids.js";
import { Questions } from "./questions.js";
import { many, t } from "./text.js";

/** How many questions are open. @param {import("./sessions.js").Sessions} sessions */
export function openQuestions(sessions) {
  let count = 0;
  for (const node of sessions.all()) count += node.open_questions;
  return count;
}

/** The button that opens the inbox and says how many questions wait in it. It is there while one is open. */
export class InboxButton extends HTMLElement {
  #context;
  #count = el("span", { className: "tally" });
  #button;
  #unwatch = () => {};

  /** @param {{ app: any, api: any, live: any }} context */
  constructor(context) {
    super();
    this.#context = context;
    this.#button = el("button", { type: "button", className: "icon-button", onclick: () => openInbox(context) }, icon("help"), this.#count);
  }

  connectedCallback() {
    this.className = "inbox-button";
    this.replaceChildren(this.#button);
    this.#unwatch = this.#context.live.sessions.watch(() => this.#draw());
    this.#draw();
  }

  disconnectedCallback() {
    this.#unwatch();
  }

  #draw() {
    const count = openQuestions(this.#context.live.sessions);
    const label = many("Inbox: {n} question", "Inbox: {n} questions", count);
    this.hidden = count === 0;
    say(this.#count, String(count));
    this.#button.setAttribute("aria-label", label);
    this.#button.title = label;
  }
}

/**
 * Open the dialog with the open questions of all sessions. It follows the events while it is open.
 * @param {{ app: any, api: any, live: any }} context
 */
export function openInbox(context) {
  const { api, live } = context;
  /** @type {Map<string, { element: HTMLElement, cards: Questions, note: HTMLElement }>} the sessions that ask */
  const sections = new Map();
  const reading = new Set();
  const status = el("p", { className: "quiet", role: "status" });
  const list = el("div", { className: "inbox" });
  const close = el("button", { type: "submit", className: "button" }, t("Close"));
  const dialog = el("dialog", { className: "wide", "aria-labelledby": "inbox-title" },
    el("form", { method: "dialog" }, el("h2", { id: "inbox-title" }, t("Inbox")), status, list,
      el("div", { className: "answers" }, close)));

  function draw() {
    const asking = [...live.sessions.all()].filter((node) => node.open_questions > 0);
    for (const [id, { element }] of sections) {
      if (asking.some((node) => node.id === id)) continue;
      element.remove();
      sections.delete(id);
    }
    for (const [at, node] of asking.sort((one, other) => (one.id < other.id ? -1 : 1)).entries()) {
      const { element, cards } = sectionOf(node.id);
      cards.show(node.questions);
      const there = list.children[at] ?? null;
      if (there !== element) list.insertBefore(element, there); // what is moved loses the focus
      if (Object.keys(node.questions).length !== node.open_questions) read(node);
    }
    say(status, asking.length === 0 ? t("No agent asks anything.") : "");
    if (!dialog.contains(document.activeElement)) focusFirst();
  }

  /** @param {string} id */
  function sectionOf(id) {
    const found = sections.get(id);
    if (found !== undefined) return found;
    const note = el("p", { className: "complaint", role: "alert" });
    const cards = new Questions(context, id);
    const link = el("a", { href: `#conversation/${encoded(id)}`, onclick: () => dialog.close() }, nameOf(id));
    const path = id === nameOf(id) ? null : el("span", { className: "quiet" }, ` ${id}`);
    const made = { element: el("section", { "aria-label": id }, el("h3", {}, link, path), cards, note), cards, note };
    sections.set(id, made);
    return made;
  }

  /** A listing only counts the questions: read those that no event has told. @param {any} node */
  async function read(node) {
    if (reading.has(node.id)) return;
    reading.add(node.id);
    try {
      const { event } = node;
      const { questions } = await api.json(`${place(node.id)}/questions`);
      if (node.event === event) node.questions = Object.fromEntries(questions.map((/** @type {any} */ each) => [each.id, each]));
      reading.delete(node.id);
      live.sessions.touch(node.id);
    } catch (error) {
      say(sectionOf(node.id).note, /** @type {Error} */ (error).message);
    }
  }

  function focusFirst() {
    (/** @type {HTMLElement | null} */ (list.querySelector(".answers button:enabled")) ?? close).focus();
  }

  const unwatch = live.sessions.watch(draw);
  dialog.addEventListener("close", () => {
    unwatch();
    dialog.remove();
  });
  document.body.append(dialog);
  dialog.showModal();
  draw();
  focusFirst();
}

customElements.define("cfs-inbox-button", InboxButton);
