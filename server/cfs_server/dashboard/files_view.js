// The workspace of a tree: its files, what is in them, and who changed what.

import { changesOf } from "./changes.js";
import { difference, nearby } from "./diff.js";
import { button, el, mark, say } from "./dom.js";
import { never, soon } from "./frame.js";
import { encoded, nameOf, rootOf } from "./ids.js";
import { clock, size } from "./times.js";

const LOOK_AGAIN = 3000;
const MOST_SHOWN = 200_000;
const MOST_AGENTS = 64;

/** Files at the side, one file with its changes beside them. */
export class FilesView {
  #context;
  #root;
  #conversations = new Map();
  #stored = new Map(); // path: what the server says of it
  #chosen = null; // by the reader
  #open = null; // the chosen one, or the first: files and what agents tell of them come in any order
  #drawn = "";
  #list = el("ul", { className: "files" });
  #told = el("p", { className: "quiet" });
  #shown = el("div", { className: "file scroll", tabIndex: 0, role: "region", "aria-label": "File" });
  #unwatch;
  #timer;
  #closed = false;
  #draw = () => this.#update();

  constructor(context) {
    this.#context = context;
    this.#root = rootOf(context.id);
    const side = el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Files" },
      this.#list, this.#told);
    this.element = el("div", { className: "workspace" }, side, this.#shown);
    this.#unwatch = context.live.sessions.watch(() => this.#attend());
    this.#attend();
    this.#look();
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#timer);
    never(this.#draw);
    this.#unwatch();
    for (const { conversation, end } of this.#conversations.values()) {
      end();
      this.#context.live.release(conversation);
    }
  }

  /** Read along with the agents of the tree. */
  #attend() {
    for (const { id } of this.#context.live.sessions.family(this.#root).slice(0, MOST_AGENTS)) {
      if (this.#conversations.has(id)) continue;
      const conversation = this.#context.live.open(id);
      this.#conversations.set(id, { conversation, end: conversation.watch(() => soon(this.#draw)) });
    }
    soon(this.#draw);
  }

  /** Ask for the files by and by: no event tells of them. */
  async #look() {
    const prefix = `/workspaces/${this.#root}/`;
    try {
      const found = new Map();
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
    if (this.#closed) return;
    soon(this.#draw);
    this.#timer = setTimeout(() => this.#look(), LOOK_AGAIN);
  }

  #update() {
    const changes = changesOf([...this.#conversations.values()].map(({ conversation }) => conversation));
    const paths = [...new Set([...this.#stored.keys(), ...changes.keys()])].sort();
    this.#open = this.#chosen ?? paths[0] ?? null;
    const digest = JSON.stringify([this.#open, paths.map((path) => [path, this.#stored.get(path)?.version,
      this.#stored.get(path)?.size, changes.get(path)?.length])]);
    if (digest === this.#drawn) return;
    this.#drawn = digest;
    this.#drawList(paths, changes);
    say(this.#told, paths.length ? "" : "The agents of this tree have not written any files.");
    this.#drawFile(changes.get(this.#open) ?? []);
  }

  #drawList(paths, changes) {
    const focused = document.activeElement?.dataset?.path;
    this.#list.replaceChildren(
      ...paths.map((path) => {
        const stored = this.#stored.get(path);
        const writers = [...new Set((changes.get(path) ?? []).map(({ by }) => nameOf(by)))];
        const about = [stored ? size(stored.size) : null, writers.join(", ")].filter(Boolean).join(" · ");
        const choose = el("button", { type: "button", className: "choose", "data-path": path,
          onclick: () => this.#choose(path) }, el("span", {}, path), el("span", { className: "quiet" }, about));
        mark(choose, "aria-current", path === this.#open ? "true" : null);
        return el("li", {}, choose);
      }),
    );
    if (focused !== undefined) {
      [...this.#list.querySelectorAll("button")].find((each) => each.dataset.path === focused)?.focus();
    }
  }

  #choose(path) {
    this.#chosen = path;
    this.#update();
  }

  #drawFile(history) {
    const path = this.#open;
    if (path === null) return;
    const content = el("pre", { className: "content" }, "");
    const actual = this.#stored.has(path);
    const known = history.at(-1)?.after ?? null;
    content.textContent = known ?? "";
    this.#shown.replaceChildren(
      el("h2", {}, path),
      el("p", { className: "quiet" }, actual ? "Current file in the workspace" : "File as the agents wrote it"),
      content,
      el("h2", {}, "Changes"),
      ...(history.length ? history.map(changeView).reverse() : [el("p", { className: "quiet" }, "No agent has reported a change.")]),
    );
    if (actual) this.#fetch(path, content);
  }

  async #fetch(path, content) {
    const place = `/workspaces/${this.#root}/${path}`;
    try {
      const bytes = await this.#context.api.file(place);
      if (path !== this.#open) return;
      const text = new TextDecoder().decode(bytes.subarray(0, MOST_SHOWN));
      const rest = bytes.length - MOST_SHOWN;
      content.textContent = text.includes("\0") ? `(${bytes.length} bytes that are no text)` : text;
      if (rest > 0) content.append(`\n… ${size(rest)} more`);
      if (bytes.length) content.before(button("Download", () => download(path, bytes)));
    } catch (error) {
      content.textContent = error.message;
    }
  }
}

function changeView({ by, time, call, before, after }) {
  const title = el("div", { className: "head" }, el("a", { href: `#conversation/${encoded(by)}` }, by),
    el("span", { className: "quiet" }, ` ${call.name}${time === null ? "" : ` at ${clock(time)}`}`));
  const parts = call.name === "edit_file" ? [call.arguments.old, call.arguments.new] : [before ?? "", after];
  const lines = nearby(difference(...parts.map((part) => String(part ?? ""))));
  const names = { "+": "added", "-": "removed" };
  const shown = lines.map(({ sign, text }) =>
    el("div", { className: `line ${names[sign] ?? "same"}` }, `${sign} ${text}`));
  return el("div", { className: "change" }, title,
    shown.length ? el("div", { className: "diff" }, shown) : el("p", { className: "quiet" }, "No differences."));
}

/** Save a file by the browser: its bytes are here already, and the token need not be in any address. */
function download(path, bytes) {
  const address = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  el("a", { href: address, download: nameOf(path) }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
