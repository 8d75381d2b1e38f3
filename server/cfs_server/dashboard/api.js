// The server's API, with the token of this tab if there is one.

import { encoded } from "./ids.js";
import { t } from "./text.js";

const KEPT = "cfs.token";
/** The status of a `Problem` when there is no answer. */
export const UNREACHABLE = 0;

/** An answer that is an error; `detail` says what was wrong and what to do. */
export class Problem extends Error {
  constructor(status, detail, retryAfter = null) {
    super(detail);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Calls of one browser tab. `onRefused` is called when the token is missing or not valid (any more). */
export class Api {
  onRefused = () => {};

  get token() {
    return sessionStorage.getItem(KEPT);
  }

  set token(value) {
    if (value === null) sessionStorage.removeItem(KEPT);
    else sessionStorage.setItem(KEPT, value);
  }

  /**
   * Send a request; raises `Problem` for an error, also when there is no answer.
   * @param {string} path
   * @param {{ method?: string, headers?: Record<string, string>, body?: BodyInit, signal?: AbortSignal }} [options]
   */
  async request(path, { method = "GET", headers = {}, body, signal } = {}) {
    const token = this.token;
    const sent = token === null ? headers : { ...headers, Authorization: `Bearer ${token}` };
    const answer = await fetch(path, { method, headers: sent, body, signal, cache: "no-store" }).catch((error) => {
      throw error instanceof TypeError ? new Problem(UNREACHABLE, t("The server cannot be reached.")) : error;
    });
    if (answer.ok) return answer;
    const problem = await answer.json().catch(() => ({}));
    if (answer.status === 401) this.onRefused();
    throw new Problem(answer.status, problem.detail ?? `the server answered ${answer.status}`, problem.retry_after);
  }

  /** @param {string} path @param {{ method?: string, headers?: Record<string, string>, body?: BodyInit, signal?: AbortSignal }} [options] */
  async json(path, options = {}) {
    const answer = await this.request(path, { ...options, headers: { Accept: "application/json", ...options.headers } });
    return answer.status === 204 ? null : answer.json();
  }

  /** Ask again for as long as the answer is "too often", so that a big load does not fail half-way. */
  async patiently(path) {
    for (;;) {
      try {
        return await this.json(path);
      } catch (error) {
        if (!(error instanceof Problem) || error.status !== 429) throw error;
        await new Promise((resume) => setTimeout(resume, 1000 * (error.retryAfter ?? 1)));
      }
    }
  }

  send(method, path, body) {
    const headers = { "Content-Type": "application/json" };
    return this.json(path, { method, headers, body: JSON.stringify(body ?? {}) });
  }

  session(id) {
    return this.json(place(id));
  }

  say(id, content) {
    return this.send("POST", `${place(id)}/messages`, { content });
  }

  create(id) {
    return this.send("POST", "/v1/sessions", id === "" ? {} : { id });
  }

  cancel(id, cascade) {
    return this.send("POST", `${place(id)}/cancel`, { queued: cascade, cascade });
  }

  fork(id, copy) {
    return this.send("POST", `${place(id)}/fork`, copy === "" ? {} : { id: copy });
  }

  rename(id, to) {
    return this.send("POST", `${place(id)}/rename`, { id: to });
  }

  remove(id) {
    return this.json(place(id), { method: "DELETE" });
  }

  settings(id, patch) {
    return this.send("PATCH", `${place(id)}/settings`, patch);
  }

  search(query) {
    const words = /[\p{L}\p{N}]{2}$/u.test(query) && !query.includes('"') ? `${query}*` : query; // it is still being typed
    return this.json(`/v1/search?limit=30&q=${encodeURIComponent(words)}`);
  }

  share(session, access, expires) {
    return this.send("POST", "/v1/shares", { session, access, expires });
  }

  shares(session) {
    return this.json(`/v1/shares?session=${encodeURIComponent(session)}`);
  }

  unshare(id) {
    return this.json(`/v1/shares/${encodeURIComponent(id)}`, { method: "DELETE" });
  }

  async transcript(id) {
    const answer = await this.request(place(id), { headers: { Accept: "text/plain" } });
    return { text: await answer.text(), etag: answer.headers.get("ETag") };
  }

  replace(id, text, etag) {
    const headers = { "Content-Type": "text/plain; charset=utf-8", "If-Match": etag };
    return this.json(`${place(id)}/transcript`, { method: "PUT", headers, body: text });
  }

  async file(path) {
    const answer = await this.request(`/v1/files${encoded(path)}`);
    return new Uint8Array(await answer.arrayBuffer());
  }
}

/** Where a session is. */
export function place(id) {
  return `/v1/sessions/${encoded(id)}`;
}
