// All agents of a tree side by side, a column each: those that work first get one.

import { el, mark, say } from "./dom.js";
import { never, soon } from "./frame.js";
import { nameOf } from "./ids.js";
import { MessageList } from "./message_list.js";

const FIRST = 12;
const MORE = 12;

/** Columns of a session and what is below it. A column that is out of sight is not drawn by the browser. */
export class AgentsView {
  #context;
  #columns = new Map();
  #most = FIRST;
  #row = el("div", { className: "columns", tabIndex: 0, role: "region", "aria-label": "Agents side by side" });
  #more = el("button", { type: "button", className: "button", onclick: () => this.#showMore() });
  #unwatch;
  #draw = () => this.#update();

  constructor(context) {
    this.#context = context;
    this.element = el("div", { className: "agents" }, this.#row, this.#more);
    this.#unwatch = context.live.sessions.watch(() => soon(this.#draw));
    soon(this.#draw);
  }

  close() {
    never(this.#draw);
    this.#unwatch();
    for (const column of this.#columns.values()) column.close();
  }

  #showMore() {
    this.#most += MORE;
    this.#update();
  }

  #update() {
    const family = this.#context.live.sessions.family(this.#context.id);
    const shown = this.#chosen(family);
    const ids = new Set(shown.map((node) => node.id));
    for (const [id, column] of this.#columns) {
      if (ids.has(id)) continue;
      column.close();
      this.#columns.delete(id);
    }
    shown.forEach((node, index) => {
      let column = this.#columns.get(node.id);
      if (column === undefined) {
        column = new Column(this.#context, node.id);
        this.#columns.set(node.id, column);
      }
      column.show(node);
      if (this.#row.children[index] !== column.element) {
        this.#row.insertBefore(column.element, this.#row.children[index] ?? null);
      }
    });
    const rest = family.length - shown.length;
    this.#more.hidden = rest === 0;
    say(this.#more, `Show more (${rest})`);
  }

  /** Columns stay where they are; free places go to those that work, then to the others, in the order of the tree. */
  #chosen(family) {
    const chosen = new Set(family.filter((node) => this.#columns.has(node.id)));
    const idle = [...chosen].filter((node) => !node.busy).reverse();
    const candidates = [family[0], ...family.filter((node) => node.busy), ...family].filter(Boolean);
    for (const node of candidates) {
      if (chosen.has(node)) continue;
      if (chosen.size >= this.#most) {
        const out = node.busy ? idle.find((each) => each !== family[0]) : undefined;
        if (out === undefined) continue;
        idle.splice(idle.indexOf(out), 1);
        chosen.delete(out);
      }
      chosen.add(node);
    }
    return family.filter((node) => chosen.has(node));
  }
}

/** One agent: its name, what it does, its messages. */
class Column {
  #live;
  #conversation;
  #list;
  #doing = el("span", { className: "quiet" });

  constructor({ live }, id) {
    this.#live = live;
    this.#conversation = live.open(id);
    this.#list = new MessageList(this.#conversation);
    const way = id.split("/").map(encodeURIComponent).join("/");
    const head = el("h2", {}, el("a", { href: `#conversation/${way}`, title: id }, nameOf(id)));
    this.element = el("section", { className: "column", "aria-label": id }, el("div", { className: "head" }, head,
      this.#doing), this.#list.element);
  }

  show(node) {
    mark(this.element, "data-state", node.state);
    say(this.#doing, node.tool ?? (node.busy ? "working" : node.state === "idle" ? "idle" : "waits for an agent"));
  }

  close() {
    this.#list.close();
    this.#live.release(this.#conversation);
    this.element.remove();
  }
}
