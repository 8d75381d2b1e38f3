// The page: the tree at the side, one session in the middle, and where one is in the address.

import { button, el, mark, say } from "./dom.js";
import { ask } from "./dialog.js";
import { lineOf } from "./ids.js";
import { Live } from "./live.js";
import { SessionView } from "./session_view.js";
import { VIEWS } from "./views.js";
import { TreeView } from "./tree_view.js";

const CONNECTION = { live: "Live", lost: "Connection lost. Reconnecting" };

/** The application of somebody who may use the server. */
export class App {
  #api;
  #live;
  #tree;
  #view = null;
  #connection = el("span", { className: "connection" }, "Connecting");
  #count = el("span", { className: "quiet" });
  #status = el("div", { className: "unseen", role: "status" });
  #main = el("main", { className: "middle", tabIndex: -1 });
  #onHash = () => this.#show();

  constructor(api, me, leave) {
    this.#api = api;
    this.#live = new Live(api);
    this.#live.onState = (state) => this.#connected(state);
    this.#live.onEvent = (event) => this.#heard(event);
    this.#tree = new TreeView(this.#live.sessions, (id) => this.go(id));
    this.#live.sessions.watch(() => this.#counted());
    const filter = el("input", { type: "search", placeholder: "Find", "aria-label": "Find sessions", spellcheck: false });
    const working = el("input", { type: "checkbox" });
    const narrow = () => this.#tree.narrow(filter.value, working.checked);
    filter.addEventListener("input", narrow);
    working.addEventListener("change", narrow);
    this.element = el(
      "div",
      { className: "app" },
      el(
        "header",
        { className: "top" },
        el("a", { className: "brand", href: "#" }, "CFS"),
        this.#connection,
        this.#count,
        el("span", { className: "space" }),
        el("span", { className: "quiet me" }, me.name),
        button("New session", () => this.#create(), { className: "button primary" }),
        api.token === null ? null : button("Log out", leave),
      ),
      el(
        "nav",
        { className: "side", "aria-label": "Sessions" },
        el("div", { className: "filter" }, filter, el("label", {}, working, " working")),
        this.#tree.element,
      ),
      this.#main,
      this.#status,
    );
  }

  start() {
    addEventListener("hashchange", this.#onHash);
    this.#live.start();
    this.#show();
  }

  close() {
    removeEventListener("hashchange", this.#onHash);
    this.#view?.close();
    this.#live.stop();
  }

  /** Go to a session; the view stays what it is unless another one is named. */
  go(id, view = this.#view?.name ?? VIEWS[0].name) {
    location.hash = id === null ? "" : `#${view}/${id.split("/").map(encodeURIComponent).join("/")}`;
  }

  /** Say something to those who listen to the page instead of looking at it. */
  announce(text) {
    say(this.#status, text);
  }

  #show() {
    const [view, ...parts] = location.hash.slice(1).split("/");
    const id = parts.length ? parts.map(decoded).join("/") : null;
    mark(this.element, "data-shows", id === null ? "tree" : "session");
    if (this.#view?.id === id && id !== null) {
      this.#view.turn(view);
      return;
    }
    const had = this.#main.contains(document.activeElement);
    this.#view?.close();
    this.#view = id === null ? null : new SessionView({ api: this.#api, live: this.#live, app: this }, id, view);
    document.title = id === null ? "CFS" : `${id} – CFS`;
    this.#main.replaceChildren(this.#view?.element ?? welcome());
    if (had) this.#main.focus();
    this.#tree.choose(id);
  }

  #connected(state) {
    say(this.#connection, CONNECTION[state]);
    mark(this.#connection, "data-state", state);
    if (state === "lost") this.announce(CONNECTION.lost);
  }

  #counted() {
    const { size } = this.#live.sessions;
    say(this.#count, size === 1 ? "1 session" : `${size} sessions`);
  }

  #heard({ type, session, data }) {
    if (type === "turn.failed" && session === this.#view?.id) this.announce(`${session} failed: ${data.error}`);
    if (type === "turn.finished" && session === this.#view?.id) this.announce(`${session} has answered`);
    const movedTo = type === "session.deleted" ? data.renamed_to : undefined;
    if (movedTo && this.#view && lineOf(this.#view.id).includes(session)) {
      this.go(movedTo + this.#view.id.slice(session.length));
    }
  }

  async #create() {
    const made = await ask({
      title: "New session",
      label: "Name",
      hint: "Leave the name empty for a random one. To create a sub-session, write parent/child.",
      action: "Create",
      work: (id) => this.#api.create(id.trim()),
    });
    if (made) this.go(made.id, "conversation");
  }
}

function welcome() {
  return el("p", { className: "nothing" }, "Select a session or create a new one.");
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
