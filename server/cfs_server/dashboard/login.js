// Asking for a token. It is kept for this tab only, and goes when the tab is closed.

import { el } from "./dom.js";
import { t } from "./text.js";

/** A form for a token. */
export class Login extends HTMLElement {
  #field = el("input", {
    id: "token", type: "password", autocomplete: "current-password", spellcheck: false, required: true,
  });
  #complaint;
  #onToken;

  /** @param {string} complaint @param {(token: string) => void} onToken */
  constructor(complaint, onToken) {
    super();
    this.#complaint = complaint;
    this.#onToken = onToken;
  }

  connectedCallback() {
    const onsubmit = (event) => {
      event.preventDefault();
      const token = this.#field.value.trim();
      if (token !== "") this.#onToken(token);
    };
    this.replaceChildren(el("main", { className: "login" },
      el("img", { src: "dashboard/icon.svg", alt: "" }),
      el("h1", {}, "CFS"),
      el("p", {}, t("This server requires an access token. It was printed when the token was created with:"), " ",
        el("code", {}, "cfs token create")),
      el(
        "form",
        { onsubmit },
        el("label", { htmlFor: "token" }, t("Token")),
        this.#field,
        el("p", { className: "complaint", role: "alert" }, this.#complaint),
        el("button", { type: "submit", className: "button primary" }, t("Log in")),
      ),
    ));
    this.#field.focus();
  }
}
customElements.define("cfs-login", Login);
