// The difference of two texts: by lines, and within changed lines by words.

const MOST_EDITS = 1200; // beyond that many a text counts as replaced as a whole
const MOST_WORDS = 400; // in a line whose words are compared
const ALIKE = 0.35; // the part of two lines that must be equal for the one to be a changed version of the other

/**
 * A line of a difference: the sign is " ", "-", "+", or "…" where `left` equal lines are left out. `old` and `fresh` are
 * its numbers, from 1; `words` are the ranges in its text that a counterpart does not have.
 * @typedef {{ sign: string, text: string, old: number | null, fresh: number | null, words: [number, number][], left?: number }} Line
 */

/**
 * Compare two texts line by line.
 * @param {string} before
 * @param {string} after
 * @returns {Line[]}
 */
export function difference(before, after) {
  const old = lines(before);
  const fresh = lines(after);
  const found = compare(old, fresh).map(({ sign, i, j }) => ({
    sign,
    text: sign === "+" ? fresh[j] : old[i],
    old: sign === "+" ? null : i + 1,
    fresh: sign === "-" ? null : j + 1,
    words: /** @type {[number, number][]} */ ([]),
  }));
  for (const { removed, added } of blocks(found)) markWords(removed, added);
  return found;
}

/**
 * Leave out equal lines that are far from any change.
 * @param {Line[]} found
 * @param {number} around how many lines to keep on each side of a change
 * @returns {Line[]}
 */
export function nearby(found, around = 3) {
  const kept = new Set();
  found.forEach(({ sign }, index) => {
    if (sign === " ") return;
    for (let near = index - around; near <= index + around; near++) kept.add(near);
  });
  /** @type {Line[]} */
  const shown = [];
  found.forEach((line, index) => {
    if (kept.has(index)) shown.push(line);
    else if (shown.at(-1)?.sign === "…") shown[shown.length - 1].left = (shown[shown.length - 1].left ?? 0) + 1;
    else shown.push({ sign: "…", text: "", old: line.old, fresh: line.fresh, words: [], left: 1 });
  });
  return shown;
}

/**
 * Put the lines of a difference into two columns: a removed line stands beside the added one that replaces it.
 * @param {Line[]} found
 * @returns {[Line | null, Line | null][]}
 */
export function sideBySide(found) {
  /** @type {[Line | null, Line | null][]} */
  const rows = [];
  for (let at = 0; at < found.length; ) {
    if (found[at].sign === " " || found[at].sign === "…") {
      rows.push([found[at], found[at]]);
      at++;
      continue;
    }
    const removed = run(found, at, "-");
    const added = run(found, at + removed.length, "+");
    for (let row = 0; row < Math.max(removed.length, added.length); row++) {
      rows.push([removed[row] ?? null, added[row] ?? null]);
    }
    at += removed.length + added.length;
  }
  return rows;
}

/**
 * How many lines came and went.
 * @param {Line[]} found
 */
export function counted(found) {
  const count = (/** @type {string} */ sign) => found.filter((line) => line.sign === sign).length;
  return { added: count("+"), removed: count("-") };
}

/**
 * The shortest way from one list to another, by Myers' algorithm (An O(ND) Difference Algorithm, 1986).
 * @param {string[]} old
 * @param {string[]} fresh
 * @returns {{ sign: string, i: number, j: number }[]}
 */
function compare(old, fresh) {
  let start = 0;
  while (start < old.length && start < fresh.length && old[start] === fresh[start]) start++;
  let end = 0;
  while (end < old.length - start && end < fresh.length - start && old.at(-1 - end) === fresh.at(-1 - end)) end++;
  const found = [];
  for (let at = 0; at < start; at++) found.push({ sign: " ", i: at, j: at });
  found.push(...middle(old, fresh, start, old.length - end, fresh.length - end));
  for (let at = end; at > 0; at--) found.push({ sign: " ", i: old.length - at, j: fresh.length - at });
  return found;
}

/**
 * @param {string[]} old
 * @param {string[]} fresh
 * @param {number} start where both begin to differ
 * @param {number} oldEnd
 * @param {number} freshEnd
 */
function middle(old, fresh, start, oldEnd, freshEnd) {
  const rows = oldEnd - start;
  const columns = freshEnd - start;
  const most = Math.min(rows + columns, MOST_EDITS);
  const width = 2 * most + 1;
  const reach = new Int32Array(width + 1); // by diagonal: how far into the old list one comes
  const trace = [];
  for (let edits = 0; edits <= most; edits++) {
    trace.push(reach.slice(most - edits, most + edits + 2));
    for (let diagonal = -edits; diagonal <= edits; diagonal += 2) {
      const at = most + diagonal;
      const down = diagonal === -edits || (diagonal !== edits && reach[at - 1] < reach[at + 1]);
      let x = down ? reach[at + 1] : reach[at - 1] + 1;
      let y = x - diagonal;
      while (x < rows && y < columns && old[start + x] === fresh[start + y]) {
        x++;
        y++;
      }
      reach[at] = x;
      if (x >= rows && y >= columns) return walked(trace, rows, columns, start);
    }
  }
  return [
    ...Array.from({ length: rows }, (_, n) => ({ sign: "-", i: start + n, j: start })),
    ...Array.from({ length: columns }, (_, n) => ({ sign: "+", i: oldEnd, j: start + n })),
  ];
}

