// The dashboard's reducer gives the state that the server had, for the events that Python's reducer is tested with.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const read = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
const source = read("../../server/cfs_server/dashboard/session_state.js");
const { SessionState } = await import(`data:text/javascript,${encodeURIComponent(source)}`);
const fixtures = new URL("../fixtures/events/", import.meta.url);

const younger = { failed: false, open_questions: 0, questions: {}, title: null, origin: null, work: null }; // fields that old recordings lack

function shown({ turn, ...state }) {
  if (turn === null) return { ...state, turn };
  const { since, ...rest } = turn;
  return { ...state, turn: rest };
}

for (const name of readdirSync(fixtures)) {
  const recording = JSON.parse(read(`../fixtures/events/${name}`));
  test(`${name}: ${recording.about}`, () => {
    const state = new SessionState();
    state.history = [];
    if (recording.start) state.restore(recording.start);
    for (const event of recording.events) {
      state.apply(event);
      assert.equal(state.apply(event), false);
    }
    assert.deepEqual(shown({ ...state }), { ...younger, ...recording.state });
  });
}
