// The tree of sessions: only the rows that can be seen are elements, so that thousands cost nothing.

import { agentColour } from "./colours.js";
import { el, mark, say } from "./dom.js";
import { soon } from "./frame.js";
import { icon } from "./icons.js";
import { lineOf, nameOf, parentOf } from "./ids.js";
import { many, t } from "./text.js";
import { ago, dateGroup } from "./times.js";

const ROW = 52;
const HEADING = 36;
const SPARE = 6;

/** A tree (role `tree`) that the keyboard moves through; `onChoose` gets the id that was chosen. */
export class TreeView {
  #sessions;
  #onChoose;
  #unfolded = new Set();
  /** @type {any[]} */
  #rows = []; // { node, level, position, siblings, top }, or { heading, top } above the sessions of some days
  #elements = new Map(); // by the session's id, or by the heading
  #active = null;
  #chosen = null;
  #filter = "";
  #workingOnly = false;
  #inside = el("div", { className: "rows", role: "presentation" });
  #height = 0;
  #reshaped = true;
  #sought = false; // the chosen session is to be brought into sight, once it is listed
  #moved = false; // some session is newer than its place shows
  #draw = () => this.#update();
  #tick = 0;

  constructor(sessions, onChoose) {
    this.#sessions = sessions;
    this.#onChoose = onChoose;
    this.element = el(
      "div",
      {
        className: "tree", role: "tree", tabIndex: 0, "aria-label": t("Sessions"),
        onkeydown: (event) => this.#key(event),
        onclick: (event) => this.#click(event),
        onscroll: () => soon(this.#draw),
        onfocus: () => this.#focused(),
      },
      this.#inside,
    );
    sessions.watch(({ reshaped }) => {
      this.#reshaped ||= reshaped || this.#workingOnly;
      this.#moved = true;
      soon(this.#draw);
    });
    new ResizeObserver(() => soon(this.#draw)).observe(this.element);
    this.#tick = setInterval(() => this.#everySecond(), 1000);
  }

  close() {
    clearInterval(this.#tick);
  }

  /** Ages change; and what is newer moves up, but not under the pointer. */
  #everySecond() {
    if (this.#moved && !this.element.matches(":hover")) {
      this.#moved = false;
      this.#reshaped = true;
    }
    soon(this.#draw);
  }

  /** The session above or below the one that is shown; null at the ends. */
  neighbour(step) {
    const shown = this.#rows.filter(({ node }) => node);
    const at = shown.findIndex(({ node }) => node.id === this.#chosen);
    return shown[at < 0 ? 0 : at + step]?.node.id ?? null;
  }

  /** Show only what has a text in its id or title, or what works. */
  narrow(text, workingOnly) {
    this.#filter = text.trim().toLowerCase();
    this.#workingOnly = workingOnly;
    this.#reshaped = true;
    this.element.scrollTop = 0;
    soon(this.#draw);
  }

  /** Mark a session as the one that is shown, unfold the way to it, and bring it into sight. */
  choose(id) {
    this.#chosen = this.#active = id;
    if (id !== null) lineOf(id).forEach((each) => this.#unfolded.add(each));
    this.#reshaped = this.#sought = true;
    this.#update();
  }

  // -- rows

  #flatten() {
    /** @type {any[]} */
    const rows = [];
    const narrowed = this.#filter !== "" || this.#workingOnly;
    const fits = (node) =>
      (!this.#workingOnly || node.busy) &&
      (this.#filter === "" || `${node.id} ${node.title ?? ""}`.toLowerCase().includes(this.#filter));
    const wanted = narrowed ? this.#wanted(fits) : null;
    const walk = (nodes, level) => {
      const seen = wanted === null ? nodes : nodes.filter((node) => wanted.has(node));
      seen.forEach((node, index) => {
        rows.push({ node, level, position: index + 1, siblings: seen.length });
        if (wanted !== null || this.#unfolded.has(node.id)) walk(node.children, level + 1);
      });
    };
    const roots = [...this.#sessions.roots].sort((one, other) => other.updated - one.updated);
    const groups = Map.groupBy(roots, (node) => dateGroup(node.updated));
    for (const [heading, members] of groups) {
      const before = rows.length;
      rows.push({ heading });
      walk(members, 1);
      if (rows.length === before + 1) rows.pop();
    }
    let position = 0;
    for (const row of rows) if (row.level === 1) row.position = ++position;
    for (const row of rows) if (row.level === 1) row.siblings = position;
    let top = 0;
    for (const row of rows) {
      row.top = top;
      top += row.node ? ROW : HEADING;
    }
    this.#rows = rows;
    this.#height = top;
  }

  /** The first row that ends below a height. */
  #rowAt(height) {
    let low = 0;
    let high = this.#rows.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (endOf(this.#rows[middle]) > height) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /** The sessions that fit, and those above them. */
  #wanted(fits) {
    const wanted = new Set();
    const walk = (node) => {
      for (const child of node.children) walk(child);
      if (fits(node) || node.children.some((child) => wanted.has(child))) wanted.add(node);
    };
    this.#sessions.roots.forEach(walk);
    return wanted;
  }

  #update() {
    if (this.#reshaped) this.#flatten();
    this.#reshaped = false;
    this.#inside.style.height = `${this.#height}px`;
    if (this.#sought && this.#position() >= 0 && this.element.clientHeight > 0) {
      this.#sought = false;
      this.#reveal();
    }
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, this.#rowAt(scrollTop) - SPARE);
    const last = Math.min(this.#rows.length, this.#rowAt(scrollTop + clientHeight) + 1 + SPARE);
    const drawn = new Set();
    for (let index = first; index < last; index++) {
      this.#drawRow(this.#rows[index]);
      drawn.add(keyOf(this.#rows[index]));
    }
    const active = this.#position();
    if (active >= 0 && !drawn.has(this.#active)) {
      this.#drawRow(this.#rows[active]); // what has the focus must be there
      drawn.add(this.#active);
    }
    for (const [id, row] of this.#elements) {
      if (drawn.has(id)) continue;
      row.element.remove();
      this.#elements.delete(id);
    }
    mark(this.element, "aria-activedescendant", active >= 0 ? this.#elements.get(this.#active).element.id : null);
  }

  #drawRow(place) {
    const { node } = place;
    const key = keyOf(place);
    let row = this.#elements.get(key);
    if (row === undefined) {
      row = node ? new Row(node.id) : new Heading(place.heading);
      this.#elements.set(key, row);
      this.#inside.append(row.element);
    }
    if (!node) {
      row.show(place);
      return;
    }
    const folds = node.children.length > 0;
    const unfolded = folds && (this.#unfolded.has(node.id) || this.#filter !== "" || this.#workingOnly);
    row.show(place, { folds, unfolded, chosen: node.id === this.#chosen, active: node.id === this.#active });
  }

  // -- moving

  #position() {
    return this.#active === null ? -1 : this.#rows.findIndex(({ node }) => node?.id === this.#active);
  }

  #focused() {
    if (this.#position() < 0 && this.#rows.length) this.#move(0);
  }

  #click(event) {
    const id = event.target.closest("[role=treeitem]")?.dataset.session;
    if (id === undefined) return;
    this.#active = id;
    if (event.target.closest(".twist")) this.#fold(id, !this.#unfolded.has(id));
    else this.#onChoose(id);
  }

  #fold(id, unfold) {
    if (unfold) this.#unfolded.add(id);
    else this.#unfolded.delete(id);
    this.#reshaped = true;
    this.#update();
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const position = this.#position();
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW) - 1);
    const node = this.#rows[position]?.node;
    const moves = {
      ArrowDown: () => this.#move(position + 1),
      ArrowUp: () => this.#move(position - 1, -1),
      PageDown: () => this.#move(position + page),
      PageUp: () => this.#move(position - page),
      Home: () => this.#move(0),
      End: () => this.#move(this.#rows.length - 1),
      ArrowRight: () => node && this.#inwards(node, position),
      ArrowLeft: () => node && this.#outwards(node),
      Enter: () => node && this.#onChoose(node.id),
      " ": () => node && this.#onChoose(node.id),
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
  }

  #inwards(node, position) {
    if (!node.children.length) return;
    if (this.#unfolded.has(node.id)) this.#move(position + 1);
    else this.#fold(node.id, true);
  }

  #outwards(node) {
    if (node.children.length && this.#unfolded.has(node.id)) this.#fold(node.id, false);
    else if (parentOf(node.id) !== null) this.#move(this.#rows.findIndex((row) => row.node?.id === parentOf(node.id)));
  }

  /** Make the row at a position the active one; where a heading is, the next one in the direction. */
  #move(position, direction = 1) {
    if (!this.#rows.length) return;
    let at = Math.min(this.#rows.length - 1, Math.max(0, position));
    if (!this.#rows[at].node) at += at === 0 ? 1 : direction;
    this.#active = this.#rows[at].node.id;
    this.#reveal();
    this.#update();
  }

  #reveal() {
    const position = this.#position();
    if (position < 0) return;
    const row = this.#rows[position];
    const top = this.#rows[position - 1]?.heading ? this.#rows[position - 1].top : row.top; // with the heading above it
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (endOf(row) > this.element.scrollTop + this.element.clientHeight) {
      this.element.scrollTop = endOf(row) - this.element.clientHeight;
    }
  }
}

function endOf({ node, top }) {
  return top + (node ? ROW : HEADING);
}

function keyOf({ node, heading }) {
  return node ? node.id : `\n${heading}`; // no id has a line break
}

/** A heading above the sessions of some days. */
class Heading {
  constructor(text) {
    this.element = el("div", { className: "heading", "aria-hidden": "true" }, text);
  }

  show({ top }) {
    this.element.style.transform = `translateY(${top}px)`;
  }
}

let rows = 0;

/** One row: its parts are made once and changed in place. */
class Row {
  #twist = el("span", { className: "twist", "aria-hidden": "true" }, icon("next"));
  #dot = el("span", { className: "dot", "aria-hidden": "true" });
  #sign = el("span", { className: "sign", "aria-hidden": "true" });
  #look = "";
  #title = el("span", {});
  #doing = el("span", { className: "doing" });
  #age = el("span", { className: "age" });

  constructor(id) {
    this.element = el("div", { className: "row", role: "treeitem", id: `row-${rows++}`, "data-session": id },
      this.#twist, this.#dot, this.#sign,
      el("span", { className: "name" }, el("span", { className: "present" }, this.#doing, this.#age), this.#title));
    mark(this.element, "data-agent", agentColour(id));
  }

  show({ node, level, position, siblings, top }, { folds, unfolded, chosen, active }) {
    const { element } = this;
    element.style.transform = `translateY(${top}px)`;
    element.style.setProperty("--level", String(Math.min(level, 12)));
    mark(element, "aria-level", level);
    mark(element, "aria-posinset", position);
    mark(element, "aria-setsize", siblings);
    mark(element, "aria-expanded", folds ? unfolded : null);
    mark(element, "aria-selected", chosen);
    mark(element, "data-active", active ? "" : null);
    this.#drawLook(lookOf(node), hasEnded(node));
    mark(element, "data-folds", folds ? "" : null);
    const name = nameOf(node.id);
    const title = titleOf(node, name);
    const counts = countsOf(node);
    mark(element, "title", [title, title === name ? "" : node.id, ...counts].filter(Boolean).join("\n"));
    say(this.#title, title);
    const doing = doingOf(node);
    say(this.#doing, doing);
    say(this.#age, node.updated ? ago(node.updated) : "");
    const parts = [title, title === name ? "" : name, stateOf(node), doing, ...counts];
    if (node.updated) parts.push(t("changed {age}", { age: ago(node.updated, "long") }));
    mark(element, "aria-label", parts.filter(Boolean).join(", "));
  }

  #drawLook(look, ended) {
    if (`${look} ${ended}` === this.#look) return;
    this.#look = `${look} ${ended}`;
    mark(this.element, "data-state", look);
    mark(this.element, "data-ended", ended ? "" : null);
    this.#sign.replaceChildren(...(ended ? [icon("check")] : look in SIGNS ? [icon(SIGNS[look])] : []));
  }
}

/** Icons of the states that want somebody to look. @type {Record<string, string>} */
const SIGNS = { failed: "alert", asking: "help" };

/** The title of a row: an agent is known by its name, and a copy by its own beside the title of the original. */
function titleOf(node, name) {
  if (node.parent !== null || node.title === null) return name;
  return node.origin === null || node.title === name ? node.title : `${node.title} (${name})`;
}

/** Whether it is an agent below another one whose task is over. */
function hasEnded(node) {
  return node.parent !== null && node.messages > 0 && lookOf(node) === "idle";
}

/** The look of a row. */
function lookOf(node) {
  if (node.open_questions) return "asking";
  if (node.paused) return "paused";
  if (node.state === "idle") return node.failed ? "failed" : "idle";
  return node.state === "waiting_for_agent" && !node.waits ? "generating" : node.state;
}

/** What a session does, in a word. */
function stateOf(node) {
  const look = lookOf(node);
  return { asking: t("asks you"), paused: t("paused"), idle: t("idle"), failed: t("failed"), generating: t("working"),
    waiting_for_agent: t("waits for an agent") }[look] ?? look;
}

/** What a session does in words: whether it failed, what it asks, the tool that works, what works below it. */
function doingOf(node) {
  const parts = [];
  if (node.failed && node.state === "idle") parts.push(t("failed"));
  if (node.open_questions) parts.push(many("{n} question", "{n} questions", node.open_questions));
  if (node.tool) parts.push(node.tool);
  if (node.busyBelow) parts.push(t("{n} of {all} working", { n: node.busyBelow, all: below(node) }));
  return parts.join(" · ");
}

/** How much there is of a session. */
function countsOf(node) {
  const parts = [];
  if (node.messages) parts.push(many("{n} message", "{n} messages", node.messages));
  if (node.spent) parts.push(many("{n} token", "{n} tokens", node.spent));
  if (node.children.length) parts.push(many("{n} sub-session", "{n} sub-sessions", below(node)));
  if (node.queued && node.state !== "idle") parts.push(t("{n} waiting", { n: node.queued }));
  return parts;
}

function below(node) {
  return node.children.reduce((sum, child) => sum + 1 + below(child), 0);
}
