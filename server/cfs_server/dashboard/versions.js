// The versions of a conversation: a slider over its past, what going back would change, and the way back and forward.

import { place } from "./api.js";
import { button, el, say } from "./dom.js";
import { many, t } from "./text.js";
import { ago } from "./times.js";

/**
 * @typedef {{ number: number, at: number, kind: string, messages: number, role: string | null, text: string,
 *   to: number | null }} Version
 * @typedef {{ index: number, role: string, text: string }} Line
 * @typedef {{ session: string, to: number | null, removed: Line[], restored: Line[], cancelled: string[],
 *   questions: string[], answers: boolean }} Step
 */

const PAGE = 1000; // the newest versions, which the slider shows
const PAUSE = 120; // milliseconds without a move of the slider, before the server is asked

/**
 * Open the dialog with the versions of a session.
 * @param {{ api: import("./api.js").Api, app: any, id: string, mayReplace: boolean }} context
 */
export function openVersions({ api, app, id, mayReplace }) {
  /** @type {Version[]} */
  let versions = [];
  /** @type {number | undefined} */
  let timer;
  let asked = 0;

  const slider = el("input", { id: "version", type: "range", min: "0", max: "0", step: "1", value: "0", oninput: move });
  const label = el("output", { className: "figure", htmlFor: "version" });
  const below = el("input", { id: "below", type: "checkbox", onchange: preview });
  const tree = el("p", { hidden: true }, below, " ", el("label", { htmlFor: "below" }, t("Take the sub-sessions back to the same time")));
  const theirs = el("input", { id: "theirs", type: "checkbox", onchange: preview });
  const keep = el("p", { hidden: true }, theirs, " ", el("label", { htmlFor: "theirs" }, t("Leave files that others have changed since")));
  const changes = el("ul", { className: "steps" });
  const complaint = el("p", { className: "complaint", role: "alert" });
  const go = el("button", { type: "submit", className: "button primary", disabled: true }, t("Go back to this version"));
  const redo = button(t("Undo the last rewind"), () => carryOut("redo", {}), { className: "button", hidden: true });

  const dialog = el("dialog", { className: "wide", "aria-labelledby": "versions-title", onclose: () => dialog.remove() },
    el("form", { onsubmit: submit },
      el("h2", { id: "versions-title" }, t("Versions")),
      el("p", { className: "quiet" }, t("Each message, edit and rewind is a version. Nothing is lost by going back.")),
      el("label", { htmlFor: "version" }, t("Version")), slider, label,
      mayReplace ? tree : null,
      el("div", { className: "past", role: "region", tabIndex: 0, "aria-label": t("What changes"), "aria-live": "polite" }, changes),
      complaint, keep,
      el("div", { className: "answers" }, button(t("Close"), () => dialog.close()), mayReplace ? redo : null,
        mayReplace ? go : null)));
  document.body.append(dialog);
  dialog.showModal();
  slider.focus();
  api.json(`${place(id)}/versions?limit=${PAGE}`).then((page) => {
    versions = page.versions;
    const newest = versions[versions.length - 1];
    redo.hidden = !(newest.kind === "rewound" || newest.kind === "redone");
    slider.min = String(versions[0].number);
    slider.max = String(newest.number); // before the value, which it bounds
    slider.value = slider.max;
    move();
  }, fail);
  if (mayReplace) showTree();

  /** Offer the sub-sessions if there are any. The server knows; the list of all sessions may still be on its way. */
  async function showTree() {
    try {
      const found = await api.json(`${place(id)}/sub_sessions`);
      tree.hidden = found.children.length === 0;
    } catch (error) {
      if (/** @type {any} */ (error).status !== 403) fail(error);
    }
  }

  function move() {
    const version = versions[Number(slider.value) - versions[0].number];
    const words = `${version.number} · ${ago(version.at, "long")} · ${nameOf(version)}`;
    say(label, words);
    slider.setAttribute("aria-valuetext", words);
    clearTimeout(timer);
    timer = window.setTimeout(preview, PAUSE);
  }

  async function preview() {
    const turn = ++asked;
    say(complaint, "");
    try {
      const parts = mayReplace ? await planned() : await read();
      if (turn === asked) changes.replaceChildren(...parts);
    } catch (error) {
      if (turn !== asked) return;
      keep.hidden = /** @type {any} */ (error).status !== 409;
      go.disabled = true;
      changes.replaceChildren();
      fail(error);
    }
  }

  /** What a rewind to the chosen version would do. */
  async function planned() {
    const plan = await api.send("POST", `${place(id)}/rewind`, { ...chosen(), dry_run: true });
    /** @type {Step[]} */
    const steps = plan.sessions;
    const parts = steps.flatMap((step) => stepOf(step, steps.length > 1));
    parts.push(...plan.files.map((/** @type {any} */ file) => lineOf(file.change, t("File"), file.path)),
      ...plan.left.map((/** @type {string} */ path) => el("li", {}, t("{path} stays: others have changed it since", { path }))));
    go.disabled = parts.length === 0;
    if (parts.length === 0) return [el("li", { className: "quiet" }, t("This is how the session is now."))];
    return [...parts, ...plan.lasting.map((/** @type {string} */ sentence) => el("li", { className: "quiet" }, sentence))];
  }

  /** The messages of the chosen version, for a reader who may not go back to it. */
  async function read() {
    const past = await api.json(`${place(id)}?at=${slider.value}`);
    return past.history.map((/** @type {any} */ message) => lineOf("", message.role, message.content));
  }

  function chosen() {
    return { to: Number(slider.value), sub_sessions: below.checked, others: theirs.checked ? "theirs" : "refuse" };
  }

  /** @param {Event} event */
  function submit(event) {
    event.preventDefault();
    carryOut("rewind", chosen());
  }

  async function carryOut(/** @type {string} */ what, /** @type {object} */ body) {
    go.disabled = redo.disabled = true;
    try {
      const done = await api.send("POST", `${place(id)}/${what}`, body);
      dialog.close();
      app.announce(t("{session} is at version {version} now", { session: id, version: done.sessions[0].version }));
    } catch (error) {
      go.disabled = redo.disabled = false;
      fail(error);
    }
  }

  function fail(/** @type {any} */ error) {
    say(complaint, error.message);
  }
}

