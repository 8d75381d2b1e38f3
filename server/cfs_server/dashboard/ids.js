// Ids of sessions: a name, or a path of sub-sessions below one.

/** The session above, or null. */
export function parentOf(id) {
  const cut = id.lastIndexOf("/");
  return cut < 0 ? null : id.slice(0, cut);
}

/** The last part: what it is called among its siblings. */
export function nameOf(id) {
  return id.slice(id.lastIndexOf("/") + 1);
}

/** The session at the top of its tree. */
export function rootOf(id) {
  const cut = id.indexOf("/");
  return cut < 0 ? id : id.slice(0, cut);
}

/** The session itself and all above it, from the top. */
export function lineOf(id) {
  const parts = id.split("/");
  return parts.map((_, index) => parts.slice(0, index + 1).join("/"));
}

/** Whether an id is another one or below it. */
export function isWithin(id, top) {
  return id === top || id.startsWith(`${top}/`);
}

/** An id in a path of the API: the slash before a sub-session stays. */
export function encoded(id) {
  return id.split("/").map(encodeURIComponent).join("/");
}
