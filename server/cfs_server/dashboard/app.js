// The page: the sidebar, one session in the middle, and where one is in the address.

import { el, mark, say } from "./dom.js";
import { icon } from "./icons.js";
import { encoded, lineOf, nameOf } from "./ids.js";
import { openInbox } from "./inbox.js";
import { ask } from "./dialog.js";
import { CfsHome } from "./home.js";
import { Live } from "./live.js";
import { openConnections } from "./connections.js";
import { fit, openPalette } from "./palette.js";
import { SessionView } from "./session_view.js";
import { Shortcuts } from "./shortcuts.js";
import { CfsSidebar } from "./sidebar.js";
import { setTheme } from "./preferences.js";
import { Rights } from "./rights.js";
import { t } from "./text.js";
import { VIEWS } from "./views.js";

const HOME = "new";

/** The application of a user who may use the server. */
export class CfsApp extends HTMLElement {
  #api;
  #me;
  #live;
  #sidebar;
  /** @type {any} the session that is shown, or null for the home view */
  #view = null;
  #lost = false;
  #status = el("div", { className: "unseen", role: "status" });
  #main = el("main", { className: "middle", tabIndex: -1 });
  #onHash = () => this.#show();
  #unfold = el("button", { type: "button", className: "icon-button show-sidebar", "aria-label": t("Show the sidebar"),
    title: t("Show the sidebar"), onclick: () => this.toggleSidebar() }, icon("sidebar"));

  /** @param {any} api @param {any} me @param {() => void} leave */
  constructor(api, me, leave) {
    super();
    this.#api = api;
    this.#me = me;
    this.rights = new Rights(me);
    this.leave = leave;
    this.#live = new Live(api);
    this.#live.onState = (state) => this.#connected(state);
    this.#live.onEvent = (event) => this.#onEvent(event);
    this.#sidebar = new CfsSidebar({ app: this, api, live: this.#live, me });
    this.shortcuts = new Shortcuts([
      { key: "mod+k", label: t("Command palette"), run: () => this.palette() },
      { key: "/", label: t("Search sessions and messages"), run: () => this.#search() },
      { key: "n", label: t("New session"), run: () => this.newSession() },
      { key: "j", label: t("Next session"), run: () => this.#step(1) },
      { key: "k", label: t("Previous session"), run: () => this.#step(-1) },
      { key: "e", label: t("Edit your last message"), run: () => this.#inView("cfs-edit-last") },
      { key: "c", label: t("Write a message"), run: () => this.#inView("cfs-compose") },
      { key: "i", label: t("Inbox"), run: () => this.inbox() },
      { key: "b", label: t("Hide or show the sidebar"), run: () => this.toggleSidebar() },
      { key: "?", label: t("Keyboard shortcuts"), run: () => this.shortcuts.help() },
    ]);
  }

  connectedCallback() {
    this.className = "app";
    this.replaceChildren(this.#sidebar, this.#main, this.#status);
    addEventListener("hashchange", this.#onHash);
    this.shortcuts.start();
    this.#live.start();
    this.#show();
  }

  disconnectedCallback() {
    removeEventListener("hashchange", this.#onHash);
    this.shortcuts.stop();
    this.#view?.close?.();
    this.#live.stop();
  }

  /** Go to a session, or with null to the list; the view stays what it is unless another one is named. */
  go(id, view = this.#view?.name ?? VIEWS[0].name) {
    location.hash = id === null ? "" : `#${view}/${encoded(id)}`;
    this.#show(); // at once: the browser announces the change later, and the next key may come before
  }

  /** Announce something to those who use the page with a screen reader. */
  announce(text) {
    say(this.#status, text);
  }

  /** Begin a session: with a message, or by the palette with a name. */
  newSession() {
    if (!this.rights.mayCreate) return;
    if (location.hash === `#${HOME}`) this.#show();
    else location.hash = `#${HOME}`;
    /** @type {HTMLElement | null} */ (this.querySelector("cfs-home textarea"))?.focus();
  }

  /** Hide the sidebar, or show it again. */
  toggleSidebar() {
    const closed = this.dataset.sidebar === "closed";
    mark(this, "data-sidebar", closed ? null : "closed");
    if (closed) /** @type {HTMLElement | null} */ (this.#sidebar.querySelector(".fold"))?.focus();
    else this.#unfold.focus();
  }

  /** Show the open questions of all sessions. */
  inbox() {
    openInbox({ app: this, api: this.#api, live: this.#live });
  }

  /** Open the command palette. */
  palette() {
    openPalette((query) => this.#entries(query));
  }

  #entries(query) {
    const sessions = [...this.#live.sessions.all()]
      .map((node) => ({ node, score: Math.max(fit(node.id, query), fit(node.title ?? "", query)) }))
      .filter(({ score }) => score > 0)
      .sort((one, other) => other.score - one.score || other.node.updated - one.node.updated)
      .slice(0, 30)
      .map(({ node, score }) => ({ score, label: node.title ?? nameOf(node.id), aside: node.id, icon: "session",
        run: () => this.go(node.id) }));
    const here = this.#view?.id;
    const actions = [
      ...(this.rights.mayCreate ? [{ label: t("New session"), icon: "plus", aside: "N", run: () => this.newSession() }] : []),
      ...(this.rights.isShare ? [] : [{ label: t("New session with a name"), icon: "plus", run: () => this.#create() }]),
      ...(here ? VIEWS.map(({ name, title }) => ({ label: t("Show: {view}", { view: title }), icon: "eye",
        run: () => this.go(here, name) })) : []),
      ...(this.rights.mayManage ? [{ label: t("Models"), icon: "bot", run: () => openConnections(this.#api) }] : []),
      { label: t("Inbox"), icon: "help", aside: "I", run: () => this.inbox() },
      { label: t("Light theme"), icon: "sun", run: () => setTheme("light") },
      { label: t("Dark theme"), icon: "moon", run: () => setTheme("dark") },
      { label: t("Keyboard shortcuts"), icon: "keyboard", aside: "?", run: () => this.shortcuts.help() },
    ].map((action) => ({ ...action, score: fit(action.label, query) }));
    const creating = actions.filter(({ icon }) => icon === "plus");
    if (query === "") return [...creating, ...sessions, ...actions.slice(creating.length)];
    const search = { label: t("Search messages for “{query}”", { query }), icon: "search", run: () => this.#search(query) };
    const fitting = [...sessions, ...actions.filter(({ score }) => score > 0)].sort((one, other) => other.score - one.score);
    return [...fitting, search];
  }

  #search(query = "") {
    if (this.dataset.sidebar === "closed") this.toggleSidebar();
    if (matchMedia("(max-width: 720px)").matches) this.go(null);
    this.#sidebar.search(query);
  }

  #step(step) {
    const next = this.#sidebar.neighbour(step);
    if (next !== null) this.go(next);
  }

  /** Let the view that is shown do something: it listens for the event. */
  #inView(name) {
    this.#main.querySelector(".panel, cfs-home")?.firstElementChild?.dispatchEvent(new CustomEvent(name, { bubbles: true }));
    if (name === "cfs-compose") this.#main.querySelector("textarea")?.focus();
  }

  #show() {
    const [way] = location.hash.slice(1).split("?");
    const [view, ...parts] = way.split("/");
    const id = parts.length ? parts.map(decoded).join("/") : null;
    mark(this, "data-shows", id !== null ? "session" : view === HOME ? "home" : "tree");
    if (this.#view !== null && this.#view.id === id) {
      this.#view.turn(view);
      return;
    }
    if (id === null && this.#view === null && this.#main.querySelector("cfs-home")) return;
    const had = this.#main.contains(document.activeElement);
    this.#view?.close?.();
    this.#view = id === null ? null : new SessionView({ api: this.#api, live: this.#live, app: this, me: this.#me }, id, view);
    document.title = id === null ? "CFS" : `${id} – CFS`;
    const shown = this.#view === null ? new CfsHome({ app: this, api: this.#api, me: this.#me }) : this.#view.element ?? this.#view;
    this.#main.replaceChildren(this.#unfold, shown);
    if (had && !this.#main.contains(document.activeElement)) this.#main.focus();
    this.#sidebar.choose(id);
  }

  #connected(state) {
    const text = { live: t("Live"), lost: t("Connection lost. Reconnecting") }[state];
    this.#sidebar.connected(state, text);
    if (state === "lost") this.announce(text);
    else if (this.#lost) this.announce(t("The connection is back"));
    this.#lost = state === "lost";
  }

  #onEvent({ type, session, data }) {
    if (type === "turn.failed" && session === this.#view?.id) this.announce(t("{session} failed: {error}", { session, error: data.error }));
    if (type === "turn.finished" && session === this.#view?.id) this.announce(t("{session} has answered", { session }));
    if (type === "question.asked") this.announce(t("{session} asks for permission", { session }));
    const movedTo = type === "session.deleted" ? data.renamed_to : undefined;
    if (movedTo && this.#view && lineOf(this.#view.id).includes(session)) {
      this.go(movedTo + this.#view.id.slice(session.length));
    }
  }

  async #create() {
    const made = await ask({
      title: t("New session"),
      label: t("Name"),
      hint: t("Leave the name empty for a random one. To create a sub-session, write parent/child."),
      action: t("Create"),
      work: (id) => this.#api.create(id.trim()),
    });
    if (made) this.go(made.id, "conversation");
  }
}
customElements.define("cfs-app", CfsApp);

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
