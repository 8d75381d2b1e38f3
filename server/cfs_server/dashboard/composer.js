// The field in which one writes to a session: it grows with the text, keeps a draft, and takes files.

import { Problem, UNREACHABLE } from "./api.js";
import { Attachments, withFiles } from "./attachments.js";
import { el, mark, say } from "./dom.js";
import { icon } from "./icons.js";
import { LIVE } from "./live.js";
import { t } from "./text.js";

const DRAFT = "cfs.draft.";

/**
 * A form with a message. `onSend` gets the text and returns when it is stored; the draft is kept until then.
 */
export class Composer extends HTMLElement {
  #api;
  #session;
  #onSend;
  #onStop;
  #key;
  #busy = false;
  #sending = false;
  #gone = false;
  #unreachable = false; // the complaint is that there was no answer
  #onLive = () => this.#unreachable && say(this.#complaint, "");
  #files;
  #field = el("textarea", { rows: 1, "aria-label": t("Message"), enterKeyHint: "send" });
  #send = el("button", { type: "submit", className: "icon-button primary send", "aria-label": t("Send"), title: t("Send") }, icon("send"));
  #stop = el("button", { type: "button", className: "icon-button stop", hidden: true, "aria-label": t("Stop"),
    title: `${t("Stop")} (Esc)`, onclick: () => this.#onStop() }, icon("stop"));
  #complaint = el("p", { className: "complaint", role: "alert" });
  #hint = el("span", { className: "quiet hint" });
  #form = el("form", { className: "composer", onsubmit: (event) => this.#submit(event) });
  /** What stands beside the buttons. */
  aside = el("span", { className: "aside" });

  /**
   * @param {{ api: import("./api.js").Api, session: () => string | Promise<string>, key: string,
   *   onSend: (text: string) => Promise<unknown>, onStop?: () => void, placeholder?: string, mayUpload?: boolean
   * }} context `key` names the draft
   */
  constructor({ api, session, key, onSend, onStop = () => {}, placeholder = t("Message"), mayUpload = true }) {
    super();
    this.#field.placeholder = placeholder;
    this.#api = api;
    this.#session = session;
    this.#key = DRAFT + key;
    this.#onSend = onSend;
    this.#onStop = onStop;
    this.#files = new Attachments(this.#api, this.#session, () => this.#drawn());
    this.#form.append(this.#files.element, this.#field, el("div", { className: "composer-foot" }, this.#files.button,
      this.#hint, el("span", { className: "space" }), this.aside, this.#stop, this.#send), this.#complaint);
    this.#files.button.hidden = !mayUpload;
    if (mayUpload) this.#files.listen(this.#form);
    this.#field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#form.requestSubmit();
    });
    this.#field.addEventListener("input", () => this.#written());
  }

  connectedCallback() {
    this.append(this.#form);
    addEventListener(LIVE, this.#onLive);
    const draft = sessionStorage.getItem(this.#key);
    if (draft !== null && this.#field.value === "") this.#field.value = draft;
    this.#fit();
    this.#drawn();
  }

  disconnectedCallback() {
    removeEventListener(LIVE, this.#onLive);
  }

  focus() {
    this.#field.focus();
  }

  /** Put a text into the field, to be changed and sent. @param {string} text */
  write(text) {
    this.#field.value = text;
    this.#written();
    this.#field.focus();
  }

  /** @param {{ busy: boolean, steers: boolean, gone: boolean }} state of the session */
  show({ busy, steers, gone }) {
    this.#busy = busy;
    this.#gone = gone;
    const label = steers ? t("Steer") : t("Send");
    mark(this.#send, "aria-label", label);
    this.#send.title = label;
    this.#field.placeholder = steers ? t("The agent reads this before its next step")
      : busy ? t("The model reads this after its current reply") : t("Message");
    this.#drawn();
  }

  #drawn() {
    this.#field.disabled = this.#gone;
    this.#files.button.disabled = this.#gone;
    this.#send.disabled = this.#gone || this.#sending || this.#files.sending || this.#text.trim() === "";
    this.#stop.hidden = !this.#busy;
    say(this.#hint, this.#files.sending ? t("Uploading files") : "");
  }

  /** What would be sent. */
  get #text() {
    return withFiles(this.#field.value, this.#files.names);
  }

  #written() {
    say(this.#complaint, ""); // it was about another text
    if (this.#field.value === "") sessionStorage.removeItem(this.#key);
    else sessionStorage.setItem(this.#key, this.#field.value);
    this.#fit();
    this.#drawn();
  }

  /** As high as the text; browsers with `field-sizing` do it themselves. */
  #fit() {
    if (CSS.supports("field-sizing", "content")) return;
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`;
  }

  /** @param {SubmitEvent} event */
  async #submit(event) {
    event.preventDefault();
    const text = this.#text;
    if (this.#send.disabled) return;
    const written = this.#field.value;
    this.#sending = true;
    this.#field.value = "";
    this.#fit();
    this.#drawn();
    say(this.#complaint, "");
    try {
      await this.#onSend(text);
      if (this.#field.value === "") sessionStorage.removeItem(this.#key);
      this.#files.clear();
    } catch (error) {
      if (this.#field.value === "") this.#field.value = written; // nothing that was written is lost
      this.#fit();
      this.#unreachable = error instanceof Problem && error.status === UNREACHABLE;
      say(this.#complaint, /** @type {Error} */ (error).message);
    } finally {
      this.#sending = false;
      this.#drawn();
    }
  }
}
customElements.define("cfs-composer", Composer);
