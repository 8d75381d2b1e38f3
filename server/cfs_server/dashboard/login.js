// Asking for a token. It is kept for this tab only, and goes when the tab is closed.

import { el } from "./dom.js";

/** A form for a token. */
export class Login {
  #field = el("input", {
    id: "token", type: "password", autocomplete: "current-password", spellcheck: false, required: true,
  });

  constructor(complaint, onToken) {
    const onsubmit = (event) => {
      event.preventDefault();
      const token = this.#field.value.trim();
      if (token !== "") onToken(token);
    };
    this.element = el(
      "main",
      { className: "login" },
      el("h1", {}, "CFS"),
      el("p", {}, "This server requires an access token. It was printed when the token was created with: ", el("code", {}, "cfs token create"), "."),
      el(
        "form",
        { onsubmit },
        el("label", { htmlFor: "token" }, "Token"),
        this.#field,
        el("p", { className: "complaint", role: "alert" }, complaint),
        el("button", { type: "submit", className: "button primary" }, "Log in"),
      ),
    );
  }

  focus() {
    this.#field.focus();
  }

  close() {}
}
