// What this browser remembers of the reader's taste: the theme and the language. Nothing of it is sent.

import { LANGUAGES, choose, chosen, t } from "./text.js";

const THEME = "cfs.theme";

/** The chosen theme: "light", "dark", or null for the system's. */
export function theme() {
  return localStorage.getItem(THEME);
}

/**
 * Show the page in a theme, now and from now on.
 * @param {string | null} name
 */
export function setTheme(name) {
  if (name === null) localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, name);
  applyTheme();
}

/** Apply what was chosen before. */
export function applyTheme() {
  const name = theme();
  if (name === null) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}

/**
 * The items of a menu for theme and language.
 * @returns {(import("./menu.js").Item | null)[]}
 */
export function preferenceItems() {
  const themes = [[null, t("System theme")], ["light", t("Light theme")], ["dark", t("Dark theme")]];
  const languages = [[null, t("Browser's language")], ...Object.entries(LANGUAGES)];
  return [
    ...themes.map(([name, label]) => ({ label: label ?? "", checked: theme() === name, run: () => setTheme(name) })),
    null,
    ...languages.map(([code, label]) => ({ label: label ?? "", checked: chosen() === code, run: () => choose(code) })),
  ];
}
