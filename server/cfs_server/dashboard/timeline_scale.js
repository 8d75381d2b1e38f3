// The scale of a timeline: which part of it is seen, and where a time is on the screen. Times are in seconds.

const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const DAY = 86400;
const LEAST = 0.2; // seconds: less is of no use
const APART = 96; // pixels between two marks of the axis

/** @typedef {{ from: number, to: number }} Span */

/** Where a time is, in pixels. @param {Span} seen @param {number} width @param {number} time */
export function position({ from, to }, width, time) {
  return ((time - from) / (to - from)) * width;
}

/**
 * The part that is seen after zooming: `factor` 0.5 shows half as much. The time `at` stays where it is.
 * @param {Span} seen
 * @param {Span} whole
 * @param {number} factor
 * @param {number} [at]
 * @returns {Span}
 */
export function zoomed(seen, whole, factor, at = (seen.from + seen.to) / 2) {
  const length = Math.min(Math.max((seen.to - seen.from) * factor, LEAST), whole.to - whole.from);
  const part = (at - seen.from) / (seen.to - seen.from);
  return within({ from: at - part * length, to: at + (1 - part) * length }, whole);
}

/** The part that is seen after moving by some seconds. @param {Span} seen @param {Span} whole @param {number} seconds */
export function moved({ from, to }, whole, seconds) {
  return within({ from: from + seconds, to: to + seconds }, whole);
}

/** A part so moved, and if need be shortened, that it lies within the whole. @param {Span} seen @param {Span} whole */
export function within({ from, to }, whole) {
  const length = Math.min(to - from, whole.to - whole.from);
  const begin = Math.min(Math.max(from, whole.from), whole.to - length);
  return { from: begin, to: begin + length };
}

/** Whether all of it is seen. @param {Span} seen @param {Span} whole */
export function isWhole({ from, to }, whole) {
  return to - from >= (whole.to - whole.from) * 0.999;
}

/**
 * The times that the axis marks: round ones of the local clock.
 * @param {Span} seen
 * @param {number} width
 * @param {number} offset seconds that the local clock is ahead of UTC
 */
export function marks({ from, to }, width, offset = 0) {
  const least = ((to - from) / Math.max(1, width)) * APART;
  const step = STEPS.find((each) => each >= least) ?? Math.ceil(least / DAY) * DAY;
  const found = [];
  for (let n = Math.ceil((from + offset) / step); n * step - offset <= to; n++) found.push(n * step - offset);
  return { step, times: found };
}

/**
 * Put marks that would lie on each other together, so that each can be seen and pressed.
 * @template T
 * @param {T[]} items in the order of their places
 * @param {(item: T) => number} place in pixels
 * @param {number} apart
 * @returns {{ at: number, items: T[] }[]}
 */
export function clustered(items, place, apart) {
  /** @type {{ at: number, items: T[] }[]} */
  const found = [];
  for (const item of items) {
    const at = place(item);
    const last = found.at(-1);
    if (last && at - last.at < apart) last.items.push(item);
    else found.push({ at, items: [item] });
  }
  return found;
}
