// What a conversation shows, computed without a browser: where markdown settles, boxes, branches, figures, files.

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.localStorage ??= { getItem: () => null };
globalThis.navigator ??= { language: "en" };
globalThis.HTMLElement ??= class {};
globalThis.customElements ??= { define() {} };
globalThis.document ??= { createElement: () => ({ append() {}, setAttribute() {}, addEventListener() {} }) };
const load = (name) => import(new URL(`../../server/cfs_server/dashboard/${name}.js`, import.meta.url));
const { isInCode, settledAt } = await load("text_flow");
const { beginning, contextUsed, costOf, isFailure, itemsOf, modelOf, secondsOf, subjectOf } = await load("items");
const { forksOf } = await load("branches");
const { markdownOf } = await load("export");
const { numbered, safeName, withFiles } = await load("attachments");

const settled = (text) => text.slice(0, settledAt(text));

test("a block is settled when another one has begun after a blank line", () => {
  assert.equal(settled("one\ntwo"), "");
  assert.equal(settled("one\n\n"), "");
  assert.equal(settled("one\n\ntwo"), "one\n\n");
  assert.equal(settled("one\n\ntwo\n\nthree"), "one\n\ntwo\n\n");
  assert.equal(settledAt("one\n\ntwo\n\nthree", 5), 10);
});

test("nothing is settled within code, which may hold blank lines", () => {
  assert.equal(settled("one\n\n```py\na\n\nb"), "one\n\n");
  assert.equal(settled("```py\na\n\nb\n```\n\nafter"), "```py\na\n\nb\n```\n\n");
  assert.equal(settled("~~~\n```\n\nb\n~~~~\n\nafter"), "~~~\n```\n\nb\n~~~~\n\n");
  assert.equal(settled("````\n```\n\nb"), "");
  assert.equal(settled("- a list\n\n  ```py\n\n  b\n\nc"), "");
});

test("a list goes on after a blank line", () => {
  assert.equal(settled("1. one\n\n2. two\n\n3"), "");
  assert.equal(settled("- one\n\n  more\n\n-"), "");
  assert.equal(settled("- one\n\nafter"), "- one\n\n");
  assert.equal(settled("a\n\n**bold** begins a block"), "a\n\n");
});

test("pieces that are settled one by one are those of the whole", () => {
  const text = "# A\n\none\n\n- a\n\n- b\n\n```\n\nx\n\n```\n\ntwo\n\n> q\n\nend";
  let from = 0;
  for (let end = 1; end <= text.length; end++) {
    const next = settledAt(text.slice(0, end), from);
    assert.ok(next >= from && next <= end);
    from = next;
  }
  assert.equal(from, settledAt(text));
});

test("it is known whether a text ends within code", () => {
  assert.ok(isInCode("a\n```py\nb"));
  assert.ok(!isInCode("a\n```py\nb\n```\n"));
  assert.ok(!isInCode("inline ```code``` here"));
});

const call = (id, name = "write_file", values = { path: "a" }) => ({ id, name, arguments: values });
const HISTORY = [
  { role: "user", content: "go" },
  { role: "assistant", content: "", tool_calls: [call("1"), call("2")] },
  { role: "tool", content: "two", tool_call_id: "2" },
  { role: "tool", content: "one", tool_call_id: "1" },
  { role: "assistant", content: "done" },
  { role: "tool", content: "whose?", tool_call_id: "9" },
  { role: "user", content: "thanks" },
];

test("results belong to the calls that they answer", () => {
  const items = itemsOf(HISTORY);
  assert.deepEqual(items.map(({ index, end, first }) => [index, end, first]),
    [[0, 1, true], [1, 4, true], [4, 5, false], [5, 6, false], [6, 7, true]]);
  assert.deepEqual(items[1].steps.map(({ result, at }) => [result.content, at]), [["one", 3], ["two", 2]]);
});

test("what is shown does not begin with a result", () => {
  assert.equal(beginning(HISTORY, 4), 1);
  assert.equal(beginning(HISTORY, 3), 4);
  assert.equal(beginning(HISTORY, 100), 0);
});

test("the time of a call is that from its message to its result", () => {
  const [, item] = itemsOf(HISTORY);
  const times = [1, 2, 2.5, 4];
  assert.equal(secondsOf(item, item.steps[0], (at) => times[at]), 2);
  assert.equal(secondsOf(item, item.steps[1], () => 7), null);
  assert.equal(secondsOf(item, item.steps[1], () => null), null);
});

