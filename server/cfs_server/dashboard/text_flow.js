// A text that grows in place: what stands is never laid out again because of what comes.

import { el } from "./dom.js";

const BLOCK = 1200;

/** A text in blocks of some lines; only the last block changes. */
export class TextFlow {
  #shown = "";
  #last = null; // the text node that grows
  #length = 0;

  constructor(text = "", className = "text") {
    this.element = el("div", { className });
    this.show(text);
  }

  /** Show a text; where it begins with what is shown already only the rest is added. */
  show(text) {
    if (text === this.#shown) return;
    if (text.startsWith(this.#shown)) this.#add(text.slice(this.#shown.length));
    else {
      this.element.replaceChildren();
      this.#last = null;
      this.#add(text);
    }
    this.#shown = text;
  }

  #add(text) {
    let rest = text;
    while (rest !== "") {
      if (this.#last === null) this.#begin();
      const cut = this.#cut(rest);
      const piece = cut < 0 ? rest : rest.slice(0, cut);
      this.#last.appendData(piece);
      this.#length += piece.length;
      rest = cut < 0 ? "" : rest.slice(cut + 1);
      if (cut >= 0) this.#last = null; // a new block stands for the line break
    }
  }

  /** Where a block that is long enough ends: at a line break, or nowhere yet. */
  #cut(text) {
    return text.indexOf("\n", Math.max(0, BLOCK - this.#length));
  }

  #begin() {
    this.#last = document.createTextNode("");
    this.#length = 0;
    this.element.append(el("div", { className: "block" }, this.#last));
  }
}
