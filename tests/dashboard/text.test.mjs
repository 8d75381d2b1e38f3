// Every text of the page has a Chinese twin with the same placeholders, and none is left over.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const folder = new URL("../../server/cfs_server/dashboard/", import.meta.url);
const { ZH } = await import(new URL("zh.js", folder));
const CALL = /\b(?:t|many)\(\s*("(?:[^"\\]|\\.)*")(?:,\s*("(?:[^"\\]|\\.)*"))?/g;

const used = new Map();
for (const name of readdirSync(folder)) {
  if (!name.endsWith(".js") || name === "zh.js" || name === "text.js") continue;
  for (const [, one, other] of readFileSync(new URL(name, folder), "utf8").matchAll(CALL)) {
    for (const text of [one, other]) if (text !== undefined) used.set(JSON.parse(text), name);
  }
}

const slots = (text) => [...text.matchAll(/\{\w+\}/g)].map(([slot]) => slot).sort();

test("every text has a translation", () => {
  const missing = [...used].filter(([text]) => !(text in ZH)).map(([text, name]) => `${name}: ${text}`);
  assert.deepEqual(missing, []);
});

test("no translation is left over", () => {
  assert.deepEqual(Object.keys(ZH).filter((text) => !used.has(text)), []);
});

test("translations have the placeholders of the text", () => {
  for (const [text, translated] of Object.entries(ZH)) assert.deepEqual(slots(translated), slots(text), text);
});
