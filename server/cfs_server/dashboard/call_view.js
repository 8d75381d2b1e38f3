// A call of a tool as one box: what it was asked, what came of it, and how long it took.

import { difference, nearby } from "./diff.js";
import { el, mark, say } from "./dom.js";
import { icon } from "./icons.js";
import { commandOf, isFailure, subjectOf, written } from "./items.js";
import { copyButton } from "./markup.js";
import { t } from "./text.js";
import { duration } from "./times.js";

const LINES = 12; // of a text that are shown at first
const RESULT_LINES = 6;
const LEAST = 0.05; // seconds that are worth a figure
const SHORT = 120; // characters of a result that stands in one line
const ICONS = { write_file: "file", edit_file: "diff", read_file: "eye", list_directory: "folder", search_files: "search" };
const STATES = { running: "spinner", done: "check", failed: "alert", open: "clock" };

/** @typedef {import("./items.js").Step} Step */

/** One call. `show` it again when its result has come, or its turn has ended. */
export class CallView extends HTMLElement {
  /** @type {Step} */
  #step;
  #markup;
  #state = "";
  #near = false;
  /** @type {(() => void)[]} what is rendered once the box is near */
  #waiting = [];
  #status = el("span", { className: "status" });
  #said = el("span", { className: "unseen" });
  #time = el("span", { className: "quiet figure" });
  #result = el("div", { className: "result" });

