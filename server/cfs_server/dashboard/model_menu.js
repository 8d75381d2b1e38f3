// The menu beside Send in which one chooses the model that answers. Where there is only one it is not shown.

import { el, mark, say } from "./dom.js";
import { LIVE } from "./live.js";
import { menuButton } from "./menu.js";
import { t } from "./text.js";

/** The models of a server, the default first; `onChoose` gets the chosen one's name, null for the default. */
export class ModelMenu extends HTMLElement {
  #api;
  #onChoose;
  /** @type {string[]} */
  #names = [];
  /** @type {string | null} */
  #chosen = null;
  #offered = true;
  #label = el("span", {});
  #button = menuButton({ label: t("Model"), className: "button model-menu", content: [this.#label], items: () => this.#items() });
  #onLive = () => this.#read();

  /** @param {import("./api.js").Api} api @param {(model: string | null) => void} onChoose */
  constructor(api, onChoose) {
    super();
    this.#api = api;
    this.#onChoose = onChoose;
  }

  connectedCallback() {
    this.append(this.#button);
    addEventListener(LIVE, this.#onLive);
    this.#draw();
    this.#read();
  }

  disconnectedCallback() {
    removeEventListener(LIVE, this.#onLive);
  }

  /** @param {string | null} chosen @param {boolean} offered whether a model answers, and the caller may choose it */
  show(chosen, offered = true) {
    this.#chosen = chosen;
    this.#offered = offered;
    this.#draw();
  }

  async #read() {
    try {
      const { data } = await this.#api.json("/v1/models");
      this.#names = data.map((/** @type {{ id: string }} */ { id }) => id);
      this.#draw();
    } catch {
      // it is read again when the connection is back
    }
  }

  #draw() {
    const name = this.#chosen ?? this.#names[0] ?? "";
    this.hidden = !this.#offered || this.#names.length < 2;
    say(this.#label, name);
    mark(this.#button, "aria-label", t("Model: {name}", { name }));
  }

  #items() {
    return this.#names.map((name, index) => ({
      label: index === 0 ? t("{name} (default)", { name }) : name,
      checked: name === (this.#chosen ?? this.#names[0]),
      run: () => this.#onChoose(index === 0 ? null : name),
    }));
  }
}
customElements.define("cfs-model-menu", ModelMenu);
