// The messages of a conversation on the page, kept in step with it.

import { el, mark } from "./dom.js";
import { afterwards, never, soon } from "./frame.js";
import { callView, messageView } from "./message_view.js";
import { TextFlow } from "./text_flow.js";

const SHOWN = 200;
const MOST = 400;
const NEAR = 48; // pixels from the end that count as being there

/** A scrolling list that stays at its end while somebody reads there. */
export class MessageList {
  #conversation;
  #list = el("ol", { className: "list" });
  #earlier = el("button", { type: "button", className: "button earlier", hidden: true, onclick: () => this.#more() });
  #drawn = []; // { message, cost, element } from #start on
  #start = 0;
  #partial = null;
  #waiting = el("ol", { className: "list waiting" });
  #atEnd = true;
  #expanded = false; // somebody has asked for earlier ones: they stay
  #unwatch;
  #draw = () => this.#update();
  #settle = () => (this.element.scrollTop = this.element.scrollHeight);

  constructor(conversation) {
    this.#conversation = conversation;
    const label = `Messages of ${conversation.id}`;
    this.element = el(
      "div",
      { className: "messages", tabIndex: 0, role: "region", "aria-label": label, onscroll: () => this.#scrolled() },
      this.#earlier,
      this.#list,
      this.#waiting,
    );
    this.#unwatch = conversation.watch(() => soon(this.#draw));
    soon(this.#draw);
  }

  close() {
    this.#unwatch();
    never(this.#draw);
  }

  #scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.element;
    this.#atEnd = scrollHeight - scrollTop - clientHeight < NEAR;
  }

  /** Go to the newest message, and stay there. */
  follow() {
    this.#atEnd = true;
    soon(this.#draw);
  }

  #more() {
    this.#expanded = true;
    this.#atEnd = false;
    this.#redraw(Math.max(0, this.#start - SHOWN));
  }

  #redraw(start) {
    for (const { element } of this.#drawn) element.remove();
    this.#drawn = [];
    this.#start = start;
    this.#update();
  }

  #update() {
    const { messages } = this.#conversation;
    const start = Math.max(0, messages.length - SHOWN);
    const tooMany = this.#atEnd && !this.#expanded && messages.length - this.#start > MOST;
    if (messages.length < this.#start || tooMany || (!this.#expanded && !this.#drawn.length && start)) {
      this.#expanded = false;
      if (start !== this.#start) {
        this.#redraw(start);
        return;
      }
    }
    this.#drawMessages(messages);
    this.#drawPartial(this.#conversation.partial);
    this.#drawWaiting();
    mark(this.element, "aria-busy", this.#conversation.busy ? "true" : null);
    this.#earlier.hidden = this.#start === 0;
    this.#earlier.textContent = `Show earlier messages (${this.#start})`;
    if (this.#atEnd) afterwards(this.#settle);
  }

  #drawMessages(messages) {
    const { usage, times } = this.#conversation;
    while (this.#drawn.length > messages.length - this.#start) this.#drawn.pop().element.remove();
    for (let index = this.#start; index < messages.length; index++) {
      const message = messages[index];
      const cost = usage.get(index) ?? null;
      const old = this.#drawn[index - this.#start];
      if (old && old.cost === cost && same(old.message, message)) {
        old.message = message;
        continue;
      }
      const element = messageView(message, { cost, time: times.get(index) ?? null });
      if (old) old.element.replaceWith(element);
      else this.#list.insertBefore(element, this.#partial?.element ?? null);
      this.#drawn[index - this.#start] = { message, cost, element };
    }
  }

  #drawPartial(partial) {
    if (partial === null || this.#partial?.turn !== partial.turn) {
      this.#partial?.element.remove();
      this.#partial = null;
    }
    if (partial === null) return;
    if (this.#partial === null) {
      this.#partial = new Growing(partial.turn);
      this.#list.append(this.#partial.element);
    }
    this.#partial.show(partial);
  }

  #drawWaiting() {
    const { queue, queued } = this.#conversation;
    const texts = queue.slice(0, queued).map((message) => message.content);
    if (texts.join("\0") === this.#waiting.dataset.texts) return;
    this.#waiting.dataset.texts = texts.join("\0");
    this.#waiting.replaceChildren(
      ...texts.map((text) =>
        el(
          "li",
          { className: "message user queued" },
          el("div", { className: "head" }, el("span", { className: "role" }, "Queued")),
          new TextFlow(text).element,
        ),
      ),
    );
  }
}

/** What the running turn has said so far. */
class Growing {
  #text = new TextFlow();
  #thinking = new TextFlow();
  #folded;
  #calls = el("div");

  constructor(turn) {
    this.turn = turn;
    this.#folded = el("details", { className: "folded thinking", open: true, hidden: true },
      el("summary", {}, "Thinking"), this.#thinking.element);
    const head = el("div", { className: "head" }, el("span", { className: "role" }, "Assistant"),
      el("span", { className: "pulse", "aria-hidden": "true" }));
    this.element = el("li", { className: "message assistant growing" }, head, this.#folded, this.#text.element, this.#calls);
  }

  show({ text, thinking, calls }) {
    this.#text.show(text);
    this.#thinking.show(thinking);
    this.#folded.hidden = thinking === "";
    if (this.#calls.childElementCount !== calls.length) this.#calls.replaceChildren(...calls.map(callView));
  }
}

function same(one, other) {
  return one === other || JSON.stringify(one) === JSON.stringify(other);
}

