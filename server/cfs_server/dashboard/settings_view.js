// The settings of a session, each with what it does; an empty field is the default.

import { button, el, mark, say } from "./dom.js";
import { never, soon } from "./frame.js";
import { t } from "./text.js";

/**
 * @typedef {object} Field
 * @property {string} name of the setting
 * @property {string} label
 * @property {string} help
 * @property {"text" | "value" | "long" | "number" | "slider" | "choice" | "switch" | "lines"} kind
 * @property {number} [max] of a slider, from 0 on
 * @property {number} [step]
 * @property {Record<string, string>} [choices] value: label
 */

/** @type {[string, Field[]][]} */
const GROUPS = [
  [t("Instructions"), [
    { name: "title", kind: "text", label: t("Title"), help: t("How lists name this session. Empty: the first line of the first message.") },
    { name: "system", kind: "long", label: t("System prompt"), help: t("What the model is and how it answers. It stands before all messages.") },
  ]],
  [t("Replies"), [
    { name: "temperature", kind: "slider", max: 2, step: 0.05, label: t("Temperature"),
      help: t("0 always takes the most probable token. Higher values give more varied text.") },
    { name: "top_p", kind: "slider", max: 1, step: 0.01, label: t("Top p"),
      help: t("Choose among the most probable tokens whose probabilities add up to this.") },
    { name: "min_p", kind: "slider", max: 1, step: 0.01, label: t("Min p"),
      help: t("Leave out tokens that are less probable than this share of the best one.") },
    { name: "top_k", kind: "number", label: t("Top k"), help: t("Choose among this many of the most probable tokens. 0: all.") },
    { name: "max_tokens", kind: "number", label: t("Longest reply"), help: t("Tokens after which a reply is cut off.") },
    { name: "seed", kind: "number", label: t("Seed"), help: t("The same seed nearly always gives the same reply. Empty: a new one each turn.") },
    { name: "stop", kind: "lines", label: t("Stop texts"), help: t("One a line. A reply ends before the first of them.") },
    { name: "reproducible", kind: "switch", label: t("Reproducible"),
      help: t("Compute each turn by itself: with a seed or temperature 0, the same history gives the same reply. Slower.") },
  ]],
  [t("Behaviour"), [
    { name: "driver", kind: "choice", label: t("Who answers"), help: t("The model answers by itself; an agent answers with tools, while one is attached."),
      choices: { model: t("The model"), agent: t("An agent") } },
    { name: "model", kind: "text", label: t("Model"), help: t("Which of the server's models answers the next turn. Empty: the default.") },
    { name: "paused", kind: "switch", label: t("Paused"), help: t("An agent waits before its next step, here and in all sub-sessions.") },
    { name: "overflow", kind: "choice", label: t("Long histories"), help: t("What happens when the history no longer fits into the model's context."),
      choices: { shift: t("Leave out the oldest messages"), error: t("Fail the turn"), summarize: t("Summarize the oldest messages") } },
    { name: "prompt_style", kind: "choice", label: t("Prompt style"), help: t("How messages become a prompt."),
      choices: { auto: t("By the model"), chat: t("The model's chat template"), transcript: t("A plain transcript") } },
    { name: "keep", kind: "text", label: t("Keep for"), help: t("Delete the session when it has not changed for so long, such as 90d or 12h. Empty: what the server says.") },
  ]],
];
/** Settings that a caller who came by a link cannot change. */
const STEERING = new Set(["driver", "paused", "keep"]);
const KNOWN = new Map(GROUPS.flatMap(([, fields]) => fields).map((field) => [field.name, field]));

/** A form of all settings. What somebody else changes meanwhile is shown, unless one writes in that field. */
export class SettingsView {
  #context;
  /** @type {Map<string, { control: any, output: HTMLOutputElement | null, kind: string }>} */
  #fields = new Map();
  /** @type {Record<string, any> | null} */
  #shown = null;
  #form = el("form", { className: "settings", onsubmit: (event) => this.#save(event) });
  #status = el("p", { className: "quiet", role: "status" });
  #unwatch;
  #draw = () => this.#update();

