// What can be done to a session: a button each.

import { ask } from "./dialog.js";
import { button, say } from "./dom.js";
import { parentOf } from "./ids.js";

/** The buttons of a session; `update` lets each be what the session allows. */
export function actionsOf({ api, live, app, conversation }) {
  const { id } = conversation;
  const told = (work) => () => work().catch((error) => app.announce(error.message));
  const cancel = button("Cancel", told(() => api.cancel(id, false)), { title: "Cancel the running turn" });
  const cancelAll = button("Cancel tree", told(() => api.cancel(id, true)), {
    title: "Cancel the turns of this session and of all its sub-sessions, queued ones included",
  });
  const pause = button("Pause", told(() => api.settings(id, { paused: !conversation.settings.paused })), {
    title: "Agents pause before their next step until you resume them",
  });
  const fork = button("Fork", async () => {
    const made = await ask({
      title: `Fork ${id}`, label: "Name of the copy", value: `${id}-copy`, action: "Fork",
      hint: "The copy gets the same messages and settings. The original does not change.",
      work: (name) => api.fork(id, name.trim()),
    });
    if (made) app.go(made.id, "conversation");
  });
  const rename = button("Rename", () =>
    ask({
      title: `Rename ${id}`, label: "New name", value: id, action: "Rename",
      hint: "Its sub-sessions are renamed, too.",
      work: (name) => api.rename(id, name.trim()),
    }),
  );
  const remove = button("Delete", async () => {
    const below = live.sessions.family(id).length - 1;
    const done = await ask({
      title: `Delete ${id}?`, action: "Delete", danger: true,
      hint: below ? `This permanently deletes the session and its ${below} ${below === 1 ? "sub-session" : "sub-sessions"}.` : "This permanently deletes the session.",
      work: () => api.remove(id),
    });
    if (done) app.go(parentOf(id));
  });
  const all = [cancel, cancelAll, pause, fork, rename, remove];
  const update = () => {
    const { busy, queued, settings, gone } = conversation;
    const node = live.sessions.get(id);
    const below = node?.busyBelow ?? 0;
    for (const each of all) each.disabled = gone !== null;
    cancel.disabled ||= !busy;
    cancelAll.hidden = !(node?.children.length || queued);
    cancelAll.disabled ||= !busy && !queued && !below;
    pause.hidden = settings === null || !("paused" in settings);
    if (!pause.hidden) say(pause, settings.paused ? "Resume" : "Pause");
  };
  return { elements: all, update };
}
