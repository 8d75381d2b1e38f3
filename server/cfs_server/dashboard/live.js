// What the page knows: the tree and the open conversations, fed by one stream.

import { Conversation } from "./conversation.js";
import { listAll } from "./listing.js";
import { Sessions } from "./sessions.js";
import { SharedFeed } from "./shared_feed.js";

const PAUSE = 1000;
const REVIEW = 1000;

/** The event of the window when the connection is there (again): complaints that it was lost are over. */
export const LIVE = "cfs-live";

/** The present state of the server as this tab sees it. */
export class Live {
  sessions = new Sessions();
  listed = false;
  /** @type {(state: string) => void} */
  onState = () => {};
  /** @type {(event: any) => void} */
  onEvent = () => {};
  #api;
  #feed;
  #open = new Map(); // id: { conversation, users }
  /** @type {any[] | null} */
  #held = null; // events that wait for the listing
  #missed = false;
  #ended = false;
  #timer = 0;
  /** What could not be read without a connection is read now. */
  #onLive = () => {
    for (const { conversation } of this.#open.values()) if (conversation.error !== null) conversation.load();
    dispatchEvent(new Event(LIVE));
  };

  constructor(api) {
    this.#api = api;
    this.#feed = new SharedFeed(api, {
      onEvent: (event) => this.#take(event),
      onGap: () => this.#relist(),
      onState: (state) => this.#connected(state),
    });
  }

  start() {
    this.#feed.run();
    addEventListener("online", this.#onLive);
    this.#timer = setInterval(() => this.sessions.review(), REVIEW);
  }

  stop() {
    this.#ended = true;
    clearInterval(this.#timer);
    removeEventListener("online", this.#onLive);
    this.#feed.stop();
  }

  /** Look at a conversation; `release` it afterwards. */
  open(id) {
    let entry = this.#open.get(id);
    if (entry === undefined) {
      entry = { conversation: new Conversation(this.#api, id), users: 0 };
      this.#open.set(id, entry);
      entry.conversation.load();
    }
    entry.users += 1;
    return entry.conversation;
  }

  release(conversation) {
    const entry = this.#open.get(conversation.id);
    if (entry?.conversation !== conversation) return;
    entry.users -= 1;
    if (entry.users === 0) this.#open.delete(conversation.id);
  }

  #connected(state) {
    if (state === "live") this.#onLive();
    this.onState(state);
  }

  #take(event) {
    if (this.#held !== null) this.#held.push(event);
    else this.sessions.take(event);
    this.#open.get(event.session)?.conversation.take(event);
    this.onEvent(event);
  }

  /** Ask what there is; the events of that time are taken afterwards. */
  async #relist() {
    for (const { conversation } of this.#open.values()) conversation.load();
    this.#missed = true;
    if (this.#held !== null) return;
    this.#held = [];
    let trees = [];
    while (this.#missed && !this.#ended) {
      this.#missed = false;
      try {
        trees = await listAll(this.#api);
      } catch (error) {
        if (error.status === 401) break;
        this.#missed = true;
        await new Promise((resume) => setTimeout(resume, PAUSE));
      }
    }
    const held = this.#held ?? [];
    this.#held = null;
    this.listed = true;
    this.sessions.replace(trees);
    for (const event of held) this.sessions.take(event);
  }
}
