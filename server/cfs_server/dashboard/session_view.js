// One session: what it is called, where it stands, what can be done to it, and one of several views of it.

import { actionsOf } from "./actions.js";
import { place } from "./api.js";
import { changesOf } from "./changes.js";
import { agentColour } from "./colours.js";
import { el, mark, say } from "./dom.js";
import { never, soon } from "./frame.js";
import { icon } from "./icons.js";
import { encoded, lineOf, nameOf, rootOf } from "./ids.js";
import { menuButton } from "./menu.js";
import { stateOf } from "./badges.js";
import { Tabs } from "./tabs.js";
import { t } from "./text.js";
import { VIEWS } from "./views.js";

const PANEL = "panel";
const MOST_TITLE = 200;
const MOST_ASKED = 16; // agents whose messages are searched for files, until the first is found
const WRITES = /^(write|edit)_file$/;

/** The middle of the page. */
export class SessionView extends HTMLElement {
  name = "";
  #context;
  #conversation;
  /** @type {any} */
  #shown = null;
  #asked = "";
  /** The sessions of the tree, from its root. @type {any[]} */
  #family = [];
  #below = 0; // sub-sessions, at any depth
  #files = false;
  #was = "";
  #crumbs = el("nav", { className: "crumbs", "aria-label": t("Path") });
  #title = el("button", { type: "button", className: "title-text", title: t("Change the title"),
    onclick: () => this.#edit() });
  #heading = el("h1", {}, this.#title);
  #state = el("span", { className: "badge" });
  #primary = el("button", { type: "button", className: "button act", hidden: true });
  #menu = menuButton({ label: t("Actions of the session"), className: "icon-button", items: () => this.#items() });
  #note = el("p", { className: "note", role: "status", hidden: true });
  #views = new Tabs(t("Views"), (name) => this.#context.app.go(this.session, name));
  #panel = el("div", { className: "panel", id: PANEL, role: "tabpanel" });
  #unwatch = [];
  #draw = () => this.#update();

