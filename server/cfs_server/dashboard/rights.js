// What the caller may do, by the grants of its token: controls for anything else are not shown. The server decides.

import { rootOf } from "./ids.js";

const SHARE = "share:"; // how the names of those begin who came by a link

/** The rights of a caller, as `/v1/whoami` tells them. */
export class Rights {
  #grants;

  /** @param {{ name: string, grants: { prefix: string, ops: string[] }[] }} me */
  constructor({ name, grants }) {
    this.#grants = grants;
    /** Whether the caller came by a link: it adds to a conversation, and neither steers nor ends one. */
    this.isShare = name.startsWith(SHARE);
  }

  /** @param {string} id */
  mayWrite(id) {
    return this.#may("write", `/sessions/${id}`);
  }

  /** Hold up an agent, answer it, or have an agent answer. @param {string} id */
  maySteer(id) {
    return !this.isShare && this.mayWrite(id);
  }

  /** Delete a session, rename it, or replace its messages. @param {string} id */
  mayReplace(id) {
    return this.maySteer(id) && this.#may("delete", `/sessions/${id}`);
  }

  /** Make copies, which stand beside the session. @param {string} id */
  mayCopy(id) {
    return this.mayWrite(`${id}-2`);
  }

  /** Put files into the workspace of a session's tree. @param {string} id */
  mayUpload(id) {
    return this.#may("write", `/workspaces/${rootOf(id)}`);
  }

  /** Create sessions with names that the server chooses. */
  get mayCreate() {
    return this.#may("write", "/sessions/*");
  }

  /** Choose the models of the server. */
  get mayManage() {
    return !this.isShare && this.#may("write", "/") && this.#may("delete", "/");
  }

  /** @param {string} operation @param {string} path */
  #may(operation, path) {
    return this.#grants.some(({ prefix, ops }) =>
      ops.includes(operation) && `${path}/`.startsWith(prefix.endsWith("/") ? prefix : `${prefix}/`));
  }
}
