// Merges the files of a copy of a session into those of another one: what would change, the merge, and its conflicts.

import { button, el, say } from "./dom.js";
import { many, t } from "./text.js";

/**
 * @typedef {{ path: string, change: "added" | "changed" | "merged" | "removed" }} MergedFile
 * @typedef {{ path: string, reason: string, files: string[] }} MergeConflict
 * @typedef {{ files: MergedFile[], conflicts: MergeConflict[], left: string[] }} MergedFiles
 */

const PAUSE = 250; // milliseconds without a key, before the server is asked
const SIGNS = { added: "+", changed: "∗", merged: "∗", removed: "−" };

/**
 * Open the dialog that merges the files of a session.
 * @param {{ api: import("./api.js").Api, app: any, id: string }} context
 */
export function openMerge({ api, app, id }) {
  /** @type {number | undefined} */
  let timer;
  let asked = 0;

  const target = el("input", { id: "target", type: "text", value: id.replace(/-[0-9]+$/, ""), spellcheck: false,
    autocomplete: "off", oninput: wait });
  const changes = el("ul", { className: "steps" });
  const complaint = el("p", { className: "complaint", role: "alert" });
  const go = el("button", { type: "submit", className: "button primary", disabled: true }, t("Merge"));
  const close = button(t("Cancel"), () => dialog.close());
  const dialog = el("dialog", { className: "wide", "aria-labelledby": "merge-title", onclose: () => dialog.remove() },
    el("form", { onsubmit: submit },
      el("h2", { id: "merge-title" }, t("Merge the files of {session}", { session: id })),
      el("p", { className: "quiet" }, t("Brings what has changed in these files into those of the original, or of another copy.")),
      el("label", { htmlFor: "target" }, t("Into the files of")), target,
      el("div", { className: "past", role: "region", tabIndex: 0, "aria-label": t("What changes"), "aria-live": "polite" }, changes),
      complaint,
      el("div", { className: "answers" }, close, go)));
  document.body.append(dialog);
  dialog.showModal();
  target.focus();
  target.select();
  preview();

  function wait() {
    go.disabled = true;
    clearTimeout(timer);
    timer = window.setTimeout(preview, PAUSE);
  }

  /** @param {boolean} dryRun @returns {Promise<MergedFiles>} */
  function merge(dryRun) {
    const name = encodeURIComponent(target.value.trim());
    return api.send("POST", `/v1/versions/workspaces/${name}`, { source: id, dry_run: dryRun });
  }

  async function preview() {
    const turn = ++asked;
    say(complaint, "");
    changes.replaceChildren();
    if (target.value.trim() === "" || target.value.trim() === id) return;
    try {
      const plan = await merge(true);
      if (turn !== asked) return;
      changes.replaceChildren(...partsOf(plan));
      go.disabled = plan.files.length === 0;
    } catch (error) {
      if (turn === asked) fail(error);
    }
  }

  /** @param {Event} event */
  async function submit(event) {
    event.preventDefault();
    if (go.disabled) return;
    go.disabled = true;
    try {
      const done = await merge(false);
      app.announce(many("{n} file was merged", "{n} files were merged", done.files.length));
      if (done.conflicts.length === 0 && done.left.length === 0) return dialog.close();
      go.hidden = target.disabled = true;
      say(close, t("Close"));
      changes.replaceChildren(el("li", { className: "of" }, t("The merge is done. Look at these files:")), ...notesOf(done));
    } catch (error) {
      go.disabled = false;
      fail(error);
    }
  }

  function fail(/** @type {any} */ error) {
    say(complaint, error.message);
  }
}

/** @param {MergedFiles} plan @returns {HTMLElement[]} */
function partsOf(plan) {
  if (plan.files.length === 0) return [el("li", { className: "quiet" }, t("All changes are there already."))];
  const spoken = { added: t("Added"), changed: t("Changed"), merged: t("Merged by lines"), removed: t("Removed") };
  return [
    ...plan.files.map(({ path, change }) => el("li", { className: change === "removed" ? "removed" : "restored" },
      el("span", { "aria-hidden": "true" }, SIGNS[change]), el("span", { className: "unseen" }, spoken[change]), " ", path)),
    ...notesOf(plan),
  ];
}

/** @param {MergedFiles} plan @returns {HTMLElement[]} */
function notesOf({ conflicts, left }) {
  return [
    ...conflicts.map(({ path, files }) => el("li", {}, el("b", {}, t("Conflict")), " ",
      t("{path}: both have changed it; see {files}", { path, files: files.join(", ") }))),
    ...left.map((path) => el("li", {}, t("{path} stays: a program has changed it", { path }))),
  ];
}
