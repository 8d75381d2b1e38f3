// The colours of the page: every text can be read on every ground, light and dark (WCAG 2.2, 1.4.3).

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const CSS = readFileSync(new URL("../../server/cfs_server/dashboard/tokens.css", import.meta.url), "utf8");
const TEXTS = ["text", "quiet", "faint", "accent", "good", "warn", "bad", ...Array.from({ length: 8 }, (_, n) => `agent-${n}`)];
const GROUNDS = ["ground", "raised", "sunken"];
const PAIRS = [
  ...TEXTS.flatMap((text) => GROUNDS.map((ground) => [text, ground])),
  ["on-accent", "accent"],
  ...["text", "accent", "quiet"].map((text) => [text, "accent-ground"]),
  ...["good", "warn", "bad"].flatMap((name) => [[name, `${name}-ground`], ["text", `${name}-ground`]]),
  ["text", "added"],
  ["text", "removed"],
];

/** A colour's two values, light and dark. */
function colour(name) {
  const found = CSS.match(new RegExp(`--${name}: light-dark\\((#\\w{6}), (#\\w{6})\\)`));
  assert.ok(found, `--${name} is a pair of colours`);
  return [found[1], found[2]];
}

function luminance(hex) {
  const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
  const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}

for (const [text, ground] of PAIRS) {
  test(`${text} on ${ground}`, () => {
    colour(text).forEach((value, scheme) => {
      const found = contrast(value, colour(ground)[scheme]);
      assert.ok(found >= 4.5, `${["light", "dark"][scheme]}: ${found.toFixed(2)}`);
    });
  });
}

test("lines of fields are seen", () => {
  colour("line-strong").forEach((value, scheme) => {
    assert.ok(contrast(value, colour("ground")[scheme]) >= 3, ["light", "dark"][scheme]);
  });
});

test("distances are multiples of four pixels", () => {
  for (const [, name, value] of CSS.matchAll(/--(s\d+): (\d+)px/g)) assert.equal(Number(value) % 4, 0, name);
});
