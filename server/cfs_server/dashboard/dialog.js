// Questions to the user, in the browser's own dialog: it keeps the focus, and Escape leaves it.

import { button, el, say } from "./dom.js";
import { t } from "./text.js";

/**
 * Ask for a text, or with no `label` for a yes; `work` is then done while the dialog is open, and what it returns is
 * the answer. Undefined when the user leaves. An error is shown and the user may try again.
 * @param {{ title: string, label?: string | null, value?: string, hint?: string, action: string, danger?: boolean,
 *   work: (answer: string) => any }} question
 * @returns {Promise<any>}
 */
export function ask({ title, label = null, value = "", hint = "", action, danger = false, work }) {
  return new Promise((resume) => {
    let answer;
    const field = label === null ? null : el("input", { id: "answer", type: "text", value, spellcheck: false,
      autocomplete: "off" });
    const complaint = el("p", { className: "complaint", role: "alert" });
    const go = el("button", { type: "submit", className: `button ${danger ? "danger" : "primary"}` }, action);
    const onsubmit = async (event) => {
      event.preventDefault();
      go.disabled = true;
      try {
        answer = (await work(field?.value ?? "")) ?? true;
        dialog.close();
      } catch (error) {
        say(complaint, error.message);
      } finally {
        go.disabled = false;
      }
    };
    const form = el(
      "form",
      { onsubmit },
      el("h2", { id: "question" }, title),
      hint === "" ? null : el("p", { id: "hint", className: "quiet" }, hint),
      field && el("label", { htmlFor: "answer" }, label),
      field,
      complaint,
      el("div", { className: "answers" }, button(t("Cancel"), () => dialog.close()), go),
    );
    const dialog = el("dialog", { "aria-labelledby": "question" }, form);
    if (hint !== "") dialog.setAttribute("aria-describedby", "hint");
    dialog.addEventListener("close", () => {
      dialog.remove();
      resume(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
    (field ?? go).focus();
    field?.select();
  });
}
