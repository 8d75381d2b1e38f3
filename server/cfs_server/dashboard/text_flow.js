// Texts that grow in place: plain ones, and ones in markdown, of which what stands is not rendered again.

import { el } from "./dom.js";
import { insert, LONGEST } from "./markup.js";

const BLOCK = 1200;
const EVERY = 300; // milliseconds between two renderings of a text that grows
const REST = 4; // how many times as long as the last rendering took, at least

/** A plain text in blocks of some lines; only the last block changes. */
export class TextFlow {
  #shown = "";
  /** @type {Text | null} the text node that grows */
  #last = null;
  #length = 0;

  constructor(text = "", className = "text") {
    this.element = el("div", { className });
    this.show(text);
  }

  /** Show a text; where it begins with what is shown already only the rest is added. @param {string} text */
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

  /** @param {string} text */
  #add(text) {
    let rest = text;
    while (rest !== "") {
      if (this.#last === null) this.#begin();
      const cut = this.#cut(rest);
      const piece = cut < 0 ? rest : rest.slice(0, cut);
      this.#last?.appendData(piece);
      this.#length += piece.length;
      rest = cut < 0 ? "" : rest.slice(cut + 1);
      if (cut >= 0) this.#last = null; // a new block stands for the line break
    }
  }

  /** Where a block that is long enough ends: at a line break, or nowhere yet. @param {string} text */
  #cut(text) {
    return text.indexOf("\n", Math.max(0, BLOCK - this.#length));
  }

  #begin() {
    this.#last = document.createTextNode("");
    this.#length = 0;
    this.element.append(el("div", { className: "block" }, this.#last));
  }
}

/**
 * A text in markdown. It is plain at first, and rendered once it is `near`. While it grows, new words stand at its end
 * as they come; every 300 ms the part after the last settled block is rendered again, and the whole once at its end.
 */
export class RichText {
  #markup;
  #text = "";
  #near = false;
  #growing = true;
  #settled = 0; // so much of the text stands in finished blocks
  #rendered = 0; // so much is markup
  /** @type {HTMLElement | null} what is rendered again and again */
  #tail = null;
  /** @type {Text | null} what has come since */
  #pending = null;
  /** @type {TextFlow | null} the text as long as none of it is markup */
  #plain = null;
  #life = 0;
  #asked = false;
  #next = 0; // when it may be rendered again
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /** @param {import("./markup.js").Markup} markup */
  constructor(markup) {
    this.#markup = markup;
    this.element = el("div", { className: "text" });
  }

  get text() {
    return this.#text;
  }

  /** Show a text that may grow. @param {string} text */
  show(text) {
    if (text === this.#text) return;
    if (!text.startsWith(this.#text)) this.#reset();
    const more = text.slice(this.#text.length);
    this.#text = text;
    if (this.#tail === null) this.#showPlain();
    else this.#wait(more);
    if (this.#near) this.#soon();
  }

  /** Show a text that does not grow any more. @param {string} text */
  end(text) {
    this.show(text);
    this.#growing = false;
    clearTimeout(this.#timer);
    if (this.#near) this.#finish();
  }

  /** Render it from now on: it is in sight, or soon will be. */
  near() {
    if (this.#near) return;
    this.#near = true;
    if (this.#growing) this.#soon();
    else this.#finish();
  }

  #reset() {
    this.#life += 1;
    this.#text = "";
    this.#settled = this.#rendered = 0;
    this.#tail = this.#pending = this.#plain = null;
    this.#asked = false;
    this.element.replaceChildren();
  }

  #showPlain() {
    if (this.#plain === null) {
      this.#plain = new TextFlow("", "plain");
      this.element.append(this.#plain.element);
    }
    this.#plain.show(this.#text);
  }

  #soon() {
    if (this.#asked || !this.#growing || this.#text === "" || this.#text.length > LONGEST) return;
    this.#asked = true;
    this.#timer = setTimeout(() => this.#render(), Math.max(0, this.#next - performance.now()));
  }

  async #render() {
    const life = this.#life;
    const text = this.#text;
    const began = performance.now();
    const from = this.#settled;
    const cut = settledAt(text, from);
    const [block, tail] = await Promise.all([
      cut > from ? this.#markup.html(text.slice(from, cut), "markdown") : null,
      this.#markup.html(text.slice(cut), "markdown"),
    ]);
    if (life !== this.#life) return;
    const now = performance.now();
    this.#next = now + Math.max(EVERY, REST * (now - began));
    this.#asked = false;
    if (!this.#growing || tail === null || (cut > from && block === null)) return;
    this.#begin();
    if (block !== null) {
      const finished = el("div", { className: "settled" });
      insert(finished, block);
      this.#tail?.before(finished);
    }
    this.#settled = cut;
    this.#rendered = text.length;
    if (this.#tail) insert(this.#tail, tail);
    this.#pending = null;
    this.#wait(this.#text.slice(text.length));
    if (this.#text.length > text.length) this.#soon();
  }

  #begin() {
    if (this.#tail !== null) return;
    this.#plain = null;
    this.#tail = el("div", { className: "tail" });
    this.element.replaceChildren(this.#tail);
  }

  /** Add words that are not rendered yet where they will stand, as far as that can be known. @param {string} more */
  #wait(more) {
    if (more === "" || this.#tail === null) return;
    if (this.#pending === null) {
      this.#pending = document.createTextNode("");
      const goesOn = isInCode(this.#text.slice(this.#settled, this.#rendered)) || this.#text[this.#rendered - 1] !== "\n";
      const place = goesOn ? lastBlock(this.#tail) : this.#tail;
      place.append(el("span", { className: "pending" }, this.#pending));
      // A space at the end is no part of the markup, but stands before the next word.
      const [space] = /[ \t]*$/.exec(this.#text.slice(0, this.#rendered)) ?? [""];
      if (goesOn && !place.textContent?.endsWith(space)) this.#pending.appendData(space);
    }
    this.#pending.appendData(more);
  }

  async #finish() {
    const life = this.#life;
    const text = this.#text;
    if (text.trim() === "") return;
    const whole = await this.#markup.html(text, "markdown", true);
    if (whole === null || life !== this.#life || text !== this.#text) return;
    if (this.#tail !== null && this.#settled === 0 && this.#rendered === text.length) return; // it stands there
    this.#plain = this.#tail = this.#pending = null;
    insert(this.element, whole);
  }
}

const DEEPER = new Set(["P", "UL", "OL", "LI", "BLOCKQUOTE", "DIV", "PRE", "CODE", "H1", "H2", "H3", "H4", "H5", "H6"]);

/** The block in which a text ends. @param {Element} element */
function lastBlock(element) {
  let found = element;
  for (;;) {
    const last = found.lastElementChild;
    if (last === null || !DEEPER.has(last.tagName)) return found;
    if (last.nextSibling?.nodeType === Node.TEXT_NODE && last.nextSibling.textContent?.trim()) return found;
    found = last;
  }
}

const FENCE = /^ {0,3}(?:[-*+] +|\d{1,9}[.)] +)?(`{3,}(?=[^`]*$)|~{3,})/;
const BLANK = /^[ \t]*$/;
const CONTINUES = /^(?:[ \t]|[-*+](?:[ \t]|$)|\d{1,9}(?:[.)](?:[ \t]|$)|$)|[-*+=]+$)/;

/**
 * Where the part of a text in markdown ends whose markup cannot change any more, whatever follows: at the last line
 * that begins a block of its own, after a blank line, outside of code and lists.
 * @param {string} text
 * @param {number} from where the settled part ended before
 */
export function settledAt(text, from = 0) {
  let settled = from;
  let fence = "";
  let blank = false;
  for (let start = from; start < text.length; ) {
    const end = text.indexOf("\n", start);
    const line = text.slice(start, end < 0 ? text.length : end);
    if (fence !== "") {
      if (closes(line, fence)) fence = "";
      blank = false;
    } else if (BLANK.test(line)) {
      blank = true;
    } else {
      if (blank && start > settled && !CONTINUES.test(line)) settled = start;
      fence = FENCE.exec(line)?.[1] ?? "";
      blank = false;
    }
    if (end < 0) break;
    start = end + 1;
  }
  return settled;
}

/** Whether a text in markdown ends within a block of code. @param {string} text */
export function isInCode(text) {
  let fence = "";
  for (const line of text.split("\n")) {
    if (fence !== "") fence = closes(line, fence) ? "" : fence;
    else fence = FENCE.exec(line)?.[1] ?? "";
  }
  return fence !== "";
}

/** @param {string} line @param {string} fence */
function closes(line, fence) {
  const found = line.trim();
  return found.length >= fence.length && found === fence[0].repeat(found.length);
}
