// All sessions as a tree: a listing, and from then on the events.

import { introduce } from "./colours.js";
import { soon } from "./frame.js";
import { parentOf } from "./ids.js";
import { Node } from "./node.js";

/** The sessions that the caller may see. Views `watch` it and are told once a frame what has changed. */
export class Sessions {
  #nodes = new Map();
  #roots = [];
  #watchers = new Set();
  #changed = new Set();
  #reshaped = false;
  #tell = () => this.#flush();

  get size() {
    return this.#nodes.size;
  }

  get roots() {
    return this.#roots;
  }

  get(id) {
    return this.#nodes.get(id);
  }

  /** All of them, in no order. */
  all() {
    return this.#nodes.values();
  }

  /** A session and everything below it, parents first. */
  family(id) {
    const found = [];
    const walk = (node) => {
      found.push(node);
      node.children.forEach(walk);
    };
    const top = this.#nodes.get(id);
    if (top) walk(top);
    return found;
  }

  /** Call a function with `{ ids, reshaped }` before the next frame after something changed. Returns how to end it. */
  watch(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }

  /** Put a listing in the place of everything: trees as the API gives them. */
  replace(trees) {
    const before = this.#nodes;
    this.#nodes = new Map();
    this.#roots = [];
    const add = (info) => {
      const node = this.#made(info.id);
      node.describe(info);
      node.inherit(before.get(info.id));
      if (node.busy) this.#count(node, 1);
      (info.children ?? []).forEach(add);
    };
    trees.forEach(add);
    introduce(this.#nodes.values());
    for (const id of before.keys()) this.#note(id);
    for (const id of this.#nodes.keys()) this.#note(id);
    this.#reshaped = true;
  }

  /** Let an event change the tree. */
  take(event) {
    const { type, session: id } = event;
    if (type === "session.deleted") {
      this.#remove(id);
      return;
    }
    if (type === "session.created") this.#renew(id, event.number);
    const node = this.#nodes.get(id) ?? this.#made(id);
    const was = node.busy;
    const changed = node.take(event);
    introduce([node]);
    if (changed) {
      if (node.busy !== was) this.#count(node, node.busy ? 1 : -1);
      this.#note(id);
    }
  }

  /** Let the views look at those again whose messages no agent has claimed: after a while that is shown. */
  review() {
    for (const node of this.#nodes.values()) if (node.state === "waiting_for_agent") this.#note(node.id);
  }

  /** Say that a session has changed in a way that no event tells. */
  touch(id) {
    this.#note(id);
  }

  /** A name can get another life: what the old one did is not the new one's. */
  #renew(id, number) {
    const old = this.#nodes.get(id);
    if (old === undefined || number > old.event || number !== 1) return;
    const children = old.children;
    this.#become(old, "idle");
    const fresh = this.#placed(new Node(id), old);
    fresh.children = children;
    fresh.busyBelow = old.busyBelow;
    for (const child of children) child.parent = fresh;
  }

  #placed(node, old) {
    const siblings = old.parent ? old.parent.children : this.#roots;
    siblings[siblings.indexOf(old)] = node;
    node.parent = old.parent;
    this.#nodes.set(node.id, node);
    return node;
  }

  #made(id) {
    const node = new Node(id);
    const above = parentOf(id);
    if (above !== null) node.parent = this.#nodes.get(above) ?? this.#made(above);
    const siblings = node.parent ? node.parent.children : this.#roots;
    siblings.splice(positionOf(siblings, id), 0, node);
    this.#nodes.set(id, node);
    this.#reshaped = true;
    this.#note(id);
    return node;
  }

  #remove(id) {
    const node = this.#nodes.get(id);
    if (node === undefined) return;
    for (const member of this.family(id).reverse()) {
      this.#become(member, "idle");
      this.#nodes.delete(member.id);
      this.#note(member.id);
    }
    const siblings = node.parent ? node.parent.children : this.#roots;
    siblings.splice(siblings.indexOf(node), 1);
    if (node.parent) this.#note(node.parent.id);
    this.#reshaped = true;
  }

  #become(node, state) {
    const was = node.busy;
    node.state = state;
    if (node.busy !== was) this.#count(node, node.busy ? 1 : -1);
  }

  #count(node, difference) {
    for (let above = node.parent; above; above = above.parent) {
      above.busyBelow += difference;
      this.#note(above.id);
    }
  }

  #note(id) {
    this.#changed.add(id);
    soon(this.#tell);
  }

  #flush() {
    const news = { ids: this.#changed, reshaped: this.#reshaped };
    this.#changed = new Set();
    this.#reshaped = false;
    for (const watcher of [...this.#watchers]) watcher(news);
  }
}

function positionOf(siblings, id) {
  let low = 0;
  let high = siblings.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (siblings[middle].id < id) low = middle + 1;
    else high = middle;
  }
  return low;
}
