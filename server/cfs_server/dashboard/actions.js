// What can be done to a session: a button for what is urgent, a menu for the rest.

import { ask } from "./dialog.js";
import { button, say } from "./dom.js";
import { exportSession } from "./export.js";
import { parentOf } from "./ids.js";
import { menuButton } from "./menu.js";
import { many, t } from "./text.js";

/** The buttons of a session; `update` lets each be what the session allows. @param {any} context */
export function actionsOf({ api, live, app, conversation }) {
  const { id } = conversation;
  const announced = (/** @type {() => Promise<unknown>} */ work) => () =>
    work().catch((error) => app.announce(error.message));
  const cancelAll = button(t("Stop tree"), announced(() => api.cancel(id, true)), {
    title: t("Stop the turns of this session and of all its sub-sessions, queued ones included"),
  });
  const pause = button(t("Pause"), announced(() => api.settings(id, { paused: !conversation.settings.paused })), {
    title: t("The agent pauses before its next step until you resume it"),
  });
  const fork = async () => {
    const made = await ask({
      title: t("Copy {session}", { session: id }), label: t("Name of the copy"), value: "", action: t("Copy"),
      hint: t("The copy gets the same messages and settings. Leave the name empty for a numbered one."),
      work: (name) => api.fork(id, name.trim()),
    });
    if (made) app.go(made.id, "conversation");
  };
  const rename = () => ask({
    title: t("Rename {session}", { session: id }), label: t("New name"), value: id, action: t("Rename"),
    hint: t("Its sub-sessions are renamed, too."),
    work: (name) => api.rename(id, name.trim()),
  });
  const remove = async () => {
    const below = live.sessions.family(id).length - 1;
    const done = await ask({
      title: t("Delete {session}?", { session: id }), action: t("Delete"), danger: true,
      hint: below ? many("This permanently deletes the session and its {n} sub-session.",
        "This permanently deletes the session and its {n} sub-sessions.", below) : t("This permanently deletes the session."),
      work: () => api.remove(id),
    });
    if (done) app.go(parentOf(id));
  };
  const save = (/** @type {"txt" | "json" | "md"} */ form) => announced(() => exportSession(api, id, form));
  const menu = menuButton({ label: t("Actions of the session"), items: () => {
    const gone = conversation.gone !== null;
    return [
      { label: t("Rename"), icon: "edit", disabled: gone, run: rename },
      { label: t("Copy session"), icon: "branch", disabled: gone, run: fork },
      null,
      { label: t("Export as markdown"), icon: "download", disabled: gone, run: save("md") },
      { label: t("Export as JSON"), icon: "download", disabled: gone, run: save("json") },
      { label: t("Export the transcript"), icon: "download", disabled: gone, run: save("txt") },
      null,
      { label: t("Delete"), icon: "trash", danger: true, disabled: gone, run: remove },
    ];
  } });
  const update = () => {
    const { busy, queued, settings, gone } = conversation;
    const node = live.sessions.get(id);
    const below = node?.busyBelow ?? 0;
    cancelAll.hidden = gone !== null || !(below || queued || (busy && node?.children.length));
    // An agent looks at this before each step; a model's turn has none.
    pause.hidden = gone !== null || settings?.driver !== "agent" || !(busy || below || settings.paused);
    if (!pause.hidden) say(pause, settings.paused ? t("Resume") : t("Pause"));
  };
  return { elements: [cancelAll, pause, menu], update };
}
