// Who ran when: a lane for each session, a bar for each turn, a mark for each call of a tool and each question.

import { agentColour } from "./colours.js";
import { el, mark, say } from "./dom.js";
import { afterwards, never, soon } from "./frame.js";
import { icon } from "./icons.js";
import { encoded, nameOf } from "./ids.js";
import { inTurn } from "./listing.js";
import { readPast } from "./past.js";
import { language, many, t } from "./text.js";
import { duration, short } from "./times.js";
import { clustered, isWhole, marks, moved, position, within, zoomed } from "./timeline_scale.js";

const REDRAW = 500; // milliseconds
const MOST = 300; // lanes whose past is read, and rows of the table
const NEAR = 4; // lanes beyond the edge that are drawn
const APART = 14; // pixels between two marks of calls
const LEAST = 6; // pixels of a bar
const STEP = 0.15; // how much of what is seen the arrow keys move
const REASONS = { stop: t("finished"), length: t("cut off"), error: t("failed"), cancelled: t("cancelled"),
  tool_calls: t("finished") };

/** The run of a session and everything below it: as a picture that can be zoomed, and as a table. */
export class TimelineView extends HTMLElement {
  #context;
  #whole = { from: 0, to: 1 };
  /** What is seen; null for all of it. @type {import("./timeline_scale.js").Span | null} */
  #seen = null;
  #follows = false; // what is seen moves on with the present
  /** @type {Map<string, Lane>} */
  #lanes = new Map();
  /** @type {any[]} */
  #family = [];
  #stale = true;
  /** The item that gets the focus once it is drawn. @type {{ session: string, key: string } | null} */
  #wanted = null;
  #axis = el("div", { className: "axis", "aria-hidden": "true" });
  #rows = el("div", { className: "lanes" });
  #now = el("div", { className: "now", "aria-hidden": "true", hidden: true });
  #tip = el("div", { className: "tooltip tip", role: "tooltip", id: "tip", hidden: true });
  #nothing = el("p", { className: "nothing", hidden: true },
    t("When each agent works and which tools it calls appears here after the first turn."));
  #told = el("p", { className: "quiet figure" });
  #table = el("tbody");
  #details;
  #all;
  #chart;
  #fingers = new Map();
  #unwatch = () => {};
  #timer = 0;
  #draw = () => this.#update();
  #sized = new ResizeObserver(() => this.#again());

  constructor(context) {
    super();
    this.className = "timeline";
    this.#context = context;
    const act = (name, label, onclick) => el("button", { type: "button", className: "icon-button", title: label,
      "aria-label": label, onclick }, icon(name));
    this.#all = el("button", { type: "button", className: "button", onclick: () => this.#fit() }, t("Show all"));
    const tools = el("div", { className: "tools", role: "group", "aria-label": t("Zoom") },
      act("minus", t("Zoom out"), () => this.#zoom(2)), act("plus", t("Zoom in"), () => this.#zoom(0.5)), this.#all);
    const legend = el("ul", { className: "legend", "aria-label": t("Legend") },
      ...[["turn", t("turn")], ["tick", t("tool call")], ["ask", t("question")], ["failed", t("failed")]].map(([kind, words]) =>
        el("li", { "data-kind": kind }, words)));
    this.#chart = el("div", { className: "chart", tabIndex: 0, role: "region",
      "aria-label": t("Timeline: the arrow keys go from bar to bar, plus and minus zoom, zero shows all") },
      this.#axis, this.#rows);
    this.#rows.append(this.#now);
    const heads = [t("Session"), t("Started"), t("Duration"), t("Tokens"), t("Calls"), t("Ended")];
    this.#details = el("details", { className: "as-table", ontoggle: () => this.#drawTable() },
      el("summary", {}, t("Show as a table")),
      el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": t("Turns") },
        el("table", {}, el("thead", {}, el("tr", {}, heads.map((name) => el("th", { scope: "col" }, name)))), this.#table)));
    this.append(el("div", { className: "bar-of" }, this.#told, legend, el("span", { className: "space" }), tools), this.#chart,
      this.#nothing, this.#details, this.#tip);
    this.#listen();
  }

  connectedCallback() {
    this.#unwatch = this.#context.live.sessions.watch(() => (this.#stale = true));
    this.#timer = setInterval(() => soon(this.#draw), REDRAW);
    this.#sized.observe(this.#chart);
    this.#remember();
    soon(this.#draw);
  }

  disconnectedCallback() {
    clearInterval(this.#timer);
    never(this.#draw);
    this.#sized.disconnect();
    this.#unwatch();
  }

  async #remember() {
    const family = this.#context.live.sessions.family(this.#context.id).slice(0, MOST);
    await inTurn(family, async (node) => {
      await readPast(this.#context.api, node);
      this.#context.live.sessions.touch(node.id);
    });
  }

  // -- what is seen ------------------------------------------------------------------------------------------------

  #again() {
    this.#stale = true;
    soon(this.#draw);
  }

  #fit() {
    this.#seen = null;
    this.#again();
  }

  /** @param {number} factor @param {number} [at] the time that stays where it is */
  #zoom(factor, at) {
    const seen = this.#seen ?? this.#whole;
    const middle = at ?? (this.#follows || this.#seen === null ? this.#whole.to : (seen.from + seen.to) / 2);
    this.#see(zoomed(seen, this.#whole, factor, this.#running ? middle : at));
  }

  #see(seen) {
    this.#seen = isWhole(seen, this.#whole) ? null : seen;
    this.#follows = this.#running && seen.to >= this.#whole.to - (seen.to - seen.from) * 0.01;
    this.#again();
  }

  #move(seconds) {
    this.#see(moved(this.#seen ?? this.#whole, this.#whole, seconds));
  }

  get #running() {
    return this.#family.some((node) => node.busy);
  }

  get #width() {
    return Math.max(80, this.#rows.clientWidth - this.#left);
  }

  /** Where the tracks begin: beside the names, or on a phone below them. */
  get #left() {
    return parseFloat(getComputedStyle(this.#chart).getPropertyValue("--names")) || 0;
  }

  // -- drawing -----------------------------------------------------------------------------------------------------

  #update() {
    const family = this.#context.live.sessions.family(this.#context.id);
    this.#family = family;
    if (family.slice(0, MOST).some((node) => !node.pastRead && node.event > 0)) this.#remember();
    const running = this.#running;
    if (!this.#stale && !running) return;
    this.#stale = false;
    const now = Date.now() / 1000;
    const times = family.flatMap((node) => [...node.turns.values()].map((turn) => [turn.start, endOf(turn, node, now)]));
    this.#nothing.hidden = times.length > 0;
    this.#chart.hidden = times.length === 0;
    this.#details.hidden = times.length === 0;
    this.#all.disabled = this.#seen === null;
    if (!times.length) {
      say(this.#told, "");
      return;
    }
    this.#measure(times, running, now);
    this.#drawLanes(now, running);
    if (this.#details.open) this.#drawTable();
  }

  #measure(times, running, now) {
    const from = times.reduce((least, [start]) => Math.min(least, start), Infinity);
    const to = Math.max(times.reduce((most, [, end]) => Math.max(most, end), -Infinity), running ? now : 0, from + 0.5);
    const rest = (to - from) * 0.02;
    const before = this.#whole.to;
    this.#whole = { from: from - rest, to: to + rest };
    if (this.#seen && this.#follows && running) this.#seen = moved(this.#seen, this.#whole, this.#whole.to - before);
    else if (this.#seen) this.#seen = within(this.#seen, this.#whole);
    const span = this.#seen === null ? to - from : this.#seen.to - this.#seen.from;
    say(this.#told, [many("{n} session", "{n} sessions", this.#family.length), duration(span)].join(" · "));
  }

  #drawLanes(now, running) {
    const seen = this.#seen ?? this.#whole;
    const width = this.#width;
    const left = this.#left;
    const height = this.#laneHeight();
    const first = Math.max(0, Math.floor(this.#rows.scrollTop / height) - NEAR);
    const last = Math.min(this.#family.length, Math.ceil((this.#rows.scrollTop + this.#rows.clientHeight) / height) + NEAR);
    const shown = new Set();
    for (let index = first; index < last; index++) {
      const node = this.#family[index];
      shown.add(node.id);
      const lane = this.#lanes.get(node.id) ?? this.#laneOf(node);
      lane.place(index * height);
      lane.draw(node, seen, width, now);
    }
    for (const [id, lane] of this.#lanes) {
      if (shown.has(id) || lane.element.contains(document.activeElement)) continue;
      lane.element.remove();
      this.#lanes.delete(id);
    }
    this.#rows.style.setProperty("--height", `${this.#family.length * height}px`);
    this.#drawAxis(seen, width, left);
    const at = position(seen, width, now);
    this.#now.hidden = !running || at < 0 || at > width;
    this.#now.style.transform = `translateX(${left + at}px)`;
    if (this.#wanted !== null) afterwards(() => this.#focusWanted());
  }

  #laneHeight() {
    return parseFloat(getComputedStyle(this.#chart).getPropertyValue("--lane")) || 36;
  }

  #laneOf(node) {
    const lane = new Lane(node, this.#context.id);
    this.#lanes.set(node.id, lane);
    this.#rows.append(lane.element);
    return lane;
  }

  #drawAxis(seen, width, left) {
    const offset = -new Date(seen.from * 1000).getTimezoneOffset() * 60;
    const { step, times } = marks(seen, width, offset);
    this.#axis.replaceChildren(...times.map((time) => {
      const made = el("span", {}, labelOf(time, step));
      made.style.transform = `translateX(${left + position(seen, width, time)}px)`;
      return made;
    }));
  }

  #drawTable() {
    if (!this.#details.open) return;
    const now = Date.now() / 1000;
    const all = this.#family.flatMap((node) => [...node.turns.values()].map((turn) => ({ node, turn, until: endOf(turn, node, now) })));
    const shown = all.sort((one, other) => one.turn.start - other.turn.start).slice(-MOST);
    this.#table.replaceChildren(...shown.map(({ node, turn, until }) => {
      const calls = node.calls.filter(({ time }) => time >= turn.start && time <= until).length;
      const cells = [exactly(turn.start), duration(until - turn.start), turn.tokens || "", calls || "", reasonOf(turn, node)];
      return el("tr", { "data-agent": agentColour(node.id) },
        el("td", {}, el("span", { className: "dot" }), " ", el("a", { href: `#conversation/${encoded(node.id)}` }, node.id)),
        cells.map((cell) => el("td", { className: "figure" }, String(cell))));
    }));
  }

  // -- mouse, touch and keys ---------------------------------------------------------------------------------------

  #listen() {
    this.#rows.addEventListener("scroll", () => this.#again());
    this.#chart.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    this.#chart.addEventListener("keydown", (event) => this.#key(event));
    this.#chart.addEventListener("pointerdown", (event) => this.#down(event));
    this.#chart.addEventListener("pointermove", (event) => this.#drag(event));
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
      this.#chart.addEventListener(end, (event) => this.#fingers.delete(/** @type {PointerEvent} */ (event).pointerId));
    }
    this.#chart.addEventListener("pointerover", (event) => this.#point(event.target));
    this.#chart.addEventListener("pointerleave", (event) => {
      if (!this.#chart.hasPointerCapture(event.pointerId)) this.#fingers.delete(event.pointerId);
      this.#point(document.activeElement);
    });
    this.#chart.addEventListener("focusin", (event) => this.#point(event.target));
    this.#chart.addEventListener("focusout", () => this.#point(null));
    this.#chart.addEventListener("click", (event) => {
      const item = itemAt(event.target);
      if (item) this.#context.app.go(item.session, "conversation");
    });
  }

  /** @param {number} x of the mouse */
  #timeAt(x) {
    const seen = this.#seen ?? this.#whole;
    const at = (x - this.#rows.getBoundingClientRect().left - this.#left) / this.#width;
    return seen.from + Math.min(1, Math.max(0, at)) * (seen.to - seen.from);
  }

  /** @param {WheelEvent} event */
  #wheel(event) {
    const sideways = event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX;
    const seen = this.#seen ?? this.#whole;
    if (event.ctrlKey || event.metaKey) {
      this.#see(zoomed(seen, this.#whole, Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 120), this.#timeAt(event.clientX)));
    } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY) && this.#seen) {
      this.#move((sideways / this.#width) * (seen.to - seen.from));
    } else return;
    event.preventDefault();
  }

  /** @param {PointerEvent} event */
  #down(event) {
    if (event.button === 0) this.#fingers.set(event.pointerId, event.clientX);
  }

  /** One finger moves, two zoom. What was moved is not pressed: from then on the chart gets the events. @param {PointerEvent} event */
  #drag(event) {
    const before = this.#fingers.get(event.pointerId);
    if (before === undefined || (Math.abs(event.clientX - before) < LEAST && !this.#chart.hasPointerCapture(event.pointerId))) return;
    this.#chart.setPointerCapture(event.pointerId);
    const seen = this.#seen ?? this.#whole;
    if (this.#fingers.size === 1) this.#move(((before - event.clientX) / this.#width) * (seen.to - seen.from));
    else {
      const other = [...this.#fingers].find(([id]) => id !== event.pointerId)?.[1] ?? 0;
      const factor = Math.abs(before - other) / Math.max(8, Math.abs(event.clientX - other));
      this.#see(zoomed(seen, this.#whole, factor, this.#timeAt((event.clientX + other) / 2)));
    }
    this.#fingers.set(event.pointerId, event.clientX);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const seen = this.#seen ?? this.#whole;
    const item = itemAt(event.target);
    const step = (seen.to - seen.from) * STEP;
    if (event.key === "+" || event.key === "=") this.#zoom(0.5, item?.time);
    else if (event.key === "-" || event.key === "_") this.#zoom(2, item?.time);
    else if (event.key === "0") this.#fit();
    else if (event.key === "Escape" && !this.#tip.hidden) this.#tip.hidden = true;
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const by = event.key === "ArrowRight" ? 1 : -1;
      if (event.shiftKey) this.#move(by * step);
      else this.#go(item, by, 0);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.#go(item, 0, event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Home" || event.key === "End") this.#go(item, event.key === "End" ? Infinity : -Infinity, 0);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Go to another item: along the lane, or to the nearest one in another lane. */
  #go(item, along, across) {
    const now = Date.now() / 1000;
    const indexed = this.#family.map((node, index) => ({ index, node, items: itemsOf(node, now) })).filter(({ items }) => items.length);
    if (!indexed.length) return;
    let at = Math.max(0, indexed.findIndex(({ node }) => node.id === item?.session));
    if (item && across) at = Math.min(indexed.length - 1, Math.max(0, at + across));
    const { node, items, index } = indexed[at];
    let to = 0;
    if (item && along) {
      const here = items.findIndex(({ key }) => key === item.key);
      to = Math.min(items.length - 1, Math.max(0, here + along));
    } else if (item) {
      const far = (each) => Math.abs(each.start - item.time);
      to = items.reduce((best, each, n) => (far(each) < far(items[best]) ? n : best), 0);
    }
    this.#wanted = { session: node.id, key: items[to].key };
    const seen = this.#seen ?? this.#whole;
    const { start } = items[to];
    if (start < seen.from || start > seen.to) this.#see(moved(seen, this.#whole, start - (seen.from + seen.to) / 2));
    const height = this.#laneHeight();
    if (index * height < this.#rows.scrollTop) this.#rows.scrollTop = index * height;
    if ((index + 1) * height > this.#rows.scrollTop + this.#rows.clientHeight) {
      this.#rows.scrollTop = (index + 1) * height - this.#rows.clientHeight;
    }
    this.#again();
  }

  #focusWanted() {
    const wanted = this.#wanted;
    this.#wanted = null;
    if (wanted) this.#lanes.get(wanted.session)?.focus(wanted.key);
  }

  /** Say what the pointer, or the focus, is at. */
  #point(target) {
    const item = itemAt(target);
    this.#tip.hidden = item === null;
    if (item === null) return;
    this.#tip.replaceChildren(...item.lines.map((line, n) => el(n ? "div" : "strong", {}, line)));
    const { left, right, top, bottom } = target.closest("[data-key]").getBoundingClientRect();
    const { left: x, top: y, width } = this.getBoundingClientRect();
    const middle = Math.min(Math.max((Math.max(left, x) + Math.min(right, x + width)) / 2 - x, 8), width - 8);
    const wide = this.#tip.offsetWidth;
    this.#tip.style.left = `${Math.max(8, Math.min(middle - wide / 2, width - wide - 8))}px`;
    const above = top - y - this.#tip.offsetHeight - 8;
    this.#tip.style.top = `${above > 0 ? above : bottom - y + 8}px`;
  }
}

/** What an element of the chart stands for. @type {WeakMap<Element, any>} */
const shownBy = new WeakMap();

function itemAt(target) {
  const found = target instanceof Element ? target.closest("[data-key]") : null;
  return found ? (shownBy.get(found) ?? null) : null;
}

/** The lane of one session. What is drawn in it stays the same element for as long as it is seen. */
class Lane {
  #track = el("div", { className: "track" });
  /** @type {Map<string, HTMLElement>} */
  #items = new Map();
  #top = -1;

  constructor(node, top) {
    const depth = Math.max(0, node.id.split("/").length - top.split("/").length);
    const name = el("a", { className: "name", href: `#conversation/${encoded(node.id)}`, title: node.id, tabIndex: -1 },
      el("span", { className: "dot", "aria-hidden": "true" }), el("span", { className: "words" }, nameOf(node.id)));
    name.style.setProperty("--depth", String(Math.min(depth, 4)));
    this.element = el("div", { className: "lane", role: "group", "aria-label": node.id, "data-agent": agentColour(node.id) },
      name, this.#track);
  }

  place(top) {
    if (top === this.#top) return;
    this.#top = top;
    this.element.style.transform = `translateY(${top}px)`;
  }

  draw(node, seen, width, now) {
    mark(this.element, "data-state", node.state);
    const x = (time) => position(seen, width, time);
    const inside = itemsOf(node, now).filter(({ start, end }) => end >= seen.from && start <= seen.to);
    const wide = inside.filter((item) => item.kind !== "tick" || x(item.end) - x(item.start) >= APART);
    const narrow = clustered(inside.filter((item) => !wide.includes(item)), ({ start }) => x(start), APART);
    const keys = new Set();
    for (const item of wide) {
      const left = Math.max(-LEAST, x(item.start));
      keys.add(item.key);
      this.#show(item, left, Math.max(LEAST, Math.min(width + LEAST, x(item.end)) - left));
    }
    for (const { items } of narrow) {
      const item = items.length === 1 ? items[0] : together(items);
      keys.add(item.key);
      this.#show(item, x(item.start) - APART / 2, APART);
    }
    for (const [key, element] of this.#items) {
      if (keys.has(key)) continue;
      element.remove();
      this.#items.delete(key);
    }
  }

  focus(key) {
    const direct = this.#items.get(key);
    const element = direct ?? [...this.#items.values()].find((each) => shownBy.get(each)?.keys?.includes(key));
    element?.focus();
  }

  #show(item, left, width) {
    const element = this.#items.get(item.key) ?? this.#made(item);
    shownBy.set(element, item);
    mark(element, "class", `${item.kind} ${item.state}${item.keys ? " several" : width > APART ? " wide" : ""}`);
    mark(element, "aria-label", item.lines.join(", "));
    element.style.transform = `translateX(${left.toFixed(1)}px)`;
    element.style.width = `${width.toFixed(1)}px`;
  }

  #made({ key, kind }) {
    const made = el("button", { type: "button", tabIndex: -1, "data-key": key });
    this.#items.set(key, made);
    const above = kind === "turn" ? this.#track.querySelector(":not(.turn)") : null; // calls lie on the turns
    this.#track.insertBefore(made, above);
    return made;
  }
}

/** What a session's lane shows, in the order of time. */
function itemsOf(node, now) {
  const found = [];
  const add = (kind, key, start, end, state, lines) =>
    found.push({ kind, key, session: node.id, start, end, time: start, state, lines: [...lines, exactly(start)] });
  for (const [turn, each] of node.turns) {
    const end = endOf(each, node, now);
    const parts = [reasonOf(each, node), duration(end - each.start)];
    if (each.tokens) parts.push(t("{n} tokens", { n: short(each.tokens) }));
    add("turn", `turn ${turn}`, each.start, end, each.end === null && node.busy ? "running" : (each.reason ?? "stop"),
      [nameOf(node.id), parts.join(" · ")]);
  }
  for (const call of node.calls) {
    const running = call.until === null && node.busy;
    const end = call.until ?? (running ? now : call.time);
    const parts = [call.failed ? t("failed") : running ? t("running") : null, end > call.time ? duration(end - call.time) : null];
    add("tick", `call ${call.index} ${call.id}`, call.time, end, call.failed ? "error" : running ? "running" : "stop",
      [`${call.name} ${call.about}`.trim(), parts.filter(Boolean).join(" · "), decisionOf(node.decided.get(call.id))].filter(Boolean));
  }
  for (const [id, { time, until, text, answer }] of node.asked) {
    const end = until ?? (node.busy ? now : time);
    add("ask", `question ${id}`, time, end, until === null && node.busy ? "running" : "stop",
      [t("Question: {text}", { text: String(text).slice(0, 80) }), [answer, duration(end - time)].filter(Boolean).join(" · ")]);
  }
  return found.sort((one, other) => one.start - other.start || (one.kind === "turn" ? -1 : 1));
}

/** What was decided about a call before it happened, and by what. @param {any} decision */
function decisionOf(decision) {
  if (decision === undefined) return "";
  const allowed = decision.verdict === "allowed";
  if (decision.asked) {
    const name = decision.by ?? t("the agent's terminal");
    return allowed ? t("Allowed by {name}", { name }) : t("Denied by {name}", { name });
  }
  const rule = [decision.rule, decision.source].filter(Boolean).join(", ") || t("no person can be asked");
  return allowed ? t("Allowed by a rule: {rule}", { rule }) : t("Denied by a rule: {rule}", { rule });
}

/** Calls that are too near to each other to be seen apart. */
function together(items) {
  const names = [...new Set(items.map(({ lines }) => lines[0]))];
  const lines = [many("{n} call", "{n} calls", items.length), ...names.slice(0, 4), ...(names.length > 4 ? ["…"] : [])];
  const state = items.some((item) => item.state === "error") ? "error" : items.some((item) => item.state === "running") ? "running" : "stop";
  return { ...items[0], state, keys: items.map(({ key }) => key), lines: [...lines, exactly(items[0].start)] };
}

/** A turn of which no end is known has run until now if its session works, else until it was last heard of. */
function endOf(turn, node, now) {
  return turn.end ?? (node.busy ? now : Math.max(turn.start, node.updated));
}

function reasonOf(turn, node) {
  if (turn.end === null) return node.busy ? t("runs") : t("interrupted");
  return REASONS[turn.reason] ?? turn.reason ?? "";
}

/** A time of day with seconds, and the date where it is not today's. */
function exactly(time) {
  const date = new Date(time * 1000);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString(language, { hour12: false }) : date.toLocaleString(language, { hour12: false });
}

/** A mark of the axis: the time of day, and of whole days the date. */
function labelOf(time, step) {
  const date = new Date(time * 1000);
  if (step >= 86400) return date.toLocaleDateString(language, { month: "short", day: "numeric" });
  const text = date.toLocaleTimeString(language, { hour: "2-digit", minute: "2-digit", ...(step < 60 ? { second: "2-digit" } : {}), hour12: false });
  return step < 1 ? `${text}.${Math.floor((time % 1) * 10 + 0.001)}` : text;
}

customElements.define("cfs-timeline", TimelineView);
