// Times and numbers as people read them.

import { language, t } from "./text.js";

const DAY = 86_400;

const UNITS = /** @type {[number, Intl.RelativeTimeFormatUnit][]} */ ([[DAY, "day"], [3600, "hour"], [60, "minute"], [1, "second"]]);
/** @type {Record<string, Intl.RelativeTimeFormat>} */
const RELATIVE = Object.fromEntries(["narrow", "long"].map((style) => [style,
  new Intl.RelativeTimeFormat(language, { numeric: "always", style: /** @type {any} */ (style) })]));

/** How long ago, in one unit, as the language says it: "now", "42s ago", "5 minutes ago". */
export function ago(seconds, style = "narrow") {
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  const [length, unit] = UNITS.find(([least]) => passed >= Math.max(2, least)) ?? [0, ""];
  return unit === "" ? t("now") : RELATIVE[style].format(-Math.floor(passed / length), unit);
}

/** The days that a time belongs to: "Today", "Yesterday", ..., then the month. */
export function dateGroup(seconds, now = Date.now()) {
  if (!seconds) return t("No date");
  const midnight = new Date(now).setHours(0, 0, 0, 0) / 1000;
  if (seconds >= midnight) return t("Today");
  if (seconds >= midnight - DAY) return t("Yesterday");
  if (seconds >= midnight - 7 * DAY) return t("Previous 7 days");
  if (seconds >= midnight - 30 * DAY) return t("Previous 30 days");
  return new Date(seconds * 1000).toLocaleDateString(language, { month: "long", year: "numeric" });
}

/** A duration: "0.4 s", "12 s", "3:05". */
export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/** A count that fits into a narrow column: 950, 1.2k, 34k, 5.6M. */
export function short(count) {
  if (count < 1000) return String(count);
  if (count < 1e6) return `${count < 1e4 ? (count / 1e3).toFixed(1) : Math.round(count / 1e3)}k`;
  return `${(count / 1e6).toFixed(1)}M`;
}

/** A size in bytes. */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1 << 20) return `${(bytes / 1024).toFixed(1)} KiB`;
  return `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}

/** A time of day. */
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString(language, { hour: "2-digit", minute: "2-digit" });
}

/** A day and a time of day. */
export function moment(seconds) {
  return new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}
