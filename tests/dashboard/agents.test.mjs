// What the views of agents compute: differences, who changed which file, how work ended, the scale of the timeline.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const from = (name) => import(new URL(`../../server/cfs_server/dashboard/${name}`, import.meta.url));
const { counted, difference, nearby, sideBySide } = await from("diff.js");
const { changesOf, sidesOf, treeOf } = await from("changes.js");
const { Node } = await from("node.js");
const { outcomeOf, runningCall } = await from("outcome.js");
const { clustered, isWhole, marks, moved, position, within, zoomed } = await from("timeline_scale.js");

const brief = (lines) => lines.map(({ sign, text }) => `${sign}${text}`);

test("a difference has each line once, with its numbers on both sides", () => {
  const found = difference("one\ntwo\nthree\n", "one\n2\nthree\nfour\n");
  assert.deepEqual(brief(found), [" one", "-two", "+2", " three", "+four"]);
  assert.deepEqual(found.map(({ old, fresh }) => [old, fresh]), [[1, 1], [2, null], [null, 2], [3, 3], [null, 4]]);
  assert.deepEqual(counted(found), { added: 2, removed: 1 });
  assert.deepEqual(difference("same\n", "same\n").map(({ sign }) => sign), [" "]);
  assert.deepEqual(difference("", ""), []);
});

test("the two texts can be read off any difference, and it keeps as many lines as it can", () => {
  let seed = 7;
  const random = (most) => (seed = (seed * 48271) % 2147483647) % most;
  const text = () => Array.from({ length: random(14) }, () => "abcd"[random(4)]);
  for (let round = 0; round < 2000; round++) {
    const [old, fresh] = [text(), text()];
    const found = difference(old.join("\n"), fresh.join("\n"));
    assert.deepEqual(found.filter(({ sign }) => sign !== "+").map(({ text: line }) => line), old);
    assert.deepEqual(found.filter(({ sign }) => sign !== "-").map(({ text: line }) => line), fresh);
    assert.equal(found.filter(({ sign }) => sign === " ").length, common(old, fresh));
    assert.equal(sideBySide(found).filter(([left]) => left !== null).length, old.length);
  }
});

/** The length of the longest common sequence, by the plain definition. */
function common(old, fresh) {
  const table = Array.from({ length: old.length + 1 }, () => new Array(fresh.length + 1).fill(0));
  old.forEach((one, i) => fresh.forEach((other, j) => {
    table[i + 1][j + 1] = one === other ? table[i][j] + 1 : Math.max(table[i][j + 1], table[i + 1][j]);
  }));
  return table[old.length][fresh.length];
}

test("words that differ are marked in lines that are alike, and in no others", () => {
  const [removed, added] = difference("price = count * rate", "price = count * (1 + rate)");
  const marked = ({ text, words }) => words.map(([start, end]) => text.slice(start, end));
  assert.deepEqual(marked(removed), []);
  assert.deepEqual(marked(added), ["(1 + ", ")"]);
  const chinese = difference("灯塔在海边", "灯塔在山边").map(marked);
  assert.deepEqual(chinese, [["海"], ["山"]]);
  assert.deepEqual(difference("return 1", "import os").map(({ words }) => words), [[], []]);
});

test("equal lines far from a change are counted and left out", () => {
  const old = Array.from({ length: 40 }, (_, n) => `line ${n}`);
  const fresh = old.with(20, "other");
  const found = nearby(difference(old.join("\n"), fresh.join("\n")), 2);
  assert.deepEqual(found.map(({ sign, left }) => (sign === "…" ? left : sign)), [18, " ", " ", "-", "+", " ", " ", 17]);
});

test("a long text that was changed in many places is compared line by line", () => {
  const old = Array.from({ length: 20_000 }, (_, n) => `line ${n}`);
  const fresh = old.map((line, n) => (n % 100 ? line : `changed ${n}`));
  assert.deepEqual(counted(difference(old.join("\n"), fresh.join("\n"))), { added: 200, removed: 200 });
  const other = old.map((line) => `${line}!`);
  assert.deepEqual(counted(difference(old.join("\n"), other.join("\n"))), { added: 20_000, removed: 20_000 });
});

const call = (id, name, given) => ({ role: "assistant", content: "", tool_calls: [{ id, name, arguments: given }] });
const result = (id, content) => ({ role: "tool", content, tool_call_id: id });

test("the history of a file has the texts before and after, by several agents, without what was refused", () => {
  const coder = {
    id: "main/coder",
    messages: [call("1", "write_file", { path: "/workspace/a.txt", content: "one\ntwo\n" }), result("1", "created"),
      call("2", "write_file", { path: "a.txt", content: "x" }), result("2", "Error: refused")],
    times: new Map([[0, 10], [2, 20]]),
  };
  const tester = {
    id: "main/tester",
    messages: [call("1", "edit_file", { path: "./a.txt", old: "two", new: "2" })],
    times: new Map([[0, 30]]),
  };
  const changes = changesOf([tester, coder]);
  assert.deepEqual([...changes.keys()], ["a.txt"]);
  const [first, second] = changes.get("a.txt");
  assert.deepEqual([first.by, first.after, first.pending], ["main/coder", "one\ntwo\n", false]);
  assert.deepEqual([second.by, second.before, second.after, second.pending], ["main/tester", "one\ntwo\n", "one\n2\n", true]);
  assert.deepEqual(sidesOf(second), ["one\ntwo\n", "one\n2\n"]);
  tester.messages.push(result("1", "changed a.txt"));
  assert.equal(changesOf([tester, coder]).get("a.txt")[1].pending, false);
});

