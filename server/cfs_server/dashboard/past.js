// What a session did before this page was opened: its last events, read once, and before these its messages.

import { place } from "./api.js";
import { Decoder } from "./sse.js";

const FAR = 2000; // how many events back: among them are the pieces of long replies

/** Let a node remember its turns and calls. One that could not be read is asked for again the next time. */
export async function readPast(api, node) {
  if (node.pastRead || !node.known || node.event === 0) return;
  node.pastRead = true;
  let first = null;
  try {
    await pastEvents(api, node.id, node.event, FAR, (event) => {
      first ??= event.number;
      node.remember(event);
    });
    if (first !== 1) node.recall(await api.patiently(place(node.id)));
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
