// Who ran when: a row for each session, a bar for each turn, a tick for each call of a tool.

import { el, svg } from "./dom.js";
import { never, soon } from "./frame.js";
import { nameOf } from "./ids.js";
import { inTurn } from "./listing.js";
import { readPast } from "./past.js";
import { clock, duration, short } from "./times.js";

const ROW = 26;
const TOP = 26;
const LABEL = 150;
const REDRAW = 500;
const MOST = 300;
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400];

/** The run of a session and everything below it as a picture, and as a table for those who cannot see it. */
export class TimelineView {
  #context;
  #picture = el("div", { className: "picture", tabIndex: 0 });
  #table = el("tbody");
  #told = el("p", { className: "quiet" });
  #unwatch;
  #timer;
  #stale = true;
  #draw = () => this.#update();

  constructor(context) {
    this.#context = context;
    const heads = ["Session", "Started", "Duration", "Tokens", "Ended"].map((name) => el("th", { scope: "col" }, name));
    const table = el("table", {}, el("thead", {}, el("tr", {}, heads)), this.#table);
    this.element = el("div", { className: "scroll timeline", tabIndex: 0, role: "region", "aria-label": "Timeline" },
      this.#picture, this.#told, el("details", { className: "folded" }, el("summary", {}, "Show as a table"), table));
    this.#unwatch = context.live.sessions.watch(() => (this.#stale = true));
    this.#timer = setInterval(() => soon(this.#draw), REDRAW);
    this.#remember();
    soon(this.#draw);
  }

  close() {
    clearInterval(this.#timer);
    never(this.#draw);
    this.#unwatch();
  }

  async #remember() {
    const family = this.#context.live.sessions.family(this.#context.id).slice(0, MOST);
    await inTurn(family, async (node) => {
      await readPast(this.#context.api, node);
      this.#context.live.sessions.touch(node.id);
    });
  }

  #update() {
    const family = this.#context.live.sessions.family(this.#context.id).slice(0, MOST);
    if (family.some((node) => !node.pastRead && node.event > 0)) this.#remember();
    const running = family.some((node) => node.busy);
    if (!this.#stale && !running) return;
    this.#stale = false;
    const now = Date.now() / 1000;
    const rows = family.map((node) => ({ node, turns: [...node.turns.values()].map((turn) => ended(turn, node, now)) }));
    const turns = rows.flatMap((row) => row.turns);
    this.#told.textContent = turns.length ? "" : "No turns have run yet.";
    this.#drawTable(rows);
    if (!turns.length) {
      this.#picture.replaceChildren();
      return;
    }
    const from = Math.min(...turns.map((turn) => turn.start));
    const to = Math.max(...turns.map((turn) => turn.until), from + 0.5);
    this.#picture.replaceChildren(this.#drawn(rows, from, to));
  }

  #drawn(rows, from, to) {
    const width = Math.max(360, this.element.clientWidth - 32);
    const label = Math.min(LABEL, width / 3);
    const x = (time) => label + ((time - from) / (to - from)) * (width - label - 12);
    const height = TOP + rows.length * ROW + 6;
    const title = `Timeline of ${this.#context.id}: ${rows.length} sessions, ${duration(to - from)}`;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title });
    const step = STEPS.find((each) => (to - from) / each <= Math.max(2, width / 90)) ?? to - from;
    for (let time = 0; time <= to - from; time += step) {
      const at = x(from + time);
      picture.append(svg("line", { class: "grid", x1: at, x2: at, y1: TOP - 6, y2: height }),
        svg("text", { class: "axis", x: at + 3, y: 14 }, duration(time)));
    }
    rows.forEach(({ node, turns }, index) => picture.append(rowOf(node, turns, TOP + index * ROW, x, label)));
    return picture;
  }

  #drawTable(rows) {
    const all = rows.flatMap(({ node, turns }) => turns.map((turn) => ({ node, turn })));
    const shown = all.sort((one, other) => one.turn.start - other.turn.start).slice(-MOST);
    this.#table.replaceChildren(
      ...shown.map(({ node, turn }) => {
        const cells = [node.id, clock(turn.start), duration(turn.until - turn.start), turn.tokens || "",
          turn.reason ?? "runs"];
        return el("tr", {}, cells.map((cell) => el("td", {}, String(cell))));
      }),
    );
  }
}

function rowOf(node, turns, top, x, label) {
  const depth = node.id.split("/").length - 1;
  const name = shortened(nameOf(node.id), (label - 10 - depth * 8) / 7.2);
  const row = svg("g", {}, svg("text", { class: "label", x: 4 + depth * 8, y: top + 17 }, name));
  for (const turn of turns) {
    const left = x(turn.start);
    const bar = svg("rect", { class: `bar ${turn.reason ?? "running"}`, x: left, y: top + 4,
      width: Math.max(2, x(turn.until) - left), height: ROW - 8, rx: 3 });
    const took = duration(turn.until - turn.start);
    bar.append(svg("title", {}, `${node.id}: ${took}${turn.tokens ? `, ${short(turn.tokens)} tokens` : ""}`));
    row.append(bar);
  }
  for (const call of node.calls) {
    const tick = svg("line", { class: "tick", x1: x(call.time), x2: x(call.time), y1: top + 7, y2: top + ROW - 7 });
    tick.append(svg("title", {}, call.name));
    row.append(tick);
  }
  return row;
}

/** A turn of which no end is known has run until now if its session works, else until it was last heard of. */
function ended(turn, node, now) {
  return { ...turn, until: turn.end ?? (node.busy ? now : Math.max(turn.start, node.updated)) };
}

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, Math.max(1, Math.floor(most) - 1))}…` : text;
}
