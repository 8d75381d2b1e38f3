// The first screen: write, and a session begins. It names the model, and what one can ask it.

import { el, say } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./text.js";

/** The view that stands where no session is open. */
export class CfsHome extends HTMLElement {
  #app;
  #api;
  #model;
  #field = el("textarea", { rows: 3, "aria-label": t("Message"), placeholder: t("Ask anything. A new session begins."),
    onkeydown: (event) => this.#key(event) });
  #send = el("button", { type: "submit", className: "button primary send" }, icon("send"), t("Send"));
  #complaint = el("p", { className: "complaint", role: "alert" });

  /** @param {{ app: any, api: any, model: any }} context */
  constructor({ app, api, model }) {
    super();
    this.#app = app;
    this.#api = api;
    this.#model = model;
  }

  connectedCallback() {
    if (this.childElementCount) return;
    this.className = "home";
    const back = el("button", { type: "button", className: "button back", onclick: () => this.#app.go(null) },
      icon("back"), t("Sessions"));
    this.append(
      el("header", {}, el("div", {}, back), el("h1", {}, t("What shall we work on?")), this.#about()),
      el("form", { onsubmit: (event) => this.#submit(event) }, this.#field,
        el("div", {}, this.#complaint, this.#send)),
      el("ul", { className: "examples", "aria-label": t("Examples") },
        ...examples(this.#model).map((text) => el("li", {}, el("button", { type: "button", className: "button",
          onclick: () => this.#try(text) }, text)))),
      this.#shell(),
    );
    if (matchMedia("(pointer: fine)").matches) this.#field.focus();
  }

  #about() {
    const model = this.#model;
    const line = el("p", { className: "model" });
    if (!model) return line;
    line.append(t("Model:"), el("b", {}, model.name));
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

  #try(text) {
    this.#field.value = text;
    this.#field.focus();
  }

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.querySelector("form")?.requestSubmit();
  }

  async #submit(event) {
    event.preventDefault();
    const text = this.#field.value;
    if (text.trim() === "" || this.#send.disabled) return;
    this.#send.disabled = true;
    say(this.#complaint, "");
    try {
      const { id } = await this.#api.create("");
      await this.#api.say(id, text);
      this.#app.go(id, "conversation");
    } catch (error) {
      say(this.#complaint, error.message);
    } finally {
      this.#send.disabled = false;
    }
  }
}
customElements.define("cfs-home", CfsHome);

/** What one can ask: of the embedded model only what it can do. */
function examples(model) {
  if (model?.embedded !== false) {
    return [t("My name is Alice. What can you do?"), t("Tell me a joke."), t("What is 17 + 25?"),
      t("Hello! My favourite colour is green.")];
  }
  return [t("Explain what a Merkle tree is, with an example."), t("Write a Python function that merges two sorted lists."),
    t("Compare REST and gRPC in a table."), t("Draft a polite reply that declines a meeting.")];
}