test("failures of tools and of commands are seen", () => {
  assert.ok(isFailure("Error: no such file"));
  assert.ok(isFailure('{"stdout": "", "exit_code": 1}'));
  assert.ok(!isFailure('{"stdout": "", "exit_code": 0}'));
  assert.ok(!isFailure('{"exit_code" is no JSON'));
  assert.ok(!isFailure("Errors were found in no file"));
});

test("a call is named by what it is about", () => {
  assert.deepEqual(subjectOf(call("1", "read_file", { line: 3, path: "a.py" })), { subject: "a.py", rest: [["line", 3]] });
  assert.deepEqual(subjectOf(call("1", "think", {})), { subject: "", rest: [] });
});

const from = (id, session, messages, created) => ({ id, origin: session ? { session, messages } : null, created });
const at = (sessions, id) => [...forksOf(sessions, id)].map(([index, { ids, at: shown }]) => [index, ids, shown]).sort();

test("branches part where the copies begin", () => {
  const family = [from("a", null, 0, 1), from("a-2", "a", 2, 2), from("a-3", "a", 2, 3), from("b", null, 0, 1)];
  assert.deepEqual(at(family, "a"), [[2, ["a", "a-2", "a-3"], 0]]);
  assert.deepEqual(at(family, "a-3"), [[2, ["a", "a-2", "a-3"], 2]]);
  assert.deepEqual(at(family, "b"), []);
});

test("a copy of a copy that parts earlier is one of the original", () => {
  const family = [from("a", null, 0, 1), from("a-2", "a", 4, 2), from("a-3", "a-2", 4, 3), from("a-4", "a-2", 2, 4)];
  assert.deepEqual(at(family, "a"), [[2, ["a", "a-4"], 0], [4, ["a", "a-2", "a-3"], 0]]);
  assert.deepEqual(at(family, "a-2"), [[2, ["a", "a-4"], 0], [4, ["a", "a-2", "a-3"], 1]]);
});

test("a branch of a branch shows both places", () => {
  const family = [from("a", null, 0, 1), from("b", "a", 2, 2), from("c", "b", 6, 3)];
  assert.deepEqual(at(family, "c"), [[2, ["a", "b"], 1], [6, ["b", "c"], 1]]);
  assert.deepEqual(at(family, "a"), [[2, ["a", "b"], 0]]);
});

test("branches of a session that is gone find each other", () => {
  assert.deepEqual(at([from("b", "a", 2, 2), from("c", "a", 2, 3)], "c"), [[2, ["b", "c"], 1]]);
  assert.deepEqual(at([from("b", "a", 2, 2)], "b"), []);
});

test("cost and context come from the usage", () => {
  const usage = { prompt_tokens: 1_000_000, completion_tokens: 500_000 };
  assert.equal(costOf(usage, { prompt: 2, completion: 8, currency: "USD" }), 6);
  assert.equal(costOf(usage, null), null);
  assert.equal(contextUsed({ prompt_tokens: 600, completion_tokens: 400 }, 2000), 0.5);
  assert.equal(contextUsed(usage, null), null);
});

test("markdown holds calls and results, whatever backticks they have", () => {
  const made = markdownOf("s", { title: "T", history: [
    { role: "user", content: "go" },
    { role: "assistant", content: "", tool_calls: [call("1", "write_file", { path: "a`b", content: "```\nx\n```" })] },
    { role: "tool", content: "created", tool_call_id: "1" },
  ], times: [0, 0, 0] });
  assert.equal(made, [
    "# T", "## User · 1970-01-01 00:00:00 UTC", "go", "## Assistant · 1970-01-01 00:00:00 UTC", "**write_file** `` a`b ``",
    "content:", "````\n```\nx\n```\n````", "```\ncreated\n```\n",
  ].join("\n\n"));
});

test("names of attached files are safe, and the message names them", () => {
  assert.equal(safeName("../a/b\u0000.txt"), "_a_b_.txt");
  assert.equal(safeName("..."), "file");
  assert.equal(numbered("a.tar.gz", 2), "a.tar-2.gz");
  assert.equal(numbered("README", 3), "README-3");
  assert.equal(withFiles("Read it", ["a.txt"]), "Read it\n\nAttached file in the workspace:\n- `a.txt`");
  assert.equal(withFiles("no files", []), "no files");
});

test("a session shows the context and the price of the model that its settings name", () => {
  const [small, big] = [{ name: "small", context: 2048 }, { name: "big", context: 32768 }];
  const me = { model: small, models: [small, big] };
  assert.equal(modelOf(me, { model: "big" }), big);
  assert.equal(modelOf(me, { model: null }), small);
  assert.equal(modelOf(me, { model: "gone" }), small);
  assert.equal(modelOf(me, null), small);
  assert.equal(modelOf(null, null), null);
});
