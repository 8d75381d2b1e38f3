// One file: what is in it, and its versions with what changed from one to the next.

import { sidesOf } from "./changes.js";
import { agentColour } from "./colours.js";
import { counted, difference, nearby, sideBySide } from "./diff.js";
import { button, el, mark, say } from "./dom.js";
import { save } from "./export.js";
import { icon } from "./icons.js";
import { encoded, nameOf, rootOf } from "./ids.js";
import { many, t } from "./text.js";
import { clock, size } from "./times.js";

const MOST_SHOWN = 200_000; // characters
const WIDE = 800; // pixels: from there on two columns are the better way to begin with
const NARROW = 560; // less than that, and they do not fit
const MOST_LINES = 4000; // of a difference, until all are asked for
const KEPT = "cfs.diff"; // how differences are shown: "sides" or "inline"
const SIGNS = { "+": "added", "-": "removed", "…": "left-out" };

/** The right side of the files: contents or changes of the one that is chosen. */
export class FileView extends HTMLElement {
  #context;
  #path = "";
  /** @type {any} */
  #stored = null;
  /** @type {import("./changes.js").Change[]} */
  #history = [];
  #shows = "contents";
  /** The number of the one that is shown; null is the newest. @type {number | null} */
  #version = null;
  #bytes = new Uint8Array();
  #read = ""; // which file, in which version, was read
  #title = el("h2", { tabIndex: -1 });
  #about = el("p", { className: "quiet figure" });
  #choice = el("div", { className: "segments", role: "group", "aria-label": t("What is shown") });
  #layout = el("div", { className: "segments", role: "group", "aria-label": t("Layout of changes") });
  #download;
  #body = el("div", { className: "file-body", tabIndex: 0, role: "region", "aria-label": t("File") });
  #versions = el("ol", { className: "versions", "aria-label": t("Versions") });
  #back;

