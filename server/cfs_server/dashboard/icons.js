// The icons of CFS: drawn for it, on a grid of 16 pixels, in lines of 1.5 pixels.

import { svg } from "./dom.js";

/** Each icon is one path of lines; a second one, where there is one, is filled. @type {Record<string, string[]>} */
const PATHS = {
  alert: ["M8 2 14.5 13.5h-13ZM8 6.5v3.5", "M8 11.2a.8.8 0 1 1 0 1.6.8.8 0 0 1 0-1.6Z"],
  attach: ["m13 7.5-5.2 5.2a3.2 3.2 0 0 1-4.5-4.5l5.7-5.7a2.1 2.1 0 0 1 3 3l-5.6 5.6a1 1 0 0 1-1.5-1.5L10 4.5"],
  back: ["M9.5 3 4.5 8l5 5"],
  bot: ["M3 6.5h10v7H3ZM8 6.5V3.5M1 9.5v2M15 9.5v2", "M6 9a1 1 0 1 1 0 2 1 1 0 0 1 0-2Zm4 0a1 1 0 1 1 0 2 1 1 0 0 1 0-2ZM8 1.5a1.2 1.2 0 1 1 0 2.4 1.2 1.2 0 0 1 0-2.4Z"],
  branch: ["M4.5 5v6M4.5 8.5h4a3 3 0 0 0 3-3V5", "M4.5 1.8a1.7 1.7 0 1 1 0 3.4 1.7 1.7 0 0 1 0-3.4Zm7 0a1.7 1.7 0 1 1 0 3.4 1.7 1.7 0 0 1 0-3.4Zm-7 9a1.7 1.7 0 1 1 0 3.4 1.7 1.7 0 0 1 0-3.4Z"],
  chat: ["M2 3h12v8.5H7L4 14v-2.5H2Z"],
  check: ["m3 8.5 3.2 3.2L13 4.8"],
  clock: ["M8 1.8a6.2 6.2 0 1 1 0 12.4A6.2 6.2 0 0 1 8 1.8ZM8 4.5V8l2.5 1.8"],
  close: ["m4 4 8 8M12 4l-8 8"],
  columns: ["M2 3h12v10H2ZM6 3v10M10 3v10"],
  copy: ["M5.5 5.5h8v8h-8ZM10.5 5.5v-3h-8v8h3"],
  diff: ["M8 2.5v6M5 5.5h6M5 12.5h6"],
  down: ["m3 6 5 5 5-5"],
  download: ["M8 2v8M4.5 7 8 10.5 11.5 7M2.5 13.5h11"],
  edit: ["m10.8 2.5 2.7 2.7L5.7 13H3v-2.7ZM9 4.3 11.7 7"],
  external: ["M9 2.5h4.5V7M13.5 2.5 7.5 8.5M6.5 4H2.5v9.5H12v-4"],
  eye: ["M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8Z", "M8 6a2 2 0 1 1 0 4 2 2 0 0 1 0-4Z"],
  file: ["M3.5 1.8h6l3 3v9.4h-9ZM9.5 1.8v3h3"],
  folder: ["M1.8 3.5h4.4l1.6 2h6.4v7.7H1.8Z"],
  globe: ["M8 1.8a6.2 6.2 0 1 1 0 12.4A6.2 6.2 0 0 1 8 1.8ZM1.8 8h12.4M8 1.8c2 2 2.6 4 2.6 6.2S10 12.2 8 14.2M8 1.8C6 3.8 5.4 5.8 5.4 8s.6 4.2 2.6 6.2"],
  help: ["M8 1.8a6.2 6.2 0 1 1 0 12.4A6.2 6.2 0 0 1 8 1.8ZM6.2 6.3a1.8 1.8 0 1 1 2.6 1.6c-.6.3-.8.7-.8 1.3", "M8 10.6a.8.8 0 1 1 0 1.6.8.8 0 0 1 0-1.6Z"],
  history: ["M2.5 5.5A6 6 0 1 1 2 8.5M2.2 2.5v3.2h3.2M8 5v3.3l2.3 1.5"],
  info: ["M8 1.8a6.2 6.2 0 1 1 0 12.4A6.2 6.2 0 0 1 8 1.8ZM8 7.3v4", "M8 4a.8.8 0 1 1 0 1.6A.8.8 0 0 1 8 4Z"],
  key: ["M10 2.5a3.5 3.5 0 1 1-3.1 5.1L2 12.5v1.5h3v-2h2V10l1.2-1.2"],
  keyboard: ["M1.5 4h13v8h-13ZM4 6.5h.01M6.7 6.5h.01M9.3 6.5h.01M12 6.5h.01M5 9.5h6"],
  link: ["m6.5 9.5 3-3M7.5 4.5l1.7-1.7a2.9 2.9 0 0 1 4 4L11.5 8.5M8.5 11.5l-1.7 1.7a2.9 2.9 0 0 1-4-4L4.5 7.5"],
  logout: ["M6.5 2.5h-4v11h4M6 8h8M11 5l3 3-3 3"],
  menu: ["M2 4h12M2 8h12M2 12h12"],
  minus: ["M2.5 8h11"],
  moon: ["M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7Z"],
  more: [" ", "M3 6.8a1.2 1.2 0 1 1 0 2.4 1.2 1.2 0 0 1 0-2.4Zm5 0a1.2 1.2 0 1 1 0 2.4 1.2 1.2 0 0 1 0-2.4Zm5 0a1.2 1.2 0 1 1 0 2.4 1.2 1.2 0 0 1 0-2.4Z"],
  next: ["M6.5 3l5 5-5 5"],
  pause: ["M5 3v10M11 3v10"],
  play: ["M4 2.5 13 8l-9 5.5Z"],
  plus: ["M8 2.5v11M2.5 8h11"],
  refresh: ["M13.5 6.5A6 6 0 0 0 2.8 5M2.5 9.5A6 6 0 0 0 13.2 11M13.7 2.7v3.8H10M2.3 13.3V9.5H6"],
  search: ["M7 2a5 5 0 1 1 0 10A5 5 0 0 1 7 2ZM10.6 10.6 14 14"],
  send: ["M8 13.5v-11M3.5 7 8 2.5 12.5 7"],
  session: ["M3 2.5h10v11H3ZM5.5 5.5h5M5.5 8h5M5.5 10.5h3"],
  settings: ["M2 4.5h6M12 4.5h2M2 11.5h2M8 11.5h6M10 2.7v3.6M6 9.7v3.6"],
  share: ["M8 10V1.8M5 4.5l3-2.7 3 2.7M4.5 7.5H3v6.7h10V7.5h-1.5"],
  sidebar: ["M2 3h12v10H2ZM6 3v10"],
  spinner: ["M8 1.8A6.2 6.2 0 0 1 14.2 8"],
  stop: [" ", "M4 4h8v8H4Z"],
  sun: ["M8 5a3 3 0 1 1 0 6 3 3 0 0 1 0-6ZM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1"],
  tag: ["M2 2.5h6L14 8.5 8.5 14 2 7.5Z", "M5 4.5a1 1 0 1 1 0 2 1 1 0 0 1 0-2Z"],
  terminal: ["M1.8 2.8h12.4v10.4H1.8ZM4.3 6l2 2-2 2M8 10.3h3.5"],
  thinking: ["M5 13.5h6M6 11.5c0-1.5-2.5-2.5-2.5-5a4.5 4.5 0 1 1 9 0c0 2.5-2.5 3.5-2.5 5Z"],
  timeline: ["M2 4h6M5 8h8M3.5 12h5"],
  tool: ["M9.8 2.3a3.7 3.7 0 0 0-2.5 5L2.3 12.3l1.4 1.4 5-5a3.7 3.7 0 0 0 5-4.5L11.5 6.4 9.6 4.5Z"],
  trash: ["M2.5 4h11M6 4V2.3h4V4M4 4l.6 9.7h6.8L12 4M6.7 6.5v4.8M9.3 6.5v4.8"],
  tree: ["M4 3v8.5h5M4 6.5h5", "M4 1.5a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3ZM10.5 5a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3Zm0 5a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3Z"],
  user: ["M8 2a3 3 0 1 1 0 6 3 3 0 0 1 0-6ZM2.5 14a5.5 5.5 0 0 1 11 0"],
};

/**
 * An icon by its name. It is hidden from screen readers: the control that holds it has a name of its own.
 * @param {string} name
 * @param {string} [className]
 * @returns {SVGElement}
 */
export function icon(name, className = "") {
  const [lines, filled] = PATHS[name] ?? PATHS.help;
  return svg(
    "svg",
    { class: `icon ${className}`.trim(), viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: lines.trim() || null, fill: "none", stroke: "currentColor", "stroke-width": 1.5,
      "stroke-linecap": "round", "stroke-linejoin": "round" }),
    ...(filled ? [svg("path", { d: filled, fill: "currentColor" })] : []),
  );
}

/** The names of all icons, for the tests. */
export const ICONS = Object.keys(PATHS);
