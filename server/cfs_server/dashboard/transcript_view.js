// The raw transcript: the text that a file of this session holds. It can be edited and put back.

import { button, el, say } from "./dom.js";

/** A text field with the transcript as it was read last. */
export class TranscriptView {
  #context;
  #etag = null;
  #text = el("textarea", { className: "raw", "aria-label": "Transcript", spellcheck: false });
  #told = el("p", { className: "complaint", role: "status" });

  constructor(context) {
    this.#context = context;
    this.element = el(
      "div",
      { className: "transcript" },
      this.#text,
      el("div", { className: "answers" }, this.#told, button("Reload", () => this.#read()),
        button("Save transcript", () => this.#save(), { className: "button primary" })),
    );
    this.#read();
  }

  close() {}

  async #read() {
    try {
      const { text, etag } = await this.#context.api.transcript(this.#context.id);
      this.#text.value = text;
      this.#etag = etag;
      say(this.#told, "");
    } catch (error) {
      say(this.#told, error.message);
    }
  }

  async #save() {
    try {
      await this.#context.api.replace(this.#context.id, this.#text.value, this.#etag);
      await this.#read();
      say(this.#told, "Saved. The session now has this transcript.");
    } catch (error) {
      say(this.#told, error.status === 412 ? "The session has changed since you loaded it. Reload it first." : error.message);
    }
  }
}