  constructor(context, onBack) {
    super();
    this.className = "file";
    this.#context = context;
    this.#back = el("button", { type: "button", className: "icon-button to-list", title: t("Files"), "aria-label": t("Files"),
      onclick: onBack }, icon("back"));
    this.#download = el("button", { type: "button", className: "icon-button", title: t("Download"), "aria-label": t("Download"),
      onclick: () => this.#save() }, icon("download"));
    const one = (key, words, pressed, run) => button(words, run, { className: "segment", "data-key": key, "aria-pressed": pressed });
    this.#choice.append(one("contents", t("Contents"), true, () => this.#turn("contents")),
      one("changes", t("Changes"), false, () => this.#turn("changes")));
    this.#layout.append(one("sides", t("Side by side"), false, () => this.#lay("sides")),
      one("inline", t("Inline"), false, () => this.#lay("inline")));
    this.append(el("header", {}, this.#back, el("div", { className: "named" }, this.#title, this.#about), this.#layout,
      this.#choice, this.#download),
      el("div", { className: "file-parts" }, this.#body, this.#versions));
  }

  /**
   * Show a file.
   * @param {string} path
   * @param {any} stored what the server says of it, or null where it is on another machine
   * @param {import("./changes.js").Change[]} history
   */
  show(path, stored, history) {
    if (path !== this.#path) Object.assign(this, { scrollTop: 0 });
    if (path !== this.#path) this.#version = null;
    const same = path === this.#path && stored?.version === this.#stored?.version && history.length === this.#history.length;
    this.#path = path;
    this.#stored = stored;
    this.#history = history;
    if (!history.length) this.#shows = "contents";
    this.#draw(same);
  }

  /** Put the focus where one gets back to the list. */
  focusBack() {
    this.#back.focus();
  }

  /** How changes are shown: as the reader has chosen, where there is room for it. */
  get #way() {
    const room = this.clientWidth;
    return room < NARROW ? "inline" : (localStorage.getItem(KEPT) ?? (room < WIDE ? "inline" : "sides"));
  }

  #turn(shows) {
    this.#shows = shows;
    this.#draw();
  }

  #lay(how) {
    localStorage.setItem(KEPT, how);
    this.#draw();
  }

  #draw(same = false) {
    say(this.#title, this.#path);
    const where = this.#stored ? size(this.#stored.size) : t("as the agents wrote it");
    say(this.#about, [where, many("{n} change", "{n} changes", this.#history.length)].join(" · "));
    for (const each of this.#choice.children) mark(each, "aria-pressed", each.getAttribute("data-key") === this.#shows);
    for (const each of this.#layout.children) mark(each, "aria-pressed", each.getAttribute("data-key") === this.#way);
    this.#choice.hidden = this.#history.length === 0;
    this.#layout.hidden = this.#shows !== "changes" || this.clientWidth < NARROW;
    this.#versions.hidden = this.#history.length === 0;
    this.#drawVersions();
    if (this.#shows === "changes") this.#drawChange(same);
    else this.#drawContents();
  }

  // -- versions ----------------------------------------------------------------------------------------------------

  get #chosen() {
    return this.#version ?? this.#history.length - 1;
  }

  #drawVersions() {
    const focused = this.#versions.contains(document.activeElement);
    this.#versions.replaceChildren(...this.#history.map((change, number) => this.#versionOf(change, number)).reverse());
    if (focused) this.#versions.querySelector("[aria-current]")?.focus();
  }

  #versionOf(change, number) {
    const { added, removed } = sizeOf(change);
    const made = change.before === null && change.tool === "write_file";
    const what = change.pending ? t("is being written") : made ? t("written") : t("changed");
    const choose = el("button", { type: "button", className: "version", "data-agent": agentColour(change.by),
      onclick: () => this.#choose(number) },
      el("span", { className: "together" }, el("span", { className: "dot", "aria-hidden": "true" }), el("b", {}, nameOf(change.by)),
        el("span", { className: "quiet" }, change.time === null ? "" : clock(change.time))),
      el("span", { className: "together quiet" }, what, el("span", { className: "plus figure" }, `+${added}`),
        el("span", { className: "less figure" }, `−${removed}`)));
    mark(choose, "aria-current", number === this.#chosen ? "true" : null);
    return el("li", {}, choose);
  }

  #choose(number) {
    this.#version = number === this.#history.length - 1 ? null : number;
    this.#draw();
  }

  // -- contents ----------------------------------------------------------------------------------------------------

  #drawContents() {
    const newest = this.#version === null;
    const key = JSON.stringify([this.#path, this.#stored?.version, this.#version, this.#stored ? 0 : this.#history.length]);
    if (key === this.#read) return;
    this.#read = key;
    const known = this.#history[this.#chosen]?.after ?? null;
    if (newest && this.#stored) this.#fetch(key, known);
    else {
      this.#bytes = new TextEncoder().encode(known ?? "");
      if (known === null) this.#say(t("The whole text of this version is not known. Its changes are."));
      else this.#drawText(known, key);
    }
  }

  async #fetch(key, known) {
    if (known !== null) this.#drawText(known, key);
    try {
      const bytes = await this.#context.api.file(`/workspaces/${rootOf(this.#context.id)}/${this.#path}`);
      if (key !== this.#read) return;
      this.#bytes = bytes;
      const text = new TextDecoder().decode(bytes.subarray(0, 4 * MOST_SHOWN));
      if (text.includes("\0")) this.#say(t("This file is not text ({size}). Download it to open it.", { size: size(bytes.length) }));
      else if (text !== known) this.#drawText(text, key);
    } catch (error) {
      if (key === this.#read) this.#say(error.message);
    }
  }

  #drawText(text, key) {
    const shown = text.slice(0, MOST_SHOWN);
    const rest = text.length - shown.length;
    const count = shown.split("\n").length - (shown.endsWith("\n") ? 1 : 0);
    const numbers = el("pre", { className: "numbers", "aria-hidden": "true" }, Array.from({ length: count }, (_, n) => n + 1).join("\n"));
    const content = el("div", { className: "content" }, el("div", { className: "code" }, el("pre", {}, el("code", {}, shown))));
    const parts = [el("div", { className: "numbered" }, numbers, content)];
    if (text === "") parts[0] = el("p", { className: "nothing" }, t("This file is empty."));
    if (rest > 0) parts.push(el("p", { className: "quiet" }, t("{n} more characters are not shown. Download the file to see all of it.", { n: rest })));
    this.#body.replaceChildren(...parts);
    this.#context.conversation.markup.fill(content, shown, nameOf(this.#path), () => key === this.#read && this.#shows === "contents");
  }

  #say(text) {
    this.#body.replaceChildren(el("p", { className: "nothing" }, text));
  }

  /** Save the version that is shown. */
  #save() {
    const change = this.#history[this.#chosen];
    const bytes = this.#shows === "changes" && change?.after != null ? new TextEncoder().encode(change.after) : this.#bytes;
    save(new Blob([/** @type {BlobPart} */ (bytes)], { type: "application/octet-stream" }), nameOf(this.#path));
  }

  // -- changes -----------------------------------------------------------------------------------------------------

  #drawChange(same) {
    const change = this.#history[this.#chosen];
    if (same && this.#read === "") return;
    this.#read = "";
    if (change === undefined) return;
    const lines = nearby(difference(.../** @type {[string, string]} */ (sidesOf(change))));
    const way = encoded(change.by);
    const title = el("p", { className: "change-head quiet", "data-agent": agentColour(change.by) },
      el("span", { className: "dot", "aria-hidden": "true" }), el("a", { href: `#conversation/${way}` }, change.by),
      ` ${change.tool}`, change.time === null ? "" : ` · ${clock(change.time)}`);
    this.#body.replaceChildren(el("div", { className: "change" }, title, lines.length ? diffView(lines, this.#way === "sides")
      : el("p", { className: "nothing" }, t("No differences."))));
  }
}


/** How many lines a change added and removed; the same change is compared once. */
const sizes = new WeakMap();

function sizeOf(change) {
  const [before, after] = sidesOf(change);
  const known = sizes.get(change.arguments);
  if (known?.before === before) return known;
  const found = { before, ...counted(difference(before, after)) };
  sizes.set(change.arguments, found);
  return found;
}

/**
 * A difference as an element.
 * @param {import("./diff.js").Line[]} lines
 * @param {boolean} sides old and new beside each other
 */
export function diffView(lines, sides, most = MOST_LINES) {
  const shown = lines.slice(0, most);
  const rows = sides
    ? sideBySide(shown).map(([old, fresh]) => el("div", { className: "pair", role: "row" }, half(old, "old"), half(fresh, "fresh")))
    : shown.map((line) => el("div", { className: "pair", role: "row" }, number(line.old), number(line.fresh), text(line)));
  const table = el("div", { className: `diff ${sides ? "sides" : "inline"}`, role: "table", "aria-label": t("Changed lines") }, rows);
  if (lines.length > most) {
    table.append(button(t("Show more ({n})", { n: lines.length - most }), () => table.replaceWith(diffView(lines, sides, Infinity))));
  }
  return table;
}

function half(line, which) {
  if (line === null) return [el("span", { className: "number", role: "cell" }), el("span", { className: "text none", role: "cell" })];
  return [number(line[which]), text(line, which === "old" ? "-" : "+")];
}

function number(value) {
  return el("span", { className: "number figure", role: "cell" }, value === null ? "" : String(value));
}

/** @param {import("./diff.js").Line} line */
function text({ sign, text: words, words: ranges, left }, side = sign) {
  const name = SIGNS[sign] ?? "same";
  if (sign === "…") return el("span", { className: `text ${name}`, role: "cell" }, many("{n} equal line", "{n} equal lines", left ?? 0));
  const parts = [];
  let at = 0;
  for (const [start, end] of ranges) {
    parts.push(words.slice(at, start), el(sign === "+" ? "ins" : "del", {}, words.slice(start, end)));
    at = end;
  }
  const spoken = sign === " " ? null : el("span", { className: "sign" }, side === "-" || sign === "-" ? "-" : "+");
  return el("span", { className: `text ${name}`, role: "cell" }, spoken, ...parts, words.slice(at));
}

customElements.define("cfs-file", FileView);