/**
 * The way itself, from its end back; within a block of changes what goes stands before what comes.
 * @param {Int32Array[]} trace
 * @param {number} x
 * @param {number} y
 * @param {number} start
 */
function walked(trace, x, y, start) {
  const found = [];
  for (let edits = trace.length - 1; edits >= 0; edits--) {
    const reach = trace[edits]; // of the diagonals -edits to edits + 1, as they were before this edit
    const at = (/** @type {number} */ diagonal) => reach[diagonal + edits];
    const diagonal = x - y;
    const down = diagonal === -edits || (diagonal !== edits && at(diagonal - 1) < at(diagonal + 1));
    const before = down ? diagonal + 1 : diagonal - 1;
    const beforeX = edits === 0 ? 0 : at(before);
    const beforeY = edits === 0 ? 0 : beforeX - before;
    while (x > beforeX && y > beforeY) {
      x--;
      y--;
      found.push({ sign: " ", i: start + x, j: start + y });
    }
    if (edits === 0) break;
    found.push(down ? { sign: "+", i: start + x, j: start + beforeY } : { sign: "-", i: start + beforeX, j: start + y });
    x = beforeX;
    y = beforeY;
  }
  return orderly(found.reverse());
}

/** @param {{ sign: string, i: number, j: number }[]} found */
function orderly(found) {
  const sorted = [];
  for (let at = 0; at < found.length; ) {
    if (found[at].sign === " ") {
      sorted.push(found[at++]);
      continue;
    }
    let end = at;
    while (end < found.length && found[end].sign !== " ") end++;
    const block = found.slice(at, end);
    sorted.push(...block.filter(({ sign }) => sign === "-"), ...block.filter(({ sign }) => sign === "+"));
    at = end;
  }
  return sorted;
}

/** @param {Line[]} found */
function blocks(found) {
  const all = [];
  for (let at = 0; at < found.length; at++) {
    if (found[at].sign !== "-") continue;
    const removed = run(found, at, "-");
    const added = run(found, at + removed.length, "+");
    all.push({ removed, added });
    at += removed.length + added.length - 1;
  }
  return all;
}

/**
 * @param {Line[]} found
 * @param {number} from
 * @param {string} sign
 */
function run(found, from, sign) {
  let end = from;
  while (end < found.length && found[end].sign === sign) end++;
  return found.slice(from, end);
}

/**
 * Mark the words that differ, in lines that are alike.
 * @param {Line[]} removed
 * @param {Line[]} added
 */
function markWords(removed, added) {
  for (let row = 0; row < Math.min(removed.length, added.length); row++) {
    const old = words(removed[row].text);
    const fresh = words(added[row].text);
    if (old.length > MOST_WORDS || fresh.length > MOST_WORDS) continue;
    const found = compare(old, fresh);
    const same = found.filter(({ sign, i }) => sign === " " && old[i].trim() !== "").reduce((n, { i }) => n + old[i].length, 0);
    if (same < ALIKE * Math.max(1, Math.min(solid(removed[row].text), solid(added[row].text)))) continue;
    removed[row].words = ranges(old, found.filter(({ sign }) => sign === "-").map(({ i }) => i));
    added[row].words = ranges(fresh, found.filter(({ sign }) => sign === "+").map(({ j }) => j));
  }
}

/** @param {string} text */
function solid(text) {
  return text.replace(/\s+/g, "").length;
}

/** Words, runs of blanks, and single signs; each sign of a script without blanks is a word. @param {string} text */
function words(text) {
  return text.match(/[\p{L}\p{N}_](?:(?!\p{Script=Han}|\p{Script=Hiragana}|\p{Script=Katakana})[\p{L}\p{N}_])*|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
}

/**
 * @param {string[]} parts
 * @param {number[]} chosen indexes, ascending
 * @returns {[number, number][]}
 */
function ranges(parts, chosen) {
  const starts = [0];
  for (const part of parts) starts.push(starts[starts.length - 1] + part.length);
  /** @type {[number, number][]} */
  const found = [];
  for (const index of chosen) {
    const last = found.at(-1);
    if (last && last[1] === starts[index]) last[1] = starts[index + 1];
    else found.push([starts[index], starts[index + 1]]);
  }
  return found;
}

/** @param {string} text */
function lines(text) {
  if (text === "") return [];
  return (text.endsWith("\n") ? text.slice(0, -1) : text).split("\n");
}
