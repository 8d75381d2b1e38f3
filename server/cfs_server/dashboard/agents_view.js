// All agents of a tree side by side, a column each: those that work first get one.

import { COLOURS, OUTCOMES, SIGNS, stateOf } from "./badges.js";
import { agentColour } from "./colours.js";
import { button, el, mark, say } from "./dom.js";
import { never, soon } from "./frame.js";
import { icon } from "./icons.js";
import { encoded, nameOf } from "./ids.js";
import { MessageList } from "./message_list.js";
import { Questions } from "./questions.js";
import { aboutOf } from "./node.js";
import { outcomeOf, runningCall } from "./outcome.js";
import { many, t } from "./text.js";
import { duration, short } from "./times.js";
import { WorkView } from "./work.js";

const FIRST = 12;
const MORE = 12;
const KEPT = "cfs.columns"; // whether columns show calls with all details
const TICK = 1000; // milliseconds after which times that pass are shown anew

/** Columns of a session and what is below it. A column that is out of sight is not drawn by the browser. */
export class AgentsView extends HTMLElement {
  #context;
  /** @type {Map<string, Column>} */
  #columns = new Map();
  #most = FIRST;
  #only = ""; // the state of those that are shown, or all
  #stale = true;
  /** Those of the tree, parents first. @type {any[]} */
  #family = [];
  #busy = "";
  #brief;
  #told = el("p", { className: "quiet figure" });
  #choice = el("div", { className: "segments", role: "group", "aria-label": t("Agents that are shown") });
  #row = el("div", { className: "columns", tabIndex: 0, role: "region", "aria-label": t("Agents side by side") });
  #nothing = el("p", { className: "nothing", hidden: true });
  #more = button("", () => this.#showMore());
  #unwatch = () => {};
  #timer = 0;
  #draw = () => this.#update();

