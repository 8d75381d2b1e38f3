// The messages of a conversation on the page, kept in step with it.

import { el, mark, say } from "./dom.js";
import { afterwards, never, soon } from "./frame.js";
import { beginning, itemsOf } from "./items.js";
import { GrowingView, MessageView, waitingView } from "./message_view.js";
import { t } from "./text.js";

const SHOWN = 200;
const MOST = 400;
const AT_END = 48; // pixels from the end that count as being there
const NEAR = "1000px 0px"; // what is so far out of sight is rendered already

/**
 * A scrolling list that stays at its end while one reads there. Messages are rendered when they come near the window.
 */
export class MessageList extends HTMLElement {
  #conversation;
  #around;
  #list = el("ol", { className: "list" });
  #earlier = el("button", { type: "button", className: "button earlier", hidden: true, onclick: () => this.#more() });
  #empty = el("div", { className: "nothing", hidden: true }, t("No messages yet."));
  /** @type {MessageView[]} */
  #drawn = [];
  #start = 0;
  /** @type {GrowingView | null} */
  #partial = null;
  #waiting = el("ol", { className: "list waiting", "aria-label": t("Queued messages") });
  #atEnd = true;
  #top = 0; // where it was scrolled to last
  #expanded = false; // earlier messages were asked for: they stay
  #seen = ""; // what was drawn last
  #queued = "";
  #unwatch = [];
  #near = new IntersectionObserver((entries) => this.#approach(entries), { root: this, rootMargin: NEAR });
  /** @type {WeakMap<Element, { near: () => void }>} */
  #views = new WeakMap();
  #draw = () => this.#update();
  #settle = () => {
    if (!this.#atEnd) return; // a message was sought meanwhile
    this.scrollTop = this.scrollHeight;
    this.#top = this.scrollTop;
  };