  constructor(context, id, view) {
    super();
    this.className = "session";
    this.session = id;
    this.#context = context;
    this.#conversation = context.live.open(id);
    const back = el("button", { type: "button", className: "icon-button back", title: t("Back"), "aria-label": t("Back"),
      onclick: () => context.app.go(null) }, icon("back"));
    const dot = el("span", { className: "dot", "data-agent": agentColour(id), "aria-hidden": "true" });
    const named = el("div", { className: "named" }, this.#crumbs,
      el("div", { className: "together" }, dot, this.#heading, this.#state));
    this.append(el("header", { className: "title" }, back, named, this.#primary, this.#menu), this.#note, this.#views,
      this.#panel);
    this.#primary.addEventListener("click", () => this.#likely?.run());
    this.#title.disabled = !this.#mayWrite;
    this.#drawCrumbs();
    this.turn(view);
  }

  connectedCallback() {
    const { sessions } = this.#context.live;
    const watch = ({ ids, reshaped }) => {
      if (reshaped) {
        this.#family = sessions.family(rootOf(this.session));
        this.#below = sessions.family(this.session).length - 1;
      }
      const written = !this.#files && [...ids].some((id) => rootOf(id) === rootOf(this.session) && wrote(sessions.get(id)));
      this.#files ||= written;
      if (reshaped || written || ids.has(this.session)) soon(this.#draw);
    };
    this.#unwatch = [this.#conversation.watch(() => soon(this.#draw)), sessions.watch(watch)];
    watch({ ids: new Set(), reshaped: true });
  }

  disconnectedCallback() {
    never(this.#draw);
    this.#unwatch.forEach((end) => end());
    this.#shown?.close?.();
    this.#context.live.release(this.#conversation);
  }

  /** Show another view of the same session. @param {string} name */
  turn(name) {
    const { Type, name: found } = VIEWS.find((view) => view.name === name) ?? VIEWS[0];
    if (found === this.name) return;
    this.name = found;
    this.#shown?.close?.();
    this.#shown = new Type({ ...this.#context, id: this.session, conversation: this.#conversation });
    this.#panel.replaceChildren(this.#shown.element ?? this.#shown);
    this.#drawTabs();
    soon(this.#draw);
  }

  /** What the session is called: its title, else what the user wrote first; an agent without a title has its name. */
  #titleText() {
    const { settings } = this.#conversation;
    const first = rootOf(this.session) === this.session ? this.#context.live.sessions.get(this.session)?.title : null;
    return settings?.title || first || nameOf(this.session);
  }

  get #mayWrite() {
    return this.#context.app.rights.mayWrite(this.session);
  }

  #actions() {
    return actionsOf({ ...this.#context, conversation: this.#conversation });
  }

  #items() {
    const title = { label: t("Change the title"), icon: "edit", group: 1, run: () => this.#edit() };
    const actions = [...(this.#mayWrite ? [title] : []), ...this.#actions()];
    const groups = Object.values(Object.groupBy(actions, ({ group }) => String(group)));
    return groups.flatMap((items, index) => (index ? [null, ...(items ?? [])] : (items ?? [])));
  }

  #update() {
    const { gone, error } = this.#conversation;
    const [state, words] = stateOf(this.#conversation, this.#context.live.sessions.get(this.session));
    const title = this.#titleText();
    say(this.#title, title);
    this.#crumbs.hidden = title === this.session;
    say(this.#state, words);
    mark(this.#state, "data-state", state);
    say(this.#note, gone ?? error ?? "");
    this.#note.hidden = (gone ?? error) === null;
    this.#drawPrimary();
    this.#drawTabs();
    const asked = `${state} ${Math.min(MOST_ASKED, this.#family.length)}`; // again when a turn begins or ends, and with more agents
    if (this.#asked === asked) return;
    this.#asked = asked;
    this.#look(this.#family.slice(0, MOST_ASKED));
  }

  /** What one is most likely to want. Where one writes there is a button to stop the turn already. */
  get #likely() {
    return this.#actions().find(({ name, primary }) => primary && (name !== "stop" || this.name !== "conversation"));
  }

  #drawPrimary() {
    const action = this.#likely;
    this.#primary.hidden = action === undefined;
    if (action === undefined || this.#was === action.label) return;
    this.#was = action.label;
    this.#primary.replaceChildren(icon(action.icon), el("span", {}, action.label));
    this.#primary.title = action.hint ?? "";
    mark(this.#primary, "data-action", action.name);
  }

  #drawCrumbs() {
    const line = lineOf(this.session);
    const parts = line.slice(0, -1).flatMap((id) => [
      el("a", { href: `#conversation/${encoded(id)}` }, nameOf(id)), el("span", { "aria-hidden": "true" }, "/")]);
    this.#crumbs.replaceChildren(...parts, el("span", { "aria-current": "page", title: this.session }, nameOf(this.session)));
  }

  #drawTabs() {
    const agents = Math.max(0, this.#below);
    const shown = VIEWS.filter(({ name }) => name === this.name || (name === "agents" ? agents > 0 : name !== "files" || this.#hasFiles()));
    this.#views.show(shown.map(({ name, title, icon: sign }) => ({
      key: name, title, icon: sign, count: name === "agents" ? agents : null,
    })), this.name, PANEL);
    mark(this.#panel, "aria-labelledby", this.#views.idOf(this.name));
  }

  #hasFiles() {
    this.#files ||= changesOf([this.#conversation]).size > 0;
    return this.#files;
  }

  /** Find out whether there are files: in the workspace, or written by agents elsewhere. */
  async #look(family) {
    const { api } = this.#context;
    if (this.#hasFiles()) return;
    const root = rootOf(this.session);
    try {
      const { files } = await api.json(`/v1/files?prefix=${encodeURIComponent(`/workspaces/${root}/`)}&limit=1`);
      this.#files ||= files.length > 0;
    } catch {
      // none that the caller may see
    }
    for (const { id } of family) {
      if (this.#files || !this.isConnected) break;
      if (id === this.session) continue;
      const detail = await api.json(place(id)).catch(() => ({ history: [] }));
      this.#files ||= changesOf([{ id, messages: detail.history, times: new Map() }]).size > 0;
    }
    soon(this.#draw);
  }

  /** Change the title where it stands: Enter and leaving keep it, Escape does not. */
  #edit() {
    const field = el("input", { type: "text", className: "title-field", value: this.#titleText(), maxLength: MOST_TITLE,
      "aria-label": t("Title"), spellcheck: false });
    let open = true;
    const end = async (keep) => {
      if (!open) return;
      open = false;
      const title = field.value.trim();
      const had = this.#titleText();
      const focused = document.activeElement === field;
      this.#heading.replaceChildren(this.#title);
      if (focused) this.#title.focus();
      if (!keep || title === had) return;
      try {
        await this.#context.api.settings(this.session, { title: title || null });
      } catch (error) {
        this.#context.app.announce(error.message);
        say(this.#note, error.message);
        this.#note.hidden = false;
      }
    };
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || (event.key !== "Enter" && event.key !== "Escape")) return;
      event.stopPropagation();
      event.preventDefault();
      end(event.key === "Enter");
    });
    field.addEventListener("blur", () => end(true));
    this.#heading.replaceChildren(field);
    field.focus();
    field.select();
  }

  // As app.js knows a view:
  get id() {
    return this.session;
  }

  get element() {
    return this;
  }

  close() {}
}

/** Whether an agent has written a file, as far as its calls were seen. */
function wrote(node) {
  return node?.calls.some(({ name }) => WRITES.test(name)) ?? false;
}

customElements.define("cfs-session", SessionView);
