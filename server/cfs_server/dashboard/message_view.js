// One message: what was said, what it called, what it took, and what one can do with it.

import { CallView } from "./call_view.js";
import { arrange, el, mark, say } from "./dom.js";
import { icon } from "./icons.js";
import { ending, modelOf, secondsOf } from "./items.js";
import { copyButton } from "./markup.js";
import { figuresOf, figureView } from "./meters.js";
import { t } from "./text.js";
import { RichText, TextFlow } from "./text_flow.js";
import { clock, moment } from "./times.js";

/**
 * @typedef {import("./items.js").Item} Item
 * @typedef {{ conversation: import("./conversation.js").Conversation, branches: import("./branches.js").Branches | null,
 *   me: any, failed: (error: Error) => void, mayCopy: boolean }} Around what the messages of a list have in common
 */

/** A message of a conversation as an item of a list. `show` it again when something of it has changed. */
export class MessageView {
  /** @type {Item} */
  item;
  #around;
  /** @type {RichText | null} */
  #text = null;
  /** @type {CallView[]} */
  #calls = [];
  #near = false;
  #foot = el("div", { className: "foot" });
  #drawn = "";

  /**
   * @param {Item} item
   * @param {Around} around
   * @param {RichText | null} grown the text of this message, if it has been seen growing
   */
  constructor(item, around, grown = null) {
    this.item = item;
    this.#around = around;
    const { message } = item;
    const { markup } = around.conversation;
    this.element = el("li", { className: `message ${message.role} ${ending(message)}`.trim() });
    if (message.role === "system") this.element.append(folded("system", t("System prompt"), () => message.content));
    else if (message.role === "tool") this.element.append(folded("result", message.name || t("Result"), () => message.content));
    else {
      if (message.thinking) this.element.append(folded("thinking", t("Thought"), () => message.thinking ?? ""));
      if (message.content !== "") {
        this.#text = grown ?? new RichText(markup);
        this.#text.end(message.content);
        this.element.append(this.#text.element);
      }
      this.#calls = item.steps.map((step) => new CallView(step, markup));
      this.element.append(...this.#calls, this.#foot);
    }
  }

  /**
   * @param {Item} item the same message, perhaps with more results
   * @param {{ last: boolean, fork: import("./branches.js").Fork | null, busy: boolean }} now
   */
  show(item, { last, fork, busy }) {
    this.item = item;
    const { conversation } = this.#around;
    mark(this.element, "data-first", item.first ? "" : null);
    this.#calls.forEach((call, index) => {
      const step = item.steps[index];
      call.show(step, { busy, seconds: secondsOf(item, step, (at) => conversation.timeOf(at)) });
    });
    const cost = last ? conversation.usage.get(item.end - 1) ?? null : null;
    const drawn = JSON.stringify([item.end, last, fork, cost, conversation.timeOf(item.index), busy, conversation.settings?.driver]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    this.#drawFoot({ last, fork, cost, busy });
  }

  /** Render it from now on: it is in sight, or soon will be. */
  near() {
    if (this.#near) return;
    this.#near = true;
    this.#text?.near();
    for (const call of this.#calls) call.near();
  }

  /** Let the user write this message anew. */
  edit() {
    const { branches, failed } = this.#around;
    if (this.element.querySelector(".editor") || branches === null || !this.#around.mayCopy) return;
    const { message, index } = this.item;
    const field = el("textarea", { value: message.content, "aria-label": t("Edit message") });
    const close = () => {
      editor.remove();
      this.element.classList.remove("edited");
      this.#button("edit")?.focus();
    };
    const editor = el("form", { className: "editor", onsubmit: async (event) => {
      event.preventDefault();
      if (field.value.trim() === "") return;
      try {
        await branches.edit(index, field.value);
      } catch (error) {
        failed(/** @type {Error} */ (error));
      }
    }, onkeydown: (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        editor.requestSubmit();
      }
    } }, field, el("p", { className: "quiet" }, t("This begins a new branch. The messages below stay in the old one.")),
    el("div", { className: "answers" }, el("button", { type: "button", className: "button", onclick: close }, t("Cancel")),
      el("button", { type: "submit", className: "button primary" }, t("Send"))));
    this.element.classList.add("edited");
    this.element.prepend(editor);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  /** @param {string} name */
  #button(name) {
    return /** @type {HTMLElement | null} */ (this.#foot.querySelector(`[data-does="${name}"]`));
  }

  #drawFoot({ last, fork, cost, busy }) {
    const { message, index, end } = this.item;
    const { branches, conversation, me } = this.#around;
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.does;
    const had = this.#foot.contains(document.activeElement) && focused;
    const isUser = message.role === "user";
    const time = conversation.timeOf(isUser ? index : end - 1);
    /** @type {[string, () => Element][]} */
    const parts = [];
    if (fork !== null && branches !== null) parts.push([JSON.stringify(fork), () => switcher(fork, (id) => branches.go(id))]);
    if ((isUser || last) && time !== null) {
      parts.push([`${time}`, () =>
        el("time", { className: "figure", dateTime: new Date(time * 1000).toISOString(), title: moment(time) }, clock(time))]);
    }
    if (cost !== null) {
      const model = modelOf(me, conversation.settings);
      for (const figure of figuresOf(cost, model)) parts.push([JSON.stringify(figure), () => figureView(figure)]);
    }
    if (isUser || last) {
      parts.push([`does ${busy} ${branches?.answered}`, () => el("span", { className: "does" }, this.#actions(isUser, busy))]);
    }
    arrange(this.#foot, parts);
    this.#foot.hidden = parts.length === 0;
    if (had) this.#button(had)?.focus();
  }

  /** @param {boolean} isUser @param {boolean} busy */
  #actions(isUser, busy) {
    const { message, index } = this.item;
    const { branches, failed } = this.#around;
    const does = (/** @type {string} */ name, /** @type {string} */ label, /** @type {() => any} */ run) => {
      const made = el("button", { type: "button", className: "icon-button", title: label, "aria-label": label,
        "data-does": name, onclick: async () => {
          try {
            await run();
          } catch (error) {
            failed(/** @type {Error} */ (error));
          }
        } }, icon({ edit: "edit", again: "refresh", branch: "branch" }[name] ?? "help"));
      return made;
    };
    const parts = [message.content === "" ? null : copyButton(() => message.content, t("Copy message"))];
    if (!this.#around.mayCopy) return parts.filter((part) => part !== null);
    if (branches !== null && branches.answered) {
      if (isUser) parts.push(does("edit", t("Edit in a new branch"), () => this.edit()));
      else if (!busy) parts.push(does("again", t("Answer again in a new branch"), () => branches.regenerate(index)));
    }
    if (branches !== null && !isUser && !busy) parts.push(does("branch", t("Branch from here"), () => branches.branch(this.item.end)));
    return parts.filter((part) => part !== null);
  }
}

/** The branches that part here: ‹ 2/3 ›. */
function switcher(/** @type {import("./branches.js").Fork} */ { ids, at }, /** @type {(id: string) => void} */ go) {
  const step = (/** @type {number} */ to, /** @type {string} */ name, /** @type {string} */ label) =>
    el("button", { type: "button", className: "icon-button", title: label, "aria-label": label, disabled: !(to in ids),
      "data-does": name, onclick: () => go(ids[to]) }, icon(name));
  const label = t("Branch {n} of {all}", { n: at + 1, all: ids.length });
  return el("span", { className: "switcher", role: "group", "aria-label": label },
    step(at - 1, "back", t("Previous branch")), el("span", { className: "figure" }, `${at + 1}/${ids.length}`),
    step(at + 1, "next", t("Next branch")));
}

/** A message that is still to be read by the session. @param {string} text */
export function waitingView(text) {
  return el("li", { className: "message user queued" }, el("div", { className: "head" }, icon("clock"), t("Queued")),
    new TextFlow(text).element);
}

/**
 * Something folded; what is in it is made when it is opened for the first time.
 * @param {string} className
 * @param {string} title
 * @param {() => string} content
 */
function folded(className, title, content) {
  const inside = el("pre", { tabIndex: 0 });
  const made = el("details", { className: `folded ${className}`, ontoggle: () => {
    if (made.open && inside.textContent === "") inside.textContent = content();
  } }, el("summary", {}, icon("next"), title), inside);
  return made;
}

/** What the running turn has said so far. */
export class GrowingView {
  text;
  #thinking = new TextFlow();
  #folded;
  #calls = el("div", { className: "calls" });
  #speed = el("span", { className: "figure" });
  #label = el("span", {});
  #markup;
  #near = false;
  /** @type {CallView[]} */
  #views = [];

  /** @param {string} turn @param {import("./markup.js").Markup} markup */
  constructor(turn, markup) {
    this.turn = turn;
    this.#markup = markup;
    this.text = new RichText(markup);
    this.#folded = el("details", { className: "folded thinking", open: true, hidden: true },
      el("summary", {}, icon("next"), t("Thinking")), this.#thinking.element);
    this.element = el("li", { className: "message assistant growing" }, this.#folded, this.text.element, this.#calls,
      el("div", { className: "foot" }, el("span", { className: "pulse", "aria-hidden": "true" }), this.#label, this.#speed));
  }

  /**
   * @param {{ text: string, thinking: string, calls: import("./items.js").Call[] }} partial
   * @param {number | null} speed tokens a second
   */
  show({ text, thinking, calls }, speed) {
    this.text.show(text);
    this.#thinking.show(thinking);
    if (this.#folded.hidden !== (thinking === "")) this.#folded.hidden = thinking === "";
    if (text !== "" && this.#folded.dataset.closed === undefined) {
      this.#folded.dataset.closed = "";
      this.#folded.open = false; // what was thought is behind: the answer comes
    }
    while (this.#views.length < calls.length) {
      const step = { call: calls[this.#views.length], result: null, at: null };
      const view = new CallView(step, this.#markup);
      view.show(step, { busy: true, seconds: null });
      if (this.#near) view.near();
      this.#views.push(view);
      this.#calls.append(view);
    }
    say(this.#label, text === "" && thinking === "" && calls.length === 0 ? t("Working") : "");
    say(this.#speed, speed === null ? "" : t("{n} tokens/s", { n: speed < 10 ? speed.toFixed(1) : Math.round(speed) }));
  }

  near() {
    this.#near = true;
    this.text.near();
    for (const view of this.#views) view.near();
  }
}
