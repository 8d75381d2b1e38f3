// What can be done to a session, as a list: the header shows it as a button and a menu.

import { ask } from "./dialog.js";
import { exportSession } from "./export.js";
import { parentOf } from "./ids.js";
import { openMerge } from "./merging.js";
import { openShare } from "./share.js";
import { many, t } from "./text.js";
import { openVersions } from "./versions.js";

/**
 * An action as it is now. The `primary` one is what one is most likely to want.
 * @typedef {{ name: string, label: string, icon: string, run: () => void, hint?: string, danger?: boolean,
 *   disabled?: boolean, primary?: boolean, group: number }} Action
 */

/**
 * The actions that a session allows now.
 * @param {{ api: any, live: any, app: any, conversation: any }} context
 * @returns {Action[]}
 */
export function actionsOf({ api, live, app, conversation }) {
  const { id, busy, queued, settings, gone } = conversation;
  if (gone !== null) return [];
  const node = live.sessions.get(id);
  const below = node?.busyBelow ?? 0;
  const paused = settings?.paused ?? false;
  const { rights } = app;
  const may = { write: rights.mayWrite(id), steer: rights.maySteer(id), replace: rights.mayReplace(id) };
  const announced = (/** @type {() => Promise<any>} */ work) => () => {
    work().catch((error) => app.announce(error.message));
  };
  const save = (/** @type {"txt" | "json" | "md"} */ form) => announced(() => exportSession(api, id, form));
  const pause = {
    name: "pause", group: 0, icon: paused ? "play" : "pause", label: paused ? t("Resume") : t("Pause"), primary: paused,
    hint: t("The agent pauses before its next step until you resume it"),
    run: announced(() => api.settings(id, { paused: !paused })),
  };
  const stopTree = {
    name: "stop-tree", group: 0, icon: "stop", label: t("Stop tree"), primary: !paused,
    hint: t("Stop the turns of this session and of all its sub-sessions, queued ones included"),
    run: announced(() => api.cancel(id, true)),
  };
  const stop = {
    name: "stop", group: 0, icon: "stop", label: t("Stop"), hint: t("Stop the running turn"),
    run: announced(() => api.cancel(id, false)),
  };
  const tree = below > 0 || queued > 0 || (busy && (node?.children.length ?? 0) > 0);
  return [
    ...(busy && may.write ? [{ ...stop, primary: !paused && !tree }] : []),
    ...(tree && may.write ? [stopTree] : []),
    // An agent looks at this before each step; a model's turn has none.
    ...(may.steer && settings?.driver === "agent" && (busy || below > 0 || paused) ? [pause] : []),
    ...(rights.isShare ? [] : [{ name: "share", group: 1, icon: "share", label: t("Share"), primary: !paused && !busy && !tree,
      run: () => openShare(api, id) }]),
    { name: "copy-id", group: 1, icon: "link", label: t("Copy the name"), run: announced(() => navigator.clipboard.writeText(id)) },
    ...(may.replace ? [{ name: "rename", group: 1, icon: "tag", label: t("Rename"), run: () => rename(api, id) }] : []),
    ...(rights.mayCopy(id) ? [{ name: "copy", group: 1, icon: "branch", label: t("Copy session"), run: () => fork(api, app, id) }] : []),
    ...(rights.mayCopy(id) && !rights.isShare && parentOf(id) === null ? [{ name: "merge", group: 1, icon: "branch",
      label: t("Merge files"), run: () => openMerge({ api, app, id }) }] : []),
    { name: "versions", group: 1, icon: "history", label: t("Versions"), run: () => openVersions(
      { api, app, id, mayReplace: may.replace }) },
    { name: "export-markdown", group: 2, icon: "download", label: t("Export as markdown"), run: save("md") },
    { name: "export-json", group: 2, icon: "download", label: t("Export as JSON"), run: save("json") },
    { name: "export-transcript", group: 2, icon: "download", label: t("Export the transcript"), run: save("txt") },
    ...(may.replace ? [{ name: "delete", group: 3, icon: "trash", label: t("Delete"), danger: true,
      run: () => remove(api, app, live, id) }] : []),
  ];
}

async function fork(api, app, id) {
  const made = await ask({
    title: t("Copy {session}", { session: id }), label: t("Name of the copy"), action: t("Copy"),
    hint: t("The copy gets the same messages, settings and files. Leave the name empty for a numbered one."),
    work: (name) => api.fork(id, name.trim()),
  });
  if (made) app.go(made.id, "conversation");
}

function rename(api, id) {
  return ask({
    title: t("Rename {session}", { session: id }), label: t("New name"), value: id, action: t("Rename"),
    hint: t("Its sub-sessions are renamed, too."),
    work: (name) => api.rename(id, name.trim()),
  });
}

async function remove(api, app, live, id) {
  const below = live.sessions.family(id).length - 1;
  const done = await ask({
    title: t("Delete {session}?", { session: id }), action: t("Delete"), danger: true,
    hint: below
      ? many("This permanently deletes the session and its {n} sub-session.",
        "This permanently deletes the session and its {n} sub-sessions.", below)
      : t("This permanently deletes the session."),
    work: () => api.remove(id),
  });
  if (done) app.go(parentOf(id));
}