test("of an edit of an unknown text its own piece is shown", () => {
  const agent = { id: "main", messages: [call("1", "edit_file", { path: "b", old: "x", new: "y" })], times: new Map() };
  assert.deepEqual(sidesOf(changesOf([agent]).get("b")[0]), ["x", "y"]);
});

test("files stand in folders, and folders with nothing else in them stand together", () => {
  const shape = (entries) => entries.map(({ name, children }) => (children === null ? name : [name, shape(children)]));
  const found = treeOf(["b.txt", "src/app/one/a2.py", "src/app/one/a10.py", "docs/x.md"]);
  assert.deepEqual(shape(found), [["docs", ["x.md"]], ["src/app/one", ["a2.py", "a10.py"]], "b.txt"]);
  assert.equal(found[1].path, "src/app/one");
});

const ended = (...messages) => outcomeOf({ state: "idle", messages: [{ role: "user", content: "go" }, ...messages] });
const said = (content) => ({ role: "assistant", content });

for (const { about, state, messages, outcome } of JSON.parse(readFileSync(new URL("../fixtures/outcomes.json", import.meta.url), "utf8"))) {
  test(`how an agent ended is read from its report, its error, or its mark: ${about}`, () => {
    assert.deepEqual(outcomeOf({ state, messages }), outcome);
  });
}

test("what the runtime says when tokens, replies or time are used up counts as a budget", () => {
  const source = readFileSync(new URL("../../agent_runtime/cfs_agents/base/messages.py", import.meta.url), "utf8");
  const templates = [...source.matchAll(/^    (?:budget|no_answer|too_long)="(.*)",$/gm)].map(([, text]) => text);
  assert.equal(templates.length, 6); // English and Chinese
  for (const template of templates) {
    const reason = template.replace(/\{[^}]*\}/g, () => "12");
    assert.equal(ended(said(`[Error: ${reason}]`)).kind, "budget", reason);
  }
});

test("the running tool is the last call without a result", () => {
  const messages = [call("1", "read_file", { path: "a" }), result("1", "a"), call("2", "execute_command", { command: "ls" })];
  const times = new Map([[2, 30]]);
  assert.deepEqual(runningCall({ messages, times }), { name: "execute_command", arguments: { command: "ls" }, since: 30 });
  assert.equal(runningCall({ messages: [...messages, result("2", "")], times }), null);
});

test("a call that never gets a result ends with its turn, and does not run again in the next one", () => {
  const user = { role: "user", content: "go" };
  const reported = [user, call("1", "sys_finish_task", {}), said("done")];
  const node = new Node("main/a");
  const happens = (number, type, time, data) => node.take({ number, type, time, data: { turn: "t", ...data } });
  reported.forEach((message, index) => happens(index + 1, "message.added", 10 + index, { index, message }));
  assert.equal(node.calls[0].until, null);
  happens(4, "turn.finished", 15, { reply: "done" });
  happens(5, "message.added", 90, { index: 3, message: user });
  assert.deepEqual(node.calls.map(({ until, failed }) => [until, failed]), [[15, false]]);
  const later = new Node("main/a"); // who looks later knows only the messages
  later.recall({ history: [...reported, user, call("2", "read_file", {})], times: [10, 11, 12, 90, 91], state: "generating" });
  assert.deepEqual(later.calls.map(({ until }) => until), [12, null]);
});

test("zooming keeps the time under the pointer, and never leaves what there is", () => {
  const whole = { from: 0, to: 100 };
  const seen = zoomed(whole, whole, 0.5, 20);
  assert.deepEqual(seen, { from: 10, to: 60 });
  assert.equal(position(seen, 500, 20), position(whole, 500, 20));
  assert.deepEqual(zoomed(seen, whole, 10, 20), whole);
  assert.ok(isWhole(zoomed(seen, whole, 10, 20), whole));
  const least = zoomed(seen, whole, 1e-9, 20);
  assert.ok(Math.abs(least.to - least.from - 0.2) < 1e-9);
  assert.deepEqual(moved({ from: 10, to: 60 }, whole, 70), { from: 50, to: 100 });
  assert.deepEqual(within({ from: -50, to: 300 }, whole), whole);
});

test("the axis marks round times of the local clock, some way apart", () => {
  const { step, times } = marks({ from: 1000, to: 1060 }, 600);
  assert.equal(step, 10);
  assert.deepEqual(times, [1000, 1010, 1020, 1030, 1040, 1050, 1060]);
  const day = marks({ from: 0, to: 6 * 86400 }, 600, 3600);
  assert.deepEqual([day.step, day.times[0]], [86400, 82800]); // midnight one hour ahead of UTC
});

test("calls that lie on each other are put together", () => {
  const found = clustered([1, 2, 30, 60, 65], (item) => item, 10);
  assert.deepEqual(found.map(({ items }) => items), [[1, 2], [30], [60, 65]]);
});