/** @param {Step} step @param {boolean} named @returns {HTMLElement[]} */
function stepOf(step, named) {
  const parts = [
    ...step.removed.map(({ role, text }) => lineOf("removed", role, text)),
    ...step.restored.map(({ role, text }) => lineOf("restored", role, text)),
    ...step.cancelled.map((text) => el("li", {}, t("Cancelled: {text}", { text }))),
    ...step.questions.map((text) => el("li", {}, t("Withdrawn question: {text}", { text }))),
    ...(step.answers ? [el("li", {}, t("The last message is answered again."))] : []),
  ];
  return named && parts.length > 0 ? [el("li", { className: "of" }, step.session), ...parts] : parts;
}

/** @param {"removed" | "restored" | ""} change @param {string} role @param {string} text */
function lineOf(change, role, text) {
  const sign = { removed: "−", restored: "+", "": "" }[change];
  const spoken = { removed: t("Removed"), restored: t("Restored"), "": "" }[change];
  return el("li", { className: change }, el("span", { "aria-hidden": "true" }, sign),
    el("span", { className: "unseen" }, spoken), " ", el("b", {}, role), " ", text);
}

/** @param {Version} version */
function nameOf({ kind, role, text, messages, to }) {
  if (kind === "message") return `${role}: ${text.slice(0, 80)}`;
  if (kind === "replaced") return t("edited");
  if (kind === "rewound") return to === null ? t("emptied") : t("went back to {version}", { version: to });
  if (kind === "redone") return t("undid a rewind");
  return messages === 0 ? t("created") : many("created with {n} message", "created with {n} messages", messages);
}
