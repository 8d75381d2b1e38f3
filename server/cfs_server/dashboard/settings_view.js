// The settings of a session, a field each.

import { el, say } from "./dom.js";
import { never, soon } from "./frame.js";

const CHOICES = {
  driver: ["model", "agent"],
  prompt_style: ["auto", "chat", "transcript"],
  overflow: ["shift", "error", "summarize"],
};
const LONG = new Set(["system"]);
const WORDS = new Set(["keep"]);

/** A form of all settings; an empty field is the default. */
export class SettingsView {
  #context;
  #fields = new Map();
  #shown = null;
  #form = el("form", { className: "settings", onsubmit: (event) => this.#save(event) });
  #told = el("p", { className: "complaint", role: "status" });
  #unwatch;
  #draw = () => this.#update();

  constructor(context) {
    this.#context = context;
    this.element = el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Settings" }, this.#form);
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
      if (before !== null && valueOf(field) !== written(before[name])) continue; // somebody is writing there
      write(field, settings[name]);
    }
  }

  #build(settings) {
    for (const [name, value] of Object.entries(settings)) {
      const field = fieldFor(name, value);
      field.id = `setting-${name}`;
      this.#fields.set(name, field);
      this.#form.append(el("label", { htmlFor: field.id }, name), field);
    }
    this.#form.append(el("button", { type: "submit", className: "button primary" }, "Save"), this.#told);
  }

  async #save(event) {
    event.preventDefault();
    const patch = {};
    for (const [name, field] of this.#fields) {
      if (valueOf(field) !== written(this.#shown[name])) patch[name] = read(field, name, this.#shown[name]);
    }
    try {
      if (Object.keys(patch).length) await this.#context.api.settings(this.#context.id, patch);
      say(this.#told, Object.keys(patch).length ? "Saved. The settings apply from the next turn." : "No changes to save.");
    } catch (error) {
      say(this.#told, error.message);
    }
  }
}

function fieldFor(name, value) {
  if (typeof value === "boolean") return el("input", { type: "checkbox" });
  if (name in CHOICES) return el("select", {}, CHOICES[name].map((choice) => el("option", { value: choice }, choice)));
  if (LONG.has(name)) return el("textarea", { rows: 4, spellcheck: true });
  return el("input", { type: "text", autocomplete: "off", spellcheck: false, placeholder: "default" });
}

function written(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function valueOf(field) {
  return field.type === "checkbox" ? String(field.checked) : field.value;
}

function write(field, value) {
  if (field.type === "checkbox") field.checked = value;
  else field.value = written(value);
}

function read(field, name, known) {
  if (field.type === "checkbox") return field.checked;
  const text = field.value;
  if (text === "") return null;
  if (name === "stop") return JSON.parse(text);
  return typeof known === "string" || name in CHOICES || LONG.has(name) || WORDS.has(name) ? text : Number(text);
}
