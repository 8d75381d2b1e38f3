// Files for a session: chosen, dropped or pasted, and put into its workspace, where its agents and tools find them.

import { el, mark, say } from "./dom.js";
import { icon } from "./icons.js";
import { encoded, rootOf } from "./ids.js";
import { t } from "./text.js";
import { size } from "./times.js";

const TRIES = 20;
const EXISTS = 412;

/** @typedef {{ name: string, element: HTMLElement, state: "sending" | "there" | "failed", stop: () => void }} Attached */

/** The files of the message that is being written. */
export class Attachments {
  #api;
  #changed;
  /** @type {Attached[]} */
  #all = [];
  element = el("ul", { className: "attachments", hidden: true, "aria-label": t("Attachments") });
  #input = el("input", { type: "file", multiple: true, hidden: true, tabIndex: -1, "aria-hidden": "true" });

  /**
   * @param {import("./api.js").Api} api
   * @param {() => string | Promise<string>} session the id of the session, which may have to be created first
   * @param {() => void} changed
   */
  constructor(api, session, changed) {
    this.#api = api;
    this.session = session;
    this.#changed = changed;
    this.#input.addEventListener("change", () => {
      this.add(this.#input.files ?? []);
      this.#input.value = "";
    });
    this.button = el("button", { type: "button", className: "icon-button", title: t("Attach files"),
      "aria-label": t("Attach files"), onclick: () => this.#input.click() }, icon("attach"));
    this.element.append(this.#input);
  }

  /** Whether a file is still on its way. */
  get sending() {
    return this.#all.some(({ state }) => state === "sending");
  }

  /** The names of the files in the workspace. */
  get names() {
    return this.#all.filter(({ state }) => state === "there").map(({ name }) => name);
  }

  clear() {
    for (const each of this.#all) each.element.remove();
    this.#all = [];
    this.#shown();
  }

  /** Take files that are dropped on an element or pasted into it. @param {HTMLElement} element */
  listen(element) {
    let inside = 0;
    const over = (/** @type {number} */ step) => {
      inside = step === 0 ? 0 : Math.max(0, inside + step);
      mark(element, "data-drop", inside ? "" : null);
    };
    element.addEventListener("dragenter", (event) => hasFiles(event) && over(1));
    element.addEventListener("dragleave", (event) => hasFiles(event) && over(-1));
    element.addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
    element.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      over(0);
      this.add(event.dataTransfer?.files ?? []);
    });
    element.addEventListener("paste", (event) => {
      const files = event.clipboardData?.files ?? [];
      if (files.length === 0) return;
      event.preventDefault();
      this.add(files);
    });
  }

  /** @param {Iterable<File>} files */
  add(files) {
    for (const file of files) this.#send(file);
  }

  #shown() {
    this.element.hidden = this.#all.length === 0;
    this.#changed();
  }

  /** @param {File} file */
  async #send(file) {
    const said = el("span", { className: "quiet", role: "status" }, size(file.size));
    const bar = el("progress", { max: 1, value: 0, "aria-label": t("Upload of {name}", { name: file.name }) });
    const name = el("span", { className: "name" }, file.name);
    /** @type {Attached} */
    const own = { name: file.name, state: "sending", stop: () => {}, element: el("li", { className: "chip attached" }) };
    const remove = el("button", { type: "button", className: "icon-button", "aria-label": t("Remove {name}", { name: file.name }),
      title: t("Remove {name}", { name: file.name }), onclick: () => this.#remove(own) }, icon("close"));
    own.element.append(icon("file"), name, said, bar, remove);
    this.#all.push(own);
    this.element.insertBefore(own.element, this.#input);
    this.#shown();
    try {
      const folder = `/v1/files/workspaces/${encoded(rootOf(await this.session()))}`;
      own.name = await this.#put(folder, file, own, (part) => (bar.value = part));
      say(name, own.name);
      own.state = "there";
    } catch (error) {
      own.state = "failed";
      say(said, /** @type {Error} */ (error).message);
    }
    mark(own.element, "data-state", own.state);
    bar.remove();
    this.#shown();
  }

  /** @param {Attached} own */
  #remove(own) {
    own.stop();
    own.element.remove();
    this.#all = this.#all.filter((each) => each !== own);
    this.#shown();
  }

  /** Put a file under its name, or under another one where there is such a file already. */
  async #put(/** @type {string} */ folder, /** @type {File} */ file, /** @type {Attached} */ own, /** @type {(part: number) => void} */ progress) {
    const plain = safeName(file.name);
    for (let number = 1; ; number++) {
      const name = number === 1 ? plain : numbered(plain, number);
      const sent = upload(`${folder}/${encodeURIComponent(name)}`, file, this.#api.token, progress);
      own.stop = sent.stop;
      const { status, problem } = await sent.done;
      if (status < 300) return name;
      if (status !== EXISTS || number === TRIES) throw new Error(problem);
    }
  }
}

/** @param {DragEvent} event */
function hasFiles(event) {
  return event.dataTransfer?.types.includes("Files") ?? false;
}

/** A name that a workspace takes: no separators, no control characters, not hidden. @param {string} name */
export function safeName(name) {
  // eslint-disable-next-line no-control-regex
  const plain = name.replace(/[/\\\u0000-\u001f\u007f]+/g, "_").replace(/^\.+/, "").trim().slice(-120);
  return plain === "" ? "file" : plain;
}

/** @param {string} name @param {number} number */
export function numbered(name, number) {
  const dot = name.lastIndexOf(".");
  return dot <= 0 ? `${name}-${number}` : `${name.slice(0, dot)}-${number}${name.slice(dot)}`;
}

/** The message with the files that it names. @param {string} text @param {string[]} names */
export function withFiles(text, names) {
  if (names.length === 0) return text;
  const list = names.map((name) => `- \`${name}\``).join("\n");
  return `${text.trim() === "" ? "" : `${text.trimEnd()}\n\n`}${names.length === 1 ? "Attached file" : "Attached files"} in the workspace:\n${list}`;
}

/** Only this way of sending tells how much has been sent. */
function upload(/** @type {string} */ path, /** @type {File} */ file, /** @type {string | null} */ token, /** @type {(part: number) => void} */ progress) {
  const request = new XMLHttpRequest();
  /** @type {Promise<{ status: number, problem: string }>} */
  const done = new Promise((resolve) => {
    const end = (/** @type {string} */ said) => resolve({ status: request.status || 599, problem: problemOf(request) ?? said });
    request.upload.addEventListener("progress", ({ loaded, total }) => progress(total ? loaded / total : 1));
    request.addEventListener("load", () => end(t("The server answered {status}.", { status: request.status })));
    request.addEventListener("error", () => end(t("The server cannot be reached.")));
    request.addEventListener("abort", () => end(t("Cancelled")));
  });
  request.open("PUT", path);
  if (token !== null) request.setRequestHeader("Authorization", `Bearer ${token}`);
  request.setRequestHeader("If-None-Match", "*");
  request.setRequestHeader("Content-Type", file.type || "application/octet-stream");
  request.send(file);
  return { done, stop: () => request.abort() };
}

/** @param {XMLHttpRequest} request */
function problemOf(request) {
  try {
    return JSON.parse(request.responseText).detail ?? null;
  } catch {
    return null;
  }
}
