// The tree of sessions: only the rows that can be seen are elements, so that thousands cost nothing.

import { agentColour } from "./colours.js";
import { el, mark, say } from "./dom.js";
import { soon } from "./frame.js";
import { icon } from "./icons.js";
import { lineOf, nameOf, parentOf } from "./ids.js";
import { many, t } from "./text.js";
import { age, dateGroup, short } from "./times.js";

const ROW = 36;
const SPARE = 6;

/** A tree (role `tree`) that the keyboard moves through; `onChoose` gets the id that was chosen. */
export class TreeView {
  #sessions;
  #onChoose;
  #unfolded = new Set();
  /** @type {any[]} */
  #rows = []; // { node, level, position, siblings }, or { heading } above the sessions of some days
  #elements = new Map(); // by the session's id, or by the heading
  #active = null;
  #chosen = null;
  #filter = "";
  #workingOnly = false;
  #inside = el("div", { className: "rows", role: "presentation" });
  #reshaped = true;
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
    this.#reshaped = true;
    this.#update();
    this.#reveal();
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
    this.#rows = rows;
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
    this.#inside.style.height = `${this.#rows.length * ROW}px`;
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - SPARE);
    const last = Math.min(this.#rows.length, Math.ceil((scrollTop + clientHeight) / ROW) + SPARE);
    const drawn = new Set();
    for (let index = first; index < last; index++) {
      this.#drawRow(this.#rows[index], index);
      drawn.add(keyOf(this.#rows[index]));
    }
    const active = this.#position();
    if (active >= 0 && !drawn.has(this.#active)) {
      this.#drawRow(this.#rows[active], active); // what has the focus must be there
      drawn.add(this.#active);
    }
    for (const [id, row] of this.#elements) {
      if (drawn.has(id)) continue;
      row.element.remove();
      this.#elements.delete(id);
    }
    mark(this.element, "aria-activedescendant", active >= 0 ? this.#elements.get(this.#active).element.id : null);
  }

  #drawRow(place, index) {
    const { node } = place;
    const key = keyOf(place);
    let row = this.#elements.get(key);
    if (row === undefined) {
      row = node ? new Row(node.id) : new Heading(place.heading);
      this.#elements.set(key, row);
      this.#inside.append(row.element);
    }
    if (!node) {
      row.show(index);
      return;
    }
    const folds = node.children.length > 0;
    const unfolded = folds && (this.#unfolded.has(node.id) || this.#filter !== "" || this.#workingOnly);
    row.show(place, index, { folds, unfolded, chosen: node.id === this.#chosen, active: node.id === this.#active });
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
    const top = position * ROW;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + ROW > this.element.scrollTop + this.element.clientHeight) {
      this.element.scrollTop = top + ROW - this.element.clientHeight;
    }
  }
}

function keyOf({ node, heading }) {
  return node ? node.id : `\n${heading}`; // no id has a line break
}

/** A heading above the sessions of some days. */
class Heading {
  constructor(text) {
    this.element = el("div", { className: "heading", "aria-hidden": "true" }, text);
  }

  show(index) {
    this.element.style.transform = `translateY(${index * ROW}px)`;
  }
}

let rows = 0;

/** One row: its parts are made once and changed in place. */
class Row {
  #twist = el("span", { className: "twist", "aria-hidden": "true" }, icon("next"));
  #dot = el("span", { className: "dot", "aria-hidden": "true" });
  #name = el("span", { className: "name" });
  #doing = el("span", { className: "doing" });
  #tokens = el("span", { className: "figure" });
  #age = el("span", { className: "figure age" });

  constructor(id) {
    this.element = el("div", { className: "row", role: "treeitem", id: `row-${rows++}`, "data-session": id },
      this.#twist, this.#dot, this.#name, this.#doing, this.#tokens, this.#age);
    mark(this.element, "data-agent", agentColour(id));
  }

  show({ node, level, position, siblings }, index, { folds, unfolded, chosen, active }) {
    const { element } = this;
    element.style.transform = `translateY(${index * ROW}px)`;
    element.style.setProperty("--level", String(Math.min(level, 12)));
    mark(element, "aria-level", level);
    mark(element, "aria-posinset", position);
    mark(element, "aria-setsize", siblings);
    mark(element, "aria-expanded", folds ? unfolded : null);
    mark(element, "aria-selected", chosen);
    mark(element, "data-active", active ? "" : null);
    mark(element, "data-state", lookOf(node));
    mark(element, "data-folds", folds ? "" : null);
    const name = nameOf(node.id);
    const title = node.parent === null ? (node.title ?? name) : name; // an agent is known by its name
    mark(element, "title", title === name ? node.id : `${title}\n${node.id}`);
    say(this.#name, title);
    const doing = doingOf(node);
    say(this.#doing, doing);
    say(this.#tokens, node.spent ? t("{n} tok", { n: short(node.spent) }) : "");
    say(this.#age, node.updated ? age(node.updated) : "");
    const parts = [title, title === name ? "" : name, stateOf(node), doing];
    if (node.spent) parts.push(many("{n} token", "{n} tokens", node.spent));
    if (node.updated) parts.push(t("changed {age} ago", { age: age(node.updated) }));
    mark(element, "aria-label", parts.filter(Boolean).join(", "));
  }
}

/** The look of a row: a paused session, or its state. */
function lookOf(node) {
  if (node.paused) return "paused";
  return node.state === "waiting_for_agent" && !node.waits ? "generating" : node.state;
}

/** What a session does, in a word. */
function stateOf(node) {
  const look = lookOf(node);
  return { paused: t("paused"), idle: t("idle"), generating: t("working"), waiting_for_agent: t("waits for an agent") }[look] ?? look;
}

/** What a session does besides its state: the tool that works, what is below it, what waits. */
function doingOf(node) {
  const parts = [];
  if (node.open_questions) parts.push(many("{n} question", "{n} questions", node.open_questions));
  if (node.tool) parts.push(node.tool);
  if (node.busyBelow) parts.push(t("{n} of {all} working", { n: node.busyBelow, all: below(node) }));
  else if (node.children.length) parts.push(t("{n} below", { n: below(node) }));
  if (node.queued && node.state !== "idle") parts.push(t("{n} waiting", { n: node.queued }));
  return parts.join(" · ");
}

function below(node) {
  return node.children.reduce((sum, child) => sum + 1 + below(child), 0);
}