  constructor(context) {
    this.#context = context;
    this.element = el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": t("Settings") }, this.#form);
    this.#unwatch = context.conversation.watch(() => soon(this.#draw));
    soon(this.#draw);
  }

  close() {
    never(this.#draw);
    this.#unwatch();
  }

  #update() {
    const { settings } = this.#context.conversation;
    if (settings === null || settings === this.#shown) return;
    const before = this.#shown;
    this.#shown = settings;
    if (before === null) this.#build(settings);
    for (const [name, field] of this.#fields) {
      if (before !== null && raw(field) !== written(before[name], field.kind)) continue; // somebody is writing there
      write(field, settings[name]);
    }
  }

  #build(settings) {
    const others = Object.keys(settings).filter((name) => !KNOWN.has(name));
    /** @type {Field[]} */
    const more = others.map((name) => ({ name, kind: "value", label: name, help: "" }));
    /** @type {[string, Field[]][]} */
    const groups = more.length ? [...GROUPS, [t("More"), more]] : GROUPS;
    for (const [title, fields] of groups) {
      const shown = fields.filter(({ name }) => name in settings);
      if (!shown.length) continue;
      this.#form.append(el("fieldset", {}, el("legend", {}, title), ...shown.map((field) => this.#row(field))));
    }
    const { app, id } = this.#context;
    for (const [name, { control }] of this.#fields) {
      const may = STEERING.has(name) ? app.rights.maySteer(id) : app.rights.mayWrite(id);
      if (may) continue;
      control.disabled = true;
      control.closest(".setting").querySelector(".reset")?.remove();
    }
    if (!app.rights.mayWrite(id)) return;
    this.#form.append(el("div", { className: "answers" }, this.#status,
      el("button", { type: "submit", className: "button primary" }, t("Save"))));
  }

  #row({ name, label, help, kind, max = 1, step = 0.01, choices = {} }) {
    const id = `setting-${name}`;
    const output = kind === "slider" ? el("output", { htmlFor: id, className: "figure" }) : null;
    const control = {
      text: () => el("input", { type: "text", autocomplete: "off", spellcheck: false, placeholder: t("Default") }),
      value: () => el("input", { type: "text", autocomplete: "off", spellcheck: false, placeholder: t("Default") }),
      number: () => el("input", { type: "number", min: 0, placeholder: t("Default") }),
      slider: () => el("input", { type: "range", min: 0, max, step, oninput: () => say(output, control.value) }),
      long: () => el("textarea", { rows: 4, spellcheck: true }),
      lines: () => el("textarea", { rows: 2, spellcheck: false }),
      switch: () => el("input", { type: "checkbox", role: "switch" }),
      choice: () => el("select", {}, ...Object.entries(choices).map(([value, text]) => el("option", { value }, text))),
    }[kind]();
    control.id = id;
    this.#fields.set(name, { control, output, kind });
    if (help) control.setAttribute("aria-describedby", `${id}-help`);
    const reset = kind === "slider" || kind === "choice"
      ? button(t("Default"), () => this.#reset(name), { className: "button reset", "aria-label": t("{setting}: default", { setting: label }) })
      : null;
    return el("div", { className: "setting", "data-kind": kind },
      el("div", { className: "label" }, el("label", { htmlFor: id }, label), el("code", { className: "quiet" }, name)),
      el("div", { className: "control" }, control, output, reset),
      el("p", { className: "quiet", id: `${id}-help` }, help));
  }

  async #reset(name) {
    await this.#patch({ [name]: null });
  }

  async #save(event) {
    event.preventDefault();
    const patch = {};
    for (const [name, field] of this.#fields) {
      const known = this.#shown?.[name];
      if (raw(field) !== written(known, field.kind)) patch[name] = read(field, known);
    }
    if (Object.keys(patch).length) await this.#patch(patch);
    else say(this.#status, t("No changes to save."));
  }

  async #patch(patch) {
    try {
      await this.#context.api.settings(this.#context.id, patch);
      mark(this.#status, "class", "quiet");
      say(this.#status, t("Saved. The settings apply from the next turn."));
    } catch (error) {
      mark(this.#status, "class", "complaint");
      say(this.#status, error.message);
    }
  }
}

/** What a field would hold for a value. */
function written(value, kind) {
  if (kind === "switch") return String(value ?? false);
  if (kind === "lines") return (value ?? []).join("\n");
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function raw({ control, kind }) {
  return kind === "switch" ? String(control.checked) : control.value;
}

function write({ control, output, kind }, value) {
  if (kind === "switch") control.checked = value ?? false;
  else control.value = written(value, kind);
  if (output !== null) say(output, control.value);
}

/** The value of a field for the server; null is the default. */
function read(field, known) {
  const text = raw(field);
  if (field.kind === "switch") return text === "true";
  if (text === "") return null;
  if (field.kind === "value" && text.startsWith("{")) return parsed(text);
  if (field.kind === "lines") return text.split("\n").filter((line) => line !== "");
  return field.kind === "number" || field.kind === "slider" || typeof known === "number" ? Number(text) : text;
}

/** An object, or the text as it is: the server says what is wrong with it. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