  /** @param {Step} step @param {import("./markup.js").Markup} markup */
  constructor(step, markup) {
    super();
    this.#step = step;
    this.#markup = markup;
    const { subject, rest } = subjectOf(step.call);
    const { command } = step.call.arguments ?? {};
    const isCommand = typeof command === "string";
    const name = el("span", { className: "tool" }, step.call.name);
    this.className = "call";
    this.setAttribute("role", "group");
    this.setAttribute("aria-label", `${step.call.name} ${isCommand ? "" : subject}`.trim());
    this.append(el("div", { className: "call-head" }, this.#status, icon(iconOf(step.call.name, isCommand)), name,
      isCommand ? null : el("span", { className: "subject", title: subject }, subject), this.#said, this.#time),
    this.#asked(isCommand, subject, rest), this.#result);
  }

  /**
   * @param {Step} step
   * @param {{ busy: boolean, seconds: number | null }} now whether its turn runs, and how long the call took
   */
  show(step, { busy, seconds }) {
    const { result } = step;
    const state = result !== null ? (isFailure(result.content) ? "failed" : "done") : busy ? "running" : "open";
    say(this.#time, seconds === null || seconds < LEAST ? "" : duration(seconds));
    if (state !== this.#state) {
      mark(this, "data-state", state);
      this.#status.replaceChildren(icon(STATES[state], state === "running" ? "spin" : ""));
      say(this.#said, { running: t("running"), done: t("done"), failed: t("failed"), open: t("no result") }[state]);
      this.#state = state;
    }
    if (result !== this.#step.result || (result !== null && !this.#result.hasChildNodes())) {
      this.#step = step;
      this.#result.replaceChildren(...(result === null ? [] : this.#answered(result.content)));
    }
    this.#step = step;
  }

  /** Highlight its code from now on: it is in sight, or soon will be. */
  near() {
    this.#near = true;
    for (const render of this.#waiting.splice(0)) render();
  }

  /** @param {boolean} isCommand @param {string} subject @param {[string, any][]} rest */
  #asked(isCommand, subject, rest) {
    const { name, arguments: values } = this.#step.call;
    const asked = el("div", { className: "asked" });
    if (isCommand) {
      asked.append(this.#text(subject, { language: "bash", className: "command", lines: LINES }));
      asked.append(...valuesOf(rest));
    } else if (name === "edit_file" && typeof values.old === "string" && typeof values.new === "string") {
      asked.append(changed(values.old, values.new), ...valuesOf(rest.filter(([key]) => key !== "old" && key !== "new")));
    } else if (typeof values?.content === "string" && subject !== "") {
      asked.append(this.#text(values.content, { language: nameOf(subject), lines: LINES }));
      asked.append(...valuesOf(rest.filter(([key]) => key !== "content")));
    } else {
      asked.append(...valuesOf(rest));
    }
    return asked;
  }

  /** @param {string} content */
  #answered(content) {
    const command = commandOf(content);
    if (command !== null) {
      const output = [command.stdout, command.stderr].filter(Boolean).join("\n").replace(/\n$/, "");
      const code = command.timed_out ? t("timed out") : command.exit_code ? t("exit code {n}", { n: command.exit_code }) : "";
      return [output === "" ? null : this.#text(output, { className: "output", lines: LINES }),
        code === "" ? null : el("p", { className: "said" }, code)].filter((each) => each !== null);
    }
    if (content === "") return [el("p", { className: "said quiet" }, t("no output"))];
    if (content.length <= SHORT && !content.includes("\n")) return [el("p", { className: "said quiet" }, content)];
    const { path } = this.#step.call.arguments ?? {};
    const isFile = this.#step.call.name === "read_file" && typeof path === "string";
    const language = isFile ? nameOf(path) : isJson(content) ? "json" : null;
    return [this.#text(content, { language, lines: RESULT_LINES, className: "output" })];
  }

  /**
   * A text in lines, of which the first ones are shown until one asks for all.
   * @param {string} text
   * @param {{ language?: string | null, lines: number, className?: string }} options
   */
  #text(text, { language = null, lines, className = "" }) {
    const all = text.replace(/\n$/, "").split("\n");
    const long = all.length > lines + 2;
    const code = el("div", { className: "listing" });
    const foot = el("div", { className: "code-foot" });
    let drawn = "";
    const draw = (/** @type {string} */ shown) => {
      drawn = shown;
      code.replaceChildren(el("div", { className: "code" }, el("pre", { tabIndex: 0 }, el("code", {}, shown))));
      if (language === null) return;
      const render = () => this.#markup.fill(code, shown, language, () => code.isConnected && drawn === shown);
      if (this.#near) render();
      else this.#waiting.push(render);
    };
    draw(long ? all.slice(0, lines).join("\n") : all.join("\n"));
    const frame = el("div", { className: `lines ${className}` }, code, foot);
    if (long) {
      let open = false;
      const toggle = el("button", { type: "button", className: "button more", "aria-expanded": "false", onclick: () => {
        open = !open;
        draw(open ? all.join("\n") : all.slice(0, lines).join("\n"));
        mark(toggle, "aria-expanded", String(open));
        say(toggle, open ? t("Show less") : t("Show all {n} lines", { n: all.length }));
        mark(frame, "data-cut", open ? null : "");
      } }, t("Show all {n} lines", { n: all.length }));
      mark(frame, "data-cut", "");
      foot.append(toggle);
    }
    foot.append(copyButton(() => text, t("Copy")));
    return frame;
  }
}
customElements.define("cfs-call", CallView);

/** @param {string} name @param {boolean} isCommand */
function iconOf(name, isCommand) {
  if (isCommand) return "terminal";
  return ICONS[name] ?? (/agent|spawn|delegate/.test(name) ? "bot" : "tool");
}

/** @param {string} content */
function isJson(content) {
  if (!/^[[{]/.test(content)) return false; // a number or a word needs no colours
  try {
    JSON.parse(content);
    return true;
  } catch {
    return false;
  }
}

/** @param {string} path */
function nameOf(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** Arguments by name. @param {[string, any][]} entries */
function valuesOf(entries) {
  if (entries.length === 0) return [];
  const rows = entries.map(([name, value]) => el("div", { className: "value" }, el("dt", {}, name), el("dd", {}, written(value))));
  return [el("dl", { className: "values" }, rows)];
}

/** @param {string} before @param {string} after */
function changed(before, after) {
  const lines = nearby(difference(before, after));
  const names = { "+": "added", "-": "removed" };
  return el("div", { className: "diff", role: "group", "aria-label": t("Changes") },
    lines.map(({ sign, text }) => el("div", { className: `line ${names[sign] ?? "same"}` }, `${sign} ${text}`)));
}
