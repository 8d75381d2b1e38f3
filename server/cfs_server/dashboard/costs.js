// What was spent on models: by day, session, model or principal, as far as the caller may see it.

import { el, say } from "./dom.js";
import { money } from "./meters.js";
import { t } from "./text.js";

/** @typedef {{ day: string, principal: string, session: string, model: string, turns: number, prompt_tokens: number,
 *   completion_tokens: number, cost: number, unpriced_tokens: number }} CostRow */

const GROUPS = { day: t("Day"), session: t("Session"), model: t("Model"), principal: t("Principal") };

/**
 * Open the dialog that shows the costs.
 * @param {import("./api.js").Api} api
 */
export function openCosts(api) {
  /** @type {CostRow[]} */
  let rows = [];
  const status = el("p", { className: "quiet", role: "status" });
  const heading = el("th", { scope: "col" });
  const body = el("tbody");
  const group = el("select", { id: "costs-by", onchange: draw },
    ...Object.entries(GROUPS).map(([value, name]) => el("option", { value }, name)));

  function draw() {
    const by = /** @type {keyof typeof GROUPS} */ (group.value);
    say(heading, GROUPS[by]);
    body.replaceChildren(...grouped(rows, by).map((sum) => el("tr", {},
      el("th", { scope: "row" }, sum.name || t("without a session")),
      el("td", {}, sum.turns.toLocaleString()),
      el("td", {}, sum.tokens.toLocaleString()),
      el("td", {}, sum.tokens > 0 && sum.tokens === sum.unpriced ? t("no price") : money(sum.cost, "USD")))));
  }

  const dialog = el("dialog", { className: "wide", "aria-labelledby": "costs-title", onclose: () => dialog.remove() },
    el("form", { method: "dialog" },
      el("h2", { id: "costs-title" }, t("Costs")),
      el("p", { className: "quiet" }, t("What was spent on models in the last 92 days. A day begins at midnight in UTC.")),
      el("label", { htmlFor: "costs-by" }, t("Group by")), group,
      el("div", { className: "costs", role: "region", tabIndex: 0, "aria-label": t("Costs") },
        el("table", {}, el("thead", {}, el("tr", {}, heading,
          ...[t("Turns"), t("Tokens"), t("Cost")].map((name) => el("th", { scope: "col" }, name)))), body)),
      status,
      el("div", { className: "answers" }, el("button", { type: "submit", className: "button" }, t("Close")))));
  document.body.append(dialog);
  dialog.showModal();
  draw();
  api.json("/v1/costs").then(({ costs }) => {
    rows = costs;
    draw();
    say(status, rows.length === 0 ? t("Nothing was spent.") : "");
  }, (error) => say(status, error.message));
}

/**
 * Sums of the rows that have one value in common: days from the newest, others from the most expensive.
 * @param {CostRow[]} rows
 * @param {"day" | "session" | "model" | "principal"} by
 */
function grouped(rows, by) {
  /** @type {Map<string, { name: string, turns: number, tokens: number, cost: number, unpriced: number }>} */
  const sums = new Map();
  for (const row of rows) {
    const sum = sums.get(row[by]) ?? { name: row[by], turns: 0, tokens: 0, cost: 0, unpriced: 0 };
    sum.turns += row.turns;
    sum.tokens += row.prompt_tokens + row.completion_tokens;
    sum.cost += row.cost;
    sum.unpriced += row.unpriced_tokens;
    sums.set(row[by], sum);
  }
  const list = [...sums.values()];
  return by === "day" ? list : list.sort((a, b) => b.cost - a.cost || b.tokens - a.tokens);
}