  /**
   * @param {import("./conversation.js").Conversation} conversation
   * @param {{ branches?: import("./branches.js").Branches | null, me?: any, failed?: (error: Error) => void,
   *   mayCopy?: boolean }} context
   */
  constructor(conversation, { branches = null, me = null, failed = () => {}, mayCopy = true } = {}) {
    super();
    this.#conversation = conversation;
    this.#around = { conversation, branches, me, failed, mayCopy };
    this.append(this.#earlier, this.#empty, this.#list, this.#waiting);
    this.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.#atEnd && soon(this.#draw)).observe(this.#list);
  }

  connectedCallback() {
    this.className = "messages";
    this.#stay(this.#atEnd);
    this.tabIndex = 0;
    this.setAttribute("role", "region");
    this.setAttribute("aria-label", t("Messages of {session}", { session: this.#conversation.id }));
    this.#unwatch = [this.#conversation.watch(() => soon(this.#draw))];
    if (this.#around.branches) this.#unwatch.push(this.#around.branches.watch(() => soon(this.#draw)));
    soon(this.#draw);
  }

  disconnectedCallback() {
    for (const end of this.#unwatch) end();
    never(this.#draw);
  }

  /** For views that have no elements of their own. */
  get element() {
    return this;
  }

  close() {
    this.remove();
  }

  /** Go to the newest message, and stay there. */
  follow() {
    this.#stay(true);
    soon(this.#draw);
  }

  /** Let the user write the last message anew. */
  editLast() {
    this.#drawn.findLast(({ item }) => item.message.role === "user")?.edit();
  }

  /** Go to a message, and mark it. @param {number} index */
  async go(index) {
    if (index < this.#start) {
      this.#expanded = true;
      await this.#conversation.recall();
      this.#redraw(beginning(this.#conversation.messages, this.#conversation.messages.length - index + 20));
    }
    const found = this.#drawn.find(({ item }) => item.index <= index && index < item.end);
    if (!found) return;
    this.#stay(false);
    found.element.scrollIntoView({ block: "center" });
    found.element.classList.add("sought");
  }

  /** Only the reader leaves the end, by scrolling up: what is rendered later makes the list longer, too. */
  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this;
    if (scrollHeight - scrollTop - clientHeight < AT_END) this.#stay(true);
    else if (scrollTop < this.#top) this.#stay(false);
    this.#top = scrollTop;
  }

  /** @param {boolean} atEnd whether to stay at the end while messages come */
  #stay(atEnd) {
    this.#atEnd = atEnd;
    mark(this, "data-end", atEnd ? "" : null);
  }

  async #more() {
    this.#expanded = true;
    this.#stay(false);
    const before = this.scrollHeight - this.scrollTop;
    await this.#conversation.recall();
    this.#redraw(beginning(this.#conversation.messages, this.#conversation.messages.length - this.#start + SHOWN));
    this.scrollTop = this.scrollHeight - before;
  }

  /** @param {number} start */
  #redraw(start) {
    for (const { element } of this.#drawn) this.#remove(element);
    this.#drawn = [];
    this.#start = start;
    this.#seen = "";
    this.#update();
  }

  /** @param {IntersectionObserverEntry[]} entries */
  #approach(entries) {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      this.#views.get(target)?.near();
      this.#near.unobserve(target);
    }
  }

  #update() {
    const { messages } = this.#conversation;
    const start = Math.max(beginning(messages, SHOWN), this.#conversation.remembered);
    const tooMany = this.#atEnd && !this.#expanded && messages.length - this.#start > MOST;
    if (messages.length < this.#start || tooMany || (!this.#expanded && !this.#drawn.length && start)) {
      this.#expanded = false;
      if (start !== this.#start) {
        this.#redraw(start);
        return;
      }
    }
    if (this.#atEnd && !this.#expanded) this.#drop(this.#conversation.remembered);
    this.#drawMessages();
    this.#drawPartial(this.#conversation.partial);
    this.#drawWaiting();
    mark(this, "aria-busy", this.#conversation.busy ? "true" : null);
    this.#earlier.hidden = this.#start === 0;
    say(this.#earlier, t("Show earlier messages ({n})", { n: this.#start }));
    this.#empty.hidden = !this.#conversation.loaded || messages.length > 0 || this.#conversation.busy;
    if (this.#atEnd) afterwards(this.#settle);
  }

  /** Take messages away that the conversation has forgotten: they are far above the window. @param {number} before */
  #drop(before) {
    while (this.#drawn.length > 1 && this.#drawn[0].item.end <= before) {
      const { element, item } = /** @type {MessageView} */ (this.#drawn.shift());
      this.#remove(element);
      this.#start = item.end;
      this.#seen = "";
    }
  }

  #drawMessages() {
    const { busy, revision, settings } = this.#conversation;
    const forks = this.#around.branches?.forks() ?? new Map();
    const seen = JSON.stringify([revision, busy, this.#start, settings?.driver, [...forks]]);
    if (seen === this.#seen) return;
    this.#seen = seen;
    const items = itemsOf(this.#conversation.messages, this.#start);
    while (this.#drawn.length > items.length) this.#remove(this.#drawn.pop()?.element);
    items.forEach((item, at) => {
      const next = items[at + 1];
      const old = this.#drawn[at];
      let view = old;
      if (!old || !isSame(old.item, item)) {
        view = new MessageView(item, this.#around, this.#grown(item, at === items.length - 1));
        this.#views.set(view.element, view);
        if (old) {
          this.#remove(old.element, view.element);
        } else this.#list.insertBefore(view.element, this.#partial?.element ?? null);
        this.#near.observe(view.element);
        this.#drawn[at] = view;
      }
      let fork = null;
      for (let index = item.index; index < item.end && fork === null; index++) fork = forks.get(index) ?? null;
      view.show(item, { last: next === undefined ? !busy || item.message.role === "user" : next.first, fork,
        busy: busy && next === undefined });
    });
  }

  /** @param {Element | undefined} element @param {Element} [other] what takes its place */
  #remove(element, other) {
    if (!element) return;
    this.#near.unobserve(element);
    if (other) element.replaceWith(other);
    else element.remove();
  }

  /** The text that has grown into a message: it stays where it stands. @param {import("./items.js").Item} item @param {boolean} isLast */
  #grown({ message }, isLast) {
    if (!isLast || message.role !== "assistant" || this.#partial === null || message.content === "") return null;
    const { text } = this.#partial;
    if (text.text.trim() === "" || !message.content.startsWith(text.text.trim())) return null;
    this.#partial.element.remove();
    this.#partial = null;
    return text;
  }

  /** @param {any} partial */
  #drawPartial(partial) {
    if (partial === null || this.#partial?.turn !== partial.turn) {
      this.#partial?.element.remove();
      this.#partial = null;
    }
    if (partial === null) return;
    if (this.#partial === null) {
      this.#partial = new GrowingView(partial.turn, this.#conversation.markup);
      this.#views.set(this.#partial.element, this.#partial);
      this.#list.append(this.#partial.element);
      this.#near.observe(this.#partial.element);
    }
    this.#partial.show(partial, this.#conversation.speed);
  }

  #drawWaiting() {
    const { queue, queued } = this.#conversation;
    const texts = queue.slice(0, queued).map((message) => message.content);
    const key = texts.join("\0");
    if (key === this.#queued) return;
    this.#queued = key;
    this.#waiting.replaceChildren(...texts.map(waitingView));
  }
}
customElements.define("cfs-messages", MessageList);

/** Whether an item shows the same message, perhaps with fewer results. */
function isSame(/** @type {import("./items.js").Item} */ old, /** @type {import("./items.js").Item} */ item) {
  if (old.index !== item.index) return false;
  return old.message === item.message || JSON.stringify(old.message) === JSON.stringify(item.message);
}
