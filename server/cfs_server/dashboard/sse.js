// Server-sent events, decoded: text in, cut anywhere, events out.

/** Reads a stream piece by piece; `feed` returns the events that are complete. */
export class Decoder {
  #rest = "";
  /** @type {{ id: string | null, event: string, data: string[] }} */
  #fields = { id: null, event: "message", data: [] };

  feed(text) {
    const found = [];
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const each of lines) {
      const line = each.endsWith("\r") ? each.slice(0, -1) : each;
      if (line === "") this.#end(found);
      else this.#take(line);
    }
    return found;
  }

  #take(line) {
    if (line.startsWith(":")) return; // a heartbeat
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (name === "data") this.#fields.data.push(value);
    else if (name === "id" || name === "event") this.#fields[name] = value;
  }

  #end(found) {
    const { id, event, data } = this.#fields;
    if (data.length) found.push({ id, event, data: data.join("\n") });
    this.#fields = { id: null, event: "message", data: [] };
  }
}
