// Where a session stands, in a word and a colour: the same in the header, the columns and the timeline.

import { outcomeOf } from "./outcome.js";
import { t } from "./text.js";

/** How an agent ended, in a word. @type {Record<string, string>} */
export const OUTCOMES = {
  finished: t("finished"),
  unverified: t("not verified"),
  budget: t("out of budget"),
  cancelled: t("cancelled"),
  failed: t("failed"),
};

/** The colour of an outcome: a `data-state` of a badge. @type {Record<string, string>} */
export const COLOURS = { finished: "good", unverified: "warn", budget: "warn", cancelled: "warn", failed: "bad" };

/** The icon of an outcome. @type {Record<string, string>} */
export const SIGNS = { finished: "check", unverified: "help", budget: "clock", cancelled: "stop", failed: "alert" };

/**
 * The `data-state` and the words of a badge. Only of an agent it is said how its last turn ended, of others whether it
 * failed.
 * @param {any} conversation
 * @param {any} node what the tree knows of the same session
 * @returns {[string, string]}
 */
export function stateOf(conversation, node = null) {
  const { gone, settings, state } = conversation;
  if (gone !== null) return ["gone", t("gone")];
  if (node?.open_questions) return ["asking", t("asks you")];
  if (settings?.paused) return ["paused", t("paused")];
  if (state === "generating") return ["generating", t("working")];
  if (state === "waiting_for_agent") {
    return node === null || node.waits ? ["waiting_for_agent", t("waits for an agent")] : ["generating", t("working")];
  }
  const outcome = outcomeOf(conversation);
  const isSaid = settings?.driver === "agent" || outcome?.kind === "failed";
  return outcome === null || !isSaid ? ["idle", t("idle")] : [COLOURS[outcome.kind], OUTCOMES[outcome.kind]];
}
