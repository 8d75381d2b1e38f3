// The first screen: write, and a session begins. It names the model, and what one can ask it.

import { Composer } from "./composer.js";
import { el } from "./dom.js";
import { icon } from "./icons.js";
import { ModelMenu } from "./model_menu.js";
import { t } from "./text.js";

/** The view that stands where no session is open. */
export class CfsHome extends HTMLElement {
  #app;
  #api;
  #model;
  /** @type {any[]} the models that answer where a session says so */
  #others;
  #composer;
  /** @type {string | null} the model that is to answer, if it is not the default */
  #chosen = null;
  /** @type {Promise<{ id: string }> | null} the session that begins here: made for the first file or the message */
  #made = null;

  /** @param {{ app: any, api: import("./api.js").Api, me: any }} context */
  constructor({ app, api, me }) {
    super();
    this.#app = app;
    this.#api = api;
    this.#model = me.model;
    this.#others = (me.models ?? []).slice(1);
    this.#composer = new Composer({ api, key: "new", placeholder: t("Ask anything. A new session begins."),
      session: () => this.#session(), onSend: (text) => this.#begin(text) });
    const models = new ModelMenu(api, (model) => {
      this.#chosen = model;
      models.show(model);
    });
    this.#composer.aside.append(models);
  }

  connectedCallback() {
    if (this.childElementCount) return;
    this.className = "home";
    this.append(
      el("header", {}, el("div", {}, el("button", { type: "button", className: "button back",
        onclick: () => this.#app.go(null) }, icon("back"), t("Sessions"))),
      el("h1", {}, t("What shall we work on?")), this.#about()),
      ...(this.#app.rights.mayCreate ? [this.#composer, el("ul", { className: "examples", "aria-label": t("Examples") },
        ...examples(this.#model).map((text) => el("li", {}, el("button", { type: "button", className: "button",
          onclick: () => this.#composer.write(text) }, text))))]
        : [el("p", { className: "quiet" }, t("Your token may create no sessions here. Choose one of the list."))]),
      this.#shell(),
    );
    if (matchMedia("(pointer: fine)").matches) this.#composer.focus();
  }

  /** @returns {Promise<string>} */
  async #session() {
    this.#made ??= this.#api.create("");
    try {
      return (await this.#made).id;
    } catch (error) {
      this.#made = null;
      throw error;
    }
  }

  async #begin(text) {
    const id = await this.#session();
    if (this.#chosen !== null) await this.#api.settings(id, { model: this.#chosen });
    await this.#api.say(id, text);
    this.#app.go(id, "conversation");
  }

  #about() {
    const model = this.#model;
    const line = el("p", { className: "model" });
    if (!model) return line;
    line.append(t("Model:"), el("b", {}, model.name));
    if (this.#others.length > 0) line.append(t("and also"), el("b", {}, this.#others.map((other) => other.name).join(", ")));
    if (model.embedded) {
      line.append(t("A toy of a few megabytes, so that everything works at once. For real answers:"),
        el("code", {}, "cfs serve --model smollm2"));
    }
    return line;
  }

  #shell() {
    const url = location.origin;
    return el("section", { className: "card shell", "aria-label": t("From your shell") },
      el("h2", {}, t("The same sessions, from your shell")),
      el("pre", { tabIndex: 0 }, [
        `curl -d 'Hello' '${url}/v1/sessions/chat1/messages?wait=true'`,
        `cfs chat chat1`,
        `cfs mount ~/cfs --background && echo 'Hello' >> ~/cfs/chat1 && cat ~/cfs/chat1`,
      ].join("\n")));
  }
}
customElements.define("cfs-home", CfsHome);

/** What one can ask: of the embedded model only what it can do. */
function examples(model) {
  if (model?.embedded !== false) {
    return [t("My name is Alice."), t("Tell me a joke."), t("What is 7 + 8?"),
      t("Hello! My favourite colour is green.")];
  }
  return [t("Explain what a Merkle tree is, with an example."), t("Write a Python function that merges two sorted lists."),
    t("Compare REST and gRPC in a table."), t("Draft a polite reply that declines a meeting.")];
}
