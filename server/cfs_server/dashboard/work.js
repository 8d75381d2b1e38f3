// What an agent says of its work: its plan, its jobs in the background, and the budget of its tree.

import { el, mark } from "./dom.js";
import { t } from "./text.js";
import { money } from "./meters.js";

/** @typedef {import("./session_state.js").Work} Work */

const STATUSES = { pending: t("open"), in_progress: t("in progress"), completed: t("done") };

/** The plan, the jobs and the budget of an agent, as far as there are any. */
export class WorkView extends HTMLElement {
  #drawn = "";

  /** @param {Work | null} work */
  show(work) {
    const drawn = JSON.stringify(work);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const parts = work === null ? [] : [...budgetLines(work), ...planLines(work), ...jobLines(work)];
    this.hidden = parts.length === 0;
    this.replaceChildren(...parts);
  }
}

function budgetLines({ budget }) {
  return budget === null ? [] : [el("p", { className: "quiet figure" }, budgetText(budget))];
}

/** What is spent of a budget, and what is left, in its own unit. */
export function budgetText({ limit, tokens, cost }) {
  if (limit.startsWith("$")) {
    const left = Math.max(0, Number(limit.slice(1)) - cost);
    return t("{spent} of {limit} spent, {left} left", { spent: money(cost, "USD"), limit, left: money(left, "USD") });
  }
  const left = Math.max(0, Number(limit) - tokens);
  return t("{spent} of {limit} tokens spent, {left} left", { spent: tokens, limit, left });
}

function planLines({ plan }) {
  if (plan.length === 0) return [];
  const steps = plan.map(({ text, status }) => {
    const step = el("li", {}, text, el("span", { className: "quiet" }, ` (${STATUSES[status] ?? status})`));
    mark(step, "data-status", status);
    return step;
  });
  return [el("ol", { className: "plan", "aria-label": t("Plan") }, ...steps)];
}

function jobLines({ jobs }) {
  if (jobs.length === 0) return [];
  const lines = jobs.map(({ id, command, state }) => el("li", {}, el("code", {}, command), ` ${t("job {id}", { id })}: ${state}`));
  return [el("ul", { className: "jobs", "aria-label": t("Jobs in the background") }, ...lines)];
}

customElements.define("cfs-work", WorkView);
