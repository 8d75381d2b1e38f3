// The messages of one session, and a field to write to it.

import { el, say } from "./dom.js";
import { never, soon } from "./frame.js";
import { MessageList } from "./message_list.js";

/** The view in which one talks. Writing to a working agent steers it at its next step. */
export class ConversationView {
  #context;
  #list;
  #field = el("textarea", { rows: 2, "aria-label": "Message", placeholder: "Message" });
  #send = el("button", { type: "submit", className: "button primary" }, "Send");
  #complaint = el("p", { className: "complaint", role: "alert" });
  #form = el("form", { className: "composer", onsubmit: (event) => this.#submit(event) },
    this.#field, this.#send, this.#complaint);
  #unwatch;
  #draw = () => this.#update();

  constructor(context) {
    this.#context = context;
    this.#list = new MessageList(context.conversation);
    this.#field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#form.requestSubmit();
    });
    this.element = el("div", { className: "talk" }, this.#list.element, this.#form);
    this.#unwatch = context.conversation.watch(() => soon(this.#draw));
    soon(this.#draw);
  }

  close() {
    never(this.#draw);
    this.#unwatch();
    this.#list.close();
  }

  #update() {
    const { busy, settings, gone } = this.#context.conversation;
    const steers = busy && settings?.driver === "agent";
    say(this.#send, steers ? "Steer" : "Send");
    this.#field.placeholder = steers ? "The agent reads this before its next step" : busy ? "Queued" : "Message";
    this.#field.disabled = this.#send.disabled = gone !== null;
  }

  async #submit(event) {
    event.preventDefault();
    const text = this.#field.value;
    if (text.trim() === "" || this.#send.disabled) return;
    this.#field.value = "";
    say(this.#complaint, "");
    this.#list.follow();
    try {
      await this.#context.api.say(this.#context.id, text);
    } catch (error) {
      if (this.#field.value === "") this.#field.value = text; // nothing that was written is lost
      say(this.#complaint, error.message);
    }
  }
}