  constructor(context) {
    super();
    this.className = "agents";
    this.#context = context;
    const choices = [["", t("All")], ["busy", t("Working")], ["done", t("Done")]];
    this.#choice.append(...choices.map(([only, words]) =>
      button(words, () => this.#narrow(only), { className: "segment", "aria-pressed": only === "", "data-only": only })));
    this.#brief = el("button", { type: "button", className: "button", "aria-pressed": "false", onclick: () => this.#shorten() },
      t("Details"));
    this.append(el("div", { className: "bar-of" }, this.#told, el("span", { className: "space" }), this.#brief, this.#choice), this.#row,
      this.#nothing, this.#more);
  }

  connectedCallback() {
    this.#drawBrief();
    this.#family = this.#context.live.sessions.family(this.#context.id);
    this.#stale = true;
    this.#unwatch = this.#context.live.sessions.watch(({ ids, reshaped }) => {
      if (reshaped) this.#family = this.#context.live.sessions.family(this.#context.id);
      this.#stale ||= reshaped;
      for (const id of ids) this.#columns.get(id)?.touch();
      soon(this.#draw);
    });
    this.#timer = setInterval(() => {
      for (const column of this.#columns.values()) column.tick();
    }, TICK);
    soon(this.#draw);
  }

  disconnectedCallback() {
    never(this.#draw);
    clearInterval(this.#timer);
    this.#unwatch();
    for (const column of this.#columns.values()) column.remove();
    this.#columns.clear();
  }

  #showMore() {
    this.#most += MORE;
    this.#stale = true;
    this.#update();
  }

  /** Show what ended calls were asked and answered, or only their names. */
  #shorten() {
    if (localStorage.getItem(KEPT) === null) localStorage.setItem(KEPT, "full");
    else localStorage.removeItem(KEPT);
    this.#drawBrief();
  }

  #drawBrief() {
    const full = localStorage.getItem(KEPT) !== null;
    mark(this.#brief, "aria-pressed", full);
    mark(this.#row, "data-brief", full ? null : "");
  }

  #narrow(only) {
    this.#only = only;
    for (const each of this.#choice.children) mark(each, "aria-pressed", /** @type {HTMLElement} */ (each).dataset.only === only);
    this.#stale = true;
    this.#update();
  }

  #update() {
    const family = this.#family;
    const busy = family.filter((node) => node.busy);
    const works = busy.map(({ id }) => id).join("\n");
    if (this.#stale || works !== this.#busy) this.#arrange(family, busy);
    this.#stale = false;
    this.#busy = works;
    const tokens = family.reduce((sum, node) => sum + node.spent, 0);
    const parts = [many("{n} agent", "{n} agents", family.length), t("{n} working", { n: busy.length })];
    const waiting = family.filter((node) => node.state === "waiting_for_agent").length;
    if (waiting) parts.push(t("{n} waiting", { n: waiting }));
    parts.push(t("{n} tokens", { n: short(tokens) }));
    say(this.#told, parts.join(" · "));
  }

  #arrange(family, busy) {
    const wanted = this.#only === "" ? family : this.#only === "busy" ? busy : family.filter((node) => node.state === "idle");
    const shown = this.#chosen(wanted);
    const ids = new Set(shown.map((node) => node.id));
    for (const [id, column] of this.#columns) {
      if (ids.has(id)) continue;
      column.remove();
      this.#columns.delete(id);
    }
    shown.forEach((node, index) => {
      const column = this.#columns.get(node.id) ?? new Column(this.#context, node);
      this.#columns.set(node.id, column);
      column.node = node;
      if (this.#row.children[index] !== column) this.#row.insertBefore(column, this.#row.children[index] ?? null);
      column.touch();
    });
    const rest = wanted.length - shown.length;
    this.#more.hidden = rest === 0;
    say(this.#more, t("Show more ({n})", { n: rest }));
    this.#nothing.hidden = shown.length > 0;
    this.#row.hidden = shown.length === 0;
    say(this.#nothing, this.#only === "busy" ? t("No agent of this tree works at the moment.")
      : t("The agents that this session starts appear here side by side."));
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

/** One agent: its name, what it does and for how long, its messages, and how it ended. */
class Column extends HTMLElement {
  node;
  #context;
  #conversation;
  #list;
  #questions;
  #badge = el("span", { className: "badge" });
  #doing = el("p", { className: "doing" });
  #figures = el("span", { className: "quiet figure" });
  #ended = el("div", { className: "ended", hidden: true });
  #work = new WorkView();
  #shown = "";
  /** @type {(() => void) | null} */
  #unwatch = null;
  #draw = () => this.#update();

  constructor(context, node) {
    super();
    this.node = node;
    this.#context = context;
    this.#conversation = context.live.open(node.id);
    this.#list = new MessageList(this.#conversation);
    this.#questions = new Questions(context, node.id);
    const name = el("a", { href: `#conversation/${encoded(node.id)}`, title: node.id }, nameOf(node.id));
    this.className = "column";
    this.role = "group";
    this.ariaLabel = node.id;
    mark(this, "data-agent", agentColour(node.id));
    this.append(
      el("header", {}, el("div", { className: "together" }, el("span", { className: "dot", "aria-hidden": "true" }), el("h2", {}, name),
        this.#badge), el("div", { className: "together" }, this.#doing, this.#figures)),
      this.#work,
      this.#list,
      this.#questions,
      this.#ended,
    );
  }

  connectedCallback() {
    this.#unwatch ??= this.#conversation.watch(() => soon(this.#draw));
    soon(this.#draw);
  }

  disconnectedCallback() {
    if (this.isConnected) return; // it has only been moved
    never(this.#draw);
    this.#unwatch?.();
    this.#context.live.release(this.#conversation);
  }

  /** Something that the tree knows of it has changed. */
  touch() {
    soon(this.#draw);
  }

  /** Time has passed. */
  tick() {
    if (this.node.busy) this.#drawDoing();
  }

  #update() {
    const [state, words] = stateOf(this.#conversation, this.node);
    this.#questions.show(this.#conversation.questions);
    mark(this, "data-state", this.node.state);
    mark(this.#badge, "data-state", state);
    say(this.#badge, words);
    say(this.#figures, this.node.spent ? t("{n} tokens", { n: short(this.node.spent) }) : "");
    this.#work.show(this.#conversation.work);
    this.#drawDoing();
    this.#drawOutcome();
  }

  #drawDoing() {
    const { busy } = this.node;
    const call = busy ? runningCall(this.#conversation) : null;
    const turn = this.node.turn && this.node.turns.get(this.node.turn.id);
    const last = this.#conversation.timeOf(this.#conversation.messages.length - 1) ?? 0; // it writes since then
    const since = call?.since ?? (turn?.end === null ? Math.max(turn.start, last) : null);
    const passed = since === null ? "" : duration(Math.max(0, Date.now() / 1000 - since));
    const what = call ? [call.name, aboutOf(call.arguments)].filter(Boolean).join(" ") : this.node.tool ?? t("writes");
    say(this.#doing, busy ? [what, passed].filter(Boolean).join(" · ") : "");
  }

  #drawOutcome() {
    const outcome = this.#conversation.settings?.driver === "agent" ? outcomeOf(this.#conversation) : null;
    const shown = outcome === null ? "" : `${outcome.kind}\n${outcome.text}`;
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#ended.hidden = outcome === null;
    if (outcome === null) return;
    mark(this.#ended, "data-state", COLOURS[outcome.kind]);
    this.#ended.replaceChildren(
      el("strong", {}, icon(SIGNS[outcome.kind]), OUTCOMES[outcome.kind]),
      el("p", { title: outcome.text }, outcome.text.slice(0, 600)),
    );
  }
}

customElements.define("cfs-agents", AgentsView);
customElements.define("cfs-agent-column", Column);
