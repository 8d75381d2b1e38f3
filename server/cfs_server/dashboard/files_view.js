// The workspace of a tree: its files, what is in them, and which agent changed what.

import { changesOf, treeOf } from "./changes.js";
import { agentColour } from "./colours.js";
import { el, mark, say } from "./dom.js";
import { FileView } from "./file_view.js";
import { never, soon } from "./frame.js";
import { icon } from "./icons.js";
import { nameOf, rootOf } from "./ids.js";
import { many, t } from "./text.js";
import { size } from "./times.js";

const LOOK_AGAIN = 3000;
const MOST_AGENTS = 64;
const MOST_OPEN = 200; // with more files than that, folders are closed at first
const MOST_ROWS = 500; // of one folder, until more are asked for
const MOST_DOTS = 4;

/** The tree of files at the side, one file with its versions beside it. On a phone one of the two. */
export class FilesView extends HTMLElement {
  #context;
  #root;
  /** @type {Map<string, { conversation: any, end: () => void }>} */
  #conversations = new Map();
  /** What the server says of each file, by path. @type {Map<string, { size: number, version: string | null }>} */
  #stored = new Map();
  #looked = false;
  /** By the reader. @type {string | null} */
  #chosen = null;
  /** @type {string | null} */
  #open = null; // the chosen one, or the first: files and what agents say of them come in any order
  #drawn = "";
  #revisions = "";
  /** Folders that are not as they would be by themselves. @type {Set<string>} */
  #turned = new Set();
  #limits = new Map();
  #list = el("ul", { className: "files", role: "tree", "aria-label": t("Files") });
  #told = el("p", { className: "quiet figure" });
  #nothing = el("p", { className: "nothing", hidden: true },
    t("The files that the agents of this tree write appear here, with who changed what."));
  #side;
  #file;
  #unwatch = () => {};
  #timer;
  #draw = () => this.#update();

  constructor(context) {
    super();
    this.className = "workspace";
    this.#context = context;
    this.#root = rootOf(context.id);
    this.#file = new FileView(context, () => this.#back());
    this.#side = el("div", { className: "files-side" }, this.#told, this.#list);
    this.#list.addEventListener("keydown", (event) => this.#key(event));
    this.append(this.#side, this.#file, this.#nothing);
  }

  connectedCallback() {
    this.#unwatch = this.#context.live.sessions.watch(({ reshaped }) => reshaped && this.#attend());
    this.#attend();
    this.#look();
  }

  disconnectedCallback() {
    clearTimeout(this.#timer);
    never(this.#draw);
    this.#unwatch();
    for (const { conversation, end } of this.#conversations.values()) {
      end();
      this.#context.live.release(conversation);
    }
    this.#conversations.clear();
  }

  /** Read along with the agents of the tree. */
  #attend() {
    for (const { id } of this.#context.live.sessions.family(this.#root).slice(0, MOST_AGENTS)) {
      if (this.#conversations.has(id)) continue;
      const conversation = this.#context.live.open(id);
      this.#conversations.set(id, { conversation, end: conversation.watch(() => this.#noticed()) });
    }
    soon(this.#draw);
  }

  /** Replies that grow change no files: only whole messages do. */
  #noticed() {
    const revisions = [...this.#conversations.values()].map(({ conversation }) => conversation.revision).join();
    if (revisions !== this.#revisions) soon(this.#draw);
    this.#revisions = revisions;
  }

  /** Ask for the files again and again: there is no event for them. */
  async #look() {
    const prefix = `/workspaces/${this.#root}/`;
    const found = new Map();
    try {
      for (let after = ""; after !== null; ) {
        const query = `prefix=${encodeURIComponent(prefix)}&limit=1000&after=${encodeURIComponent(after)}`;
        const page = await this.#context.api.json(`/v1/files?${query}`);
        for (const file of page.files) found.set(file.path.slice(prefix.length), file);
        after = page.next;
      }
      this.#stored = found;
    } catch {
      this.#stored = new Map(); // none, or none that the caller may see
    }
    this.#looked = true;
    if (!this.isConnected) return;
    soon(this.#draw);
    this.#timer = setTimeout(() => this.#look(), LOOK_AGAIN);
  }

  #update() {
    const changes = changesOf([...this.#conversations.values()].map(({ conversation }) => conversation));
    const paths = [...new Set([...this.#stored.keys(), ...changes.keys()])];
    const tree = treeOf(paths);
    this.#open = this.#chosen ?? firstOf(tree);
    const digest = JSON.stringify([this.#open, [...this.#turned], [...this.#limits], paths.map((path) => [path,
      this.#stored.get(path)?.version, this.#stored.get(path)?.size, changes.get(path)?.map(({ pending, time }) => [pending, time])])]);
    mark(this, "data-shows", this.#chosen === null ? "list" : "file");
    if (digest === this.#drawn) return;
    this.#drawn = digest;
    const empty = paths.length === 0;
    this.#side.hidden = this.#file.hidden = empty;
    this.#nothing.hidden = !empty || !this.#looked;
    const bytes = [...this.#stored.values()].reduce((sum, file) => sum + file.size, 0);
    say(this.#told, [many("{n} file", "{n} files", paths.length), bytes ? size(bytes) : null].filter(Boolean).join(" · "));
    this.#drawList(tree, changes, paths.length);
    if (this.#open !== null) this.#file.show(this.#open, this.#stored.get(this.#open) ?? null, changes.get(this.#open) ?? []);
  }

  // -- the tree of files -------------------------------------------------------------------------------------------

  #drawList(tree, changes, count) {
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.path;
    const rows = [];
    const walk = (entries, level) => {
      const most = this.#limits.get(level === 1 ? "" : entries[0].path) ?? MOST_ROWS;
      for (const entry of entries.slice(0, most)) {
        const folded = entry.children !== null && this.#isFolded(entry, count);
        rows.push(this.#rowOf(entry, level, folded, changes));
        if (entry.children !== null && !folded) walk(entry.children, level + 1);
      }
      if (entries.length > most) {
        const key = level === 1 ? "" : entries[0].path;
        rows.push(el("li", { role: "none" }, el("button", { type: "button", className: "button",
          onclick: () => this.#more(key, most) }, t("Show more ({n})", { n: entries.length - most }))));
      }
    };
    walk(tree, 1);
    this.#list.replaceChildren(...rows);
    const all = this.#rows();
    const stop = all.find((row) => row.dataset.path === focused) ?? all.find((row) => row.dataset.path === this.#open) ?? all[0];
    if (stop) stop.tabIndex = 0;
    if (focused !== undefined && stop?.dataset.path === focused) stop.focus();
  }

  #isFolded({ path }, count) {
    const inside = this.#open !== null && this.#open.startsWith(`${path}/`) && this.#chosen === null;
    return (count > MOST_OPEN && !inside) !== this.#turned.has(path);
  }

  #rowOf({ name, path, children }, level, folded, changes) {
    const folder = children !== null;
    const stored = this.#stored.get(path);
    const writers = folder ? [] : [...new Set((changes.get(path) ?? []).map(({ by }) => by))];
    const pending = !folder && changes.get(path)?.some((change) => change.pending);
    const label = [name, writers.length ? t("changed by {agents}", { agents: writers.map(nameOf).join(", ") }) : null];
    const row = el("li", { className: "choose", role: "treeitem", tabIndex: -1, "data-path": path, "aria-level": level,
      title: path, "aria-label": label.filter(Boolean).join(", "), "aria-expanded": folder ? !folded : null,
      "aria-selected": folder ? null : path === this.#open, onclick: () => (folder ? this.#turn(path) : this.#choose(path)) },
      icon(folder ? (folded ? "next" : "down") : "file"),
      el("span", { className: "words" }, name),
      pending ? el("span", { className: "pulse", title: t("is being written") }) : null,
      ...writers.slice(0, MOST_DOTS).map((by) => el("span", { className: "dot", "data-agent": agentColour(by), title: by })),
      stored && !folder ? el("span", { className: "quiet figure" }, size(stored.size)) : null);
    row.style.setProperty("--level", String(level - 1));
    return row;
  }

  #turn(path) {
    if (!this.#turned.delete(path)) this.#turned.add(path);
    this.#update();
  }

  #more(key, most) {
    this.#limits.set(key, most + MOST_ROWS);
    this.#update();
  }

  #choose(path) {
    this.#chosen = path;
    this.#update();
    if (getComputedStyle(this.#side).display === "none") this.#file.focusBack();
  }

  /** From a file to the list, on a phone. */
  #back() {
    const path = this.#chosen;
    this.#chosen = null;
    this.#update();
    this.#rows().find((row) => row.dataset.path === path)?.focus();
  }

  /** @returns {HTMLElement[]} */
  #rows() {
    return [...this.#list.querySelectorAll("[role=treeitem]")];
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const rows = this.#rows();
    const at = rows.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    if (at < 0) return;
    const row = rows[at];
    const open = row.getAttribute("aria-expanded");
    const above = () => rows.slice(0, at).findLastIndex((each) => Number(each.ariaLevel) < Number(row.ariaLevel));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (to !== undefined) focusOn(rows[Math.min(rows.length - 1, Math.max(0, to))], row);
    else if (event.key === "Enter" || event.key === " ") row.click();
    else if (event.key === "ArrowRight" && open === "false") row.click();
    else if (event.key === "ArrowRight" && open === "true") focusOn(rows[at + 1], row);
    else if (event.key === "ArrowLeft" && open === "true") row.click();
    else if (event.key === "ArrowLeft") focusOn(rows[above()], row);
    else return;
    event.preventDefault();
  }
}

function focusOn(row, before) {
  if (!row) return;
  before.tabIndex = -1;
  row.tabIndex = 0;
  row.focus();
}

function firstOf(entries) {
  for (const { path, children } of entries) {
    const found = children === null ? path : firstOf(children);
    if (found !== null) return found;
  }
  return null;
}

customElements.define("cfs-files", FilesView);
