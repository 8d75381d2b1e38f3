// The open questions of a session's agent: what it wants to run, and the buttons that answer.

import { place } from "./api.js";
import { el, mark, say } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./text.js";

// What is shown as nothing, obeyed by the display, or looks like a blank: everything that `shapely` of Python escapes.
const SHAPELESS = /[\p{C}\p{Z}\u034F\u115F\u1160\u17B4\u17B5\u2800\u3164\uFFA0\u180B-\u180F\uFE00-\uFE0F\u{E0100}-\u{E01EF}]/gu;

/** A line with each character that cannot be seen as its number. @param {string} line */
export function shapely(line) {
  return line.replace(SHAPELESS, (found) =>
    found === " " ? found : `<U+${/** @type {number} */ (found.codePointAt(0)).toString(16).toUpperCase().padStart(4, "0")}>`);
}

/** Words of the buttons. @type {Record<string, string>} */
const CHOICES = { allow: t("Allow"), always: t("Always allow"), deny: t("Deny") };

/** What a card asks, by the kind of its question. @type {Record<string, string>} */
const TITLES = {
  command: t("May this command run?"),
  write: t("May this file be changed?"),
  read: t("May this file be read?"),
  mcp: t("May this tool of an MCP server be called?"),
  spawn: t("May this agent be started?"),
};
let cards = 0; // the same question can be shown twice: in its conversation and in the inbox

/** Cards of the questions that wait for an answer, each until it has one, from here or elsewhere. */
export class Questions extends HTMLElement {
  #context;
  #id;
  /** @type {Map<string, Card>} */
  #cards = new Map();

  /**
   * @param {any} context
   * @param {string} id of the session
   */
  constructor(context, id) {
    super();
    this.#context = context;
    this.#id = id;
    this.className = "questions";
    this.hidden = true;
  }

  /** @param {Record<string, any>} questions open ones by id */
  show(questions) {
    for (const [id, card] of this.#cards) {
      if (id in questions) continue;
      card.remove();
      this.#cards.delete(id);
    }
    for (const question of Object.values(questions)) {
      if (this.#cards.has(question.id)) continue;
      const mayAnswer = this.#context.app.rights.maySteer(this.#id);
      const card = new Card(question, mayAnswer, (answer) => this.#answer(question.id, answer));
      this.#cards.set(question.id, card);
      this.append(card);
    }
    this.hidden = this.#cards.size === 0;
  }

  /** @param {string} question @param {string} answer */
  async #answer(question, answer) {
    await this.#context.api.send("POST", `${place(this.#id)}/questions/${question}`, { answer });
  }
}

/** One question. */
class Card extends HTMLElement {
  #note = el("p", { className: "note", role: "alert", hidden: true });
  #buttons;

  /** @param {any} question @param {boolean} mayAnswer @param {(answer: string) => Promise<void>} send */
  constructor(question, mayAnswer, send) {
    super();
    const lines = question.text.split("\n");
    const shown = lines.map(shapely);
    const hides = shown.some((/** @type {string} */ line, /** @type {number} */ number) => line !== lines[number]);
    const title = question.background ? t("May this command run in the background?")
      : TITLES[question.kind] ?? t("May this tool be called?");
    cards += 1;
    const heading = el("h3", { id: `question-${cards}` }, icon("help"), title);
    this.className = "card question";
    this.role = "group";
    mark(this, "aria-labelledby", heading.id);
    this.#buttons = question.choices.map((/** @type {string} */ choice) => el("button", { type: "button",
      className: choice === "allow" ? "button primary" : choice === "deny" ? "button danger" : "button",
      onclick: () => this.#choose(choice, send) }, CHOICES[choice] ?? choice));
    const parts = [
      heading,
      el("pre", { tabIndex: 0, "aria-label": question.kind === "command" ? t("Command") : t("Call") }, ...shown.map((/** @type {string} */ line) => el("code", {}, line || " "))),
      question.directory ? el("p", { className: "quiet" }, t("In {directory}", { directory: shapely(question.directory) })) : null,
      hides ? el("p", { className: "quiet" }, t("<U+...> stands for a character that cannot be seen.")) : null,
      mayAnswer ? el("div", { className: "answers" }, ...this.#buttons) : null,
      this.#note,
    ];
    this.append(...parts.filter((part) => part !== null));
  }

  /** @param {string} choice @param {(answer: string) => Promise<void>} send */
  async #choose(choice, send) {
    for (const each of this.#buttons) each.disabled = true;
    this.#note.hidden = true;
    try {
      await send(choice); // the event that says so takes the card away
    } catch (error) {
      say(this.#note, /** @type {Error} */ (error).message);
      this.#note.hidden = false;
      for (const each of this.#buttons) each.disabled = false;
    }
  }
}

customElements.define("cfs-question", Card);
customElements.define("cfs-questions", Questions);
