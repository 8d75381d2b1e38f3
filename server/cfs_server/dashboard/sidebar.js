// The sidebar: a new session, the search, the tree of sessions, and who one is.

import { button, el, mark, say } from "./dom.js";
import { icon } from "./icons.js";
import { encoded } from "./ids.js";
import { menuButton } from "./menu.js";
import { openConnections } from "./connections.js";
import { openCosts } from "./costs.js";
import { InboxButton } from "./inbox.js";
import { preferenceItems } from "./preferences.js";
import { many, t } from "./text.js";
import { ago } from "./times.js";
import { TreeView } from "./tree_view.js";

const PAUSE = 250; // milliseconds without a key before the messages are searched
const SHORTEST = 2;

/** The navigation at the side. */
export class CfsSidebar extends HTMLElement {
  #app;
  #api;
  #live;
  #me;
  #tree;
  #field = el("input", { type: "search", placeholder: t("Search"), "aria-label": t("Search sessions and messages"),
    spellcheck: false, oninput: () => this.#typed() });
  #working = el("button", { type: "button", className: "icon-button", "aria-pressed": "false",
    "aria-label": t("Show only working sessions"), title: t("Show only working sessions"), onclick: () => this.#narrow() },
    icon("bot"));
  #found = el("section", { className: "found", "aria-label": t("Messages found"), hidden: true });
  #connection = el("span", { className: "connection" }, t("Connecting"));
  #count = el("span", { className: "quiet" });
  #asked = 0;
  #timer = 0;
  #unwatch = () => {};

  /** @param {{ app: any, api: any, live: any, me: any }} context */
  constructor({ app, api, live, me }) {
    super();
    this.#app = app;
    this.#api = api;
    this.#live = live;
    this.#me = me;
    this.#tree = new TreeView(live.sessions, (id) => app.go(id));
  }

  connectedCallback() {
    this.className = "side";
    this.setAttribute("role", "navigation");
    this.setAttribute("aria-label", t("Sessions"));
    this.#unwatch = this.#live.sessions.watch(() => this.#counted());
    this.#field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.#field.value = "";
      this.#typed();
      this.#field.blur();
    });
    this.append(
      el("div", { className: "side-top" },
        el("a", { className: "brand", href: "#" }, el("img", { src: "dashboard/icon.svg", alt: "" }), "CFS"),
        el("span", { className: "space" }),
        new InboxButton({ app: this.#app, api: this.#api, live: this.#live }), this.#working,
        el("button", { type: "button", className: "icon-button fold", "aria-label": t("Hide the sidebar"),
          title: t("Hide the sidebar"), onclick: () => this.#app.toggleSidebar() }, icon("sidebar"))),
      el("div", { className: "side-actions" },
        button("", () => this.#app.newSession(), { className: "button new", "aria-label": t("New session"),
          hidden: !this.#app.rights.mayCreate }),
        el("div", { className: "find" }, icon("search"), this.#field)),
      this.#tree.element,
      this.#found,
      el("div", { className: "side-foot" },
        el("div", { className: "about" }, el("span", { className: "quiet me" }, this.#me.name), this.#connection),
        this.#count,
        menuButton({ label: t("Menu"), content: [icon("settings")], items: () => this.#items() })),
    );
    this.querySelector(".new")?.append(icon("plus"), t("New session"), el("kbd", { className: "kbd", "aria-hidden": "true" }, "N"));
  }

  disconnectedCallback() {
    this.#unwatch();
    this.#tree.close();
    clearTimeout(this.#timer);
  }

  /** Mark the session that is shown. */
  choose(id) {
    this.#tree.choose(id);
  }

  /** The session above or below the one that is shown. */
  neighbour(step) {
    return this.#tree.neighbour(step);
  }

  /** Put the cursor into the search field, and search for a text if there is one. */
  search(query = "") {
    if (query !== "") {
      this.#field.value = query;
      this.#typed();
    }
    this.#field.focus();
    this.#field.select();
  }

  /** Show how the connection to the server is. */
  connected(state, text) {
    say(this.#connection, text);
    mark(this.#connection, "data-state", state);
    if (state === "live" && this.#found.querySelector(".complaint")) this.#typed(); // the search has failed without it
  }

  #items() {
    const items = [
      { label: t("Keyboard shortcuts"), icon: "keyboard", key: "?", run: () => this.#app.shortcuts.help() },
      { label: t("Command palette"), icon: "search", key: "Ctrl K", run: () => this.#app.palette() },
      ...(this.#app.rights.mayManage ? [{ label: t("Models"), icon: "bot", run: () => openConnections(this.#api) }] : []),
      { label: t("Costs"), icon: "history", run: () => openCosts(this.#api) },
      null,
      ...preferenceItems(),
    ];
    if (this.#api.token !== null) items.push(null, { label: t("Log out"), icon: "logout", run: () => this.#app.leave() });
    return items;
  }

  #counted() {
    say(this.#count, many("{n} session", "{n} sessions", this.#live.sessions.size));
  }

  #narrow() {
    mark(this.#working, "aria-pressed", this.#working.getAttribute("aria-pressed") !== "true");
    this.#typed();
  }

  #typed() {
    this.#tree.narrow(this.#field.value, this.#working.getAttribute("aria-pressed") === "true");
    clearTimeout(this.#timer);
    const query = this.#field.value.trim();
    this.#asked += 1;
    if (query.length < SHORTEST) this.#found.hidden = true;
    else this.#timer = setTimeout(() => this.#ask(query, this.#asked), PAUSE);
  }

  /** Search the messages; an answer that comes after the next question is dropped. */
  async #ask(query, number) {
    let content;
    try {
      const { results, truncated } = await this.#api.search(query);
      const title = truncated ? t("{n} and more messages", { n: results.length }) : many("{n} message", "{n} messages", results.length);
      content = [el("h2", {}, title), el("ol", {}, ...results.map(resultOf))];
    } catch (error) {
      content = [el("p", { className: "complaint", role: "alert" }, error.message)];
    }
    if (number !== this.#asked) return;
    this.#found.replaceChildren(...content);
    this.#found.hidden = false;
  }
}
customElements.define("cfs-sidebar", CfsSidebar);

function resultOf({ kind, session, title, index, time, text, ranges, path }) {
  const excerpt = el("span", { className: "excerpt" });
  const signs = Array.from(text); // ranges count characters, as Python does
  const piece = (from, to) => signs.slice(from, to).join("");
  let from = 0;
  for (const [start, end] of ranges) {
    excerpt.append(piece(from, start), el("mark", {}, piece(start, end)));
    from = end;
  }
  excerpt.append(piece(from));
  const when = time ? ` · ${ago(time)}` : "";
  const href = { message: `#conversation/${encoded(session)}?message=${index}`, title: `#conversation/${encoded(session)}`,
    file: `#files/${encoded(session)}` }[kind];
  const name = kind === "file" ? `${session}/${path}:${index}` : title ?? session;
  return el("li", {}, el("a", { href, title: session },
    el("span", {}, name, el("span", { className: "quiet" }, when)), excerpt));
}
