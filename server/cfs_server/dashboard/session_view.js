// One session: where it stands, what can be done to it, and one of several views of it.

import { actionsOf } from "./actions.js";
import { button, el, mark, say } from "./dom.js";
import { nameOf, parentOf, rootOf } from "./ids.js";
import { soon, never } from "./frame.js";
import { Tabs } from "./tabs.js";
import { VIEWS } from "./views.js";

const MOST_TABS = 40;
const PANEL = "panel";

/** The middle of the page. */
export class SessionView {
  name;
  #context;
  #conversation;
  #shown = null;
  #heading = el("h1", {});
  #state = el("span", { className: "badge" });
  #note = el("p", { className: "note", hidden: true });
  #family = new Tabs("Sessions of this tree", "family", (id) => this.#context.app.go(id));
  #views = new Tabs("Views", "views", (name) => this.#context.app.go(this.id, name));
  #panel = el("div", { className: "panel", id: PANEL, role: "tabpanel" });
  #actions;
  #unwatch = [];
  #draw = () => this.#update();

  constructor(context, id, view) {
    this.id = id;
    this.#context = context;
    this.#conversation = context.live.open(id);
    this.#actions = actionsOf({ ...context, conversation: this.#conversation });
    this.element = el(
      "div",
      { className: "session" },
      el(
        "div",
        { className: "title" },
        button("Back", () => context.app.go(null), { className: "button back" }),
        this.#heading,
        this.#state,
        el("div", { className: "actions", role: "group", "aria-label": "Actions" }, this.#actions.elements),
      ),
      this.#note,
      this.#family.element,
      this.#views.element,
      this.#panel,
    );
    this.#heading.append(...crumbs(id));
    this.#unwatch.push(this.#conversation.watch(() => soon(this.#draw)));
    this.#unwatch.push(context.live.sessions.watch(() => soon(this.#draw)));
    this.turn(view);
    soon(this.#draw);
  }

  close() {
    never(this.#draw);
    this.#shown?.close();
    this.#unwatch.forEach((end) => end());
    this.#context.live.release(this.#conversation);
  }

  /** Show another view of the same session. */
  turn(name) {
    const { Type, name: found } = VIEWS.find((view) => view.name === name) ?? VIEWS[0];
    if (found === this.name) return;
    this.name = found;
    this.#shown?.close();
    this.#shown = new Type({ ...this.#context, id: this.id, conversation: this.#conversation });
    this.#panel.replaceChildren(this.#shown.element);
    const items = VIEWS.map((view) => ({ key: view.name, title: view.title }));
    this.#views.show(items, found, PANEL);
    mark(this.#panel, "aria-labelledby", this.#views.idOf(found));
  }

  #update() {
    const { gone, error, state } = this.#conversation;
    const paused = this.#conversation.settings?.paused;
    say(this.#state, gone ? "gone" : paused ? "paused" : { idle: "idle", generating: "working",
      waiting_for_agent: "waits for an agent" }[state]);
    mark(this.#state, "data-state", gone ? "gone" : paused ? "paused" : state);
    say(this.#note, gone ?? error ?? "");
    this.#note.hidden = (gone ?? error) === null;
    this.#actions.update();
    this.#drawFamily();
  }

  #drawFamily() {
    const family = this.#context.live.sessions.family(rootOf(this.id));
    let shown = family.slice(0, MOST_TABS);
    const own = family.find((node) => node.id === this.id);
    if (own && !shown.includes(own)) shown = [...shown.slice(0, -1), own];
    this.#family.element.hidden = family.length < 2;
    const items = shown.map((node) => ({ key: node.id, title: nameOf(node.id), state: node.state }));
    this.#family.show(items, this.id, PANEL);
  }
}

/** The way from the root to a session; those above it are links. */
function crumbs(id) {
  const parts = [];
  for (let above = parentOf(id); above !== null; above = parentOf(above)) {
    const way = above.split("/").map(encodeURIComponent).join("/");
    parts.unshift(el("a", { href: `#conversation/${way}` }, nameOf(above)), " / ");
  }
  return [...parts, nameOf(id)];
}
