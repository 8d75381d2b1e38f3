// What a session did before this page was opened: its last events, read once.

import { place } from "./api.js";
import { Decoder } from "./sse.js";

const FAR = 2000; // how many events back; the server keeps about that many of each session

/** Let a node remember its turns and calls. Raises when the server cannot be asked. */
export async function readPast(api, node) {
  if (node.pastRead || !node.known || node.event === 0) return;
  node.pastRead = true;
  try {
    await pastEvents(api, node.id, node.event, FAR, (event) => node.remember(event));
  } catch (error) {
    if (error.status !== 404) node.pastRead = false;
  }
}

/** Read the last events of a session, up to the number `last`. Raises when the server cannot be asked. */
export async function pastEvents(api, id, last, far, take) {
  const stop = new AbortController();
  try {
    const headers = { Accept: "text/event-stream" };
    const query = `after=${Math.max(0, last - far)}`;
    const answer = await api.request(`${place(id)}/events?${query}`, { headers, signal: stop.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const decoder = new Decoder();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      for (const { event, data } of decoder.feed(value)) {
        if (event === "stale" || event === "goodbye") return;
        const found = JSON.parse(data);
        take(found);
        if (found.number >= last) return;
      }
    }
  } finally {
    stop.abort();
  }
}
