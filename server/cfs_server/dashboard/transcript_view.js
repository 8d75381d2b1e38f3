// The raw transcript: the text that a file of this session holds. It can be edited and put back.

import { button, el, say } from "./dom.js";
import { LIVE } from "./live.js";
import { t } from "./text.js";

/** A text field with the transcript as it was read last. */
export class TranscriptView {
  #context;
  #etag = null;
  #onLive = () => this.#etag === null && this.#read(); // it could not be read without a connection
  #text = el("textarea", { className: "raw", "aria-label": t("Transcript"), spellcheck: false });
  #told = el("p", { className: "complaint", role: "status" });

  constructor(context) {
    this.#context = context;
    const mayReplace = context.app.rights.mayReplace(context.id);
    this.#text.readOnly = !mayReplace;
    this.element = el(
      "div",
      { className: "transcript" },
      this.#text,
      el("div", { className: "answers" }, this.#told, button(t("Reload"), () => this.#read()),
        mayReplace ? button(t("Save transcript"), () => this.#save(), { className: "button primary" }) : null),
    );
    addEventListener(LIVE, this.#onLive);
    this.#read();
  }

  close() {
    removeEventListener(LIVE, this.#onLive);
  }

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
      say(this.#told, t("Saved. The session now has this transcript."));
    } catch (error) {
      say(this.#told, error.status === 412 ? t("The session has changed since you loaded it. Reload it first.") : error.message);
    }
  }
}
