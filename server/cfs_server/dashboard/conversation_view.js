// The view in which one talks to a session: its messages, and the field to write to it.

import { Branches } from "./branches.js";
import { Composer } from "./composer.js";
import { el } from "./dom.js";
import { icon } from "./icons.js";
import { never, soon } from "./frame.js";
import { modelOf } from "./items.js";
import { MessageList } from "./message_list.js";
import { ContextRing } from "./meters.js";
import { ModelMenu } from "./model_menu.js";
import { Questions } from "./questions.js";
import { t } from "./text.js";

/** Writing to a working agent steers it at its next step. */
export class ConversationView extends HTMLElement {
  #context;
  #list;
  #composer;
  #questions;
  #ring = new ContextRing();
  #models;
  #down = el("button", { type: "button", className: "icon-button to-end", title: t("To the newest message"),
    "aria-label": t("To the newest message"), onclick: () => this.#list.follow() }, icon("down"));
  /** @type {(() => void)[]} */
  #unwatch = [];
  #draw = () => this.#update();

  /** @param {any} context */
  constructor(context) {
    super();
    const { api, id, live, app, me, conversation } = context;
    this.#context = context;
    const branches = new Branches({ api, live, conversation, go: (other) => app.go(other, "conversation") });
    const failed = (/** @type {Error} */ error) => app.announce(error.message);
    this.#list = new MessageList(conversation, { branches, me, failed, mayCopy: app.rights.mayCopy(id) });
    this.#composer = new Composer({ api, key: id, session: () => id, onSend: (text) => this.#send(text), onStop: () => this.#stop(),
      mayUpload: app.rights.mayUpload(id) });
    this.#composer.hidden = !app.rights.mayWrite(id);
    this.#models = new ModelMenu(api, (model) => api.settings(id, { model }).catch(failed));
    this.#composer.aside.append(this.#ring, this.#models);
    this.#questions = new Questions(context, id);
    this.addEventListener("cfs-edit-last", () => this.#list.editLast());
    this.addEventListener("cfs-compose", () => this.#composer.focus());
    this.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || !conversation.busy || this.#composer.hidden) return;
      event.preventDefault();
      this.#stop();
    });
  }

  connectedCallback() {
    this.className = "talk";
    this.append(this.#list, this.#questions, el("div", { className: "composing" }, this.#down, this.#composer));
    this.#unwatch = [this.#context.conversation.watch(() => soon(this.#draw))];
    soon(this.#draw);
    const { message } = Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] ?? ""));
    if (message) this.#goTo(Number(message));
  }

  disconnectedCallback() {
    never(this.#draw);
    for (const end of this.#unwatch) end();
  }

  get element() {
    return this;
  }

  close() {
    this.remove();
  }

  /** @param {number} index */
  #goTo(index) {
    const { conversation } = this.#context;
    const go = () => {
      if (!conversation.loaded) return;
      end();
      soon(() => this.#list.go(index));
    };
    const end = conversation.watch(go);
    go();
  }

  #update() {
    const { conversation, me } = this.#context;
    const { busy, settings, gone } = conversation;
    this.#questions.show(conversation.questions);
    this.#composer.show({ busy, steers: busy && settings?.driver === "agent", gone: gone !== null });
    if (conversation.loaded) conversation.readFigures();
    this.#models.show(settings?.model ?? null, settings?.driver === "model");
    this.#ring.show(conversation.lastUsage, modelOf(me, settings)?.context);
  }

  /** @param {string} text */
  async #send(text) {
    this.#list.follow();
    await this.#context.api.say(this.#context.id, text);
  }

  async #stop() {
    try {
      await this.#context.api.cancel(this.#context.id, false);
    } catch (error) {
      this.#context.app.announce(/** @type {Error} */ (error).message);
    }
  }
}
customElements.define("cfs-conversation", ConversationView);
