// The models of the server: which are connected, and a search for more. For administrators.

import { button, el, mark, say } from "./dom.js";
import { icon } from "./icons.js";
import { many, sentence, t } from "./text.js";

/** @typedef {{ name: string, where: string, default: boolean, usable: boolean, reason: string, context: number | null }} Connection */
/** @typedef {{ name: string, where: string, works: boolean, reason: string, context: number | null, connected: boolean,
 *   first_token_seconds: number | null, tokens_per_second: number | null }} Candidate */

/**
 * Open the dialog in which models are connected and disconnected.
 * @param {import("./api.js").Api} api
 */
export function openConnections(api) {
  const connected = el("ul", { className: "models", "aria-label": t("Connected models") });
  const found = el("ul", { className: "models", "aria-label": t("Models that were found") });
  const status = el("p", { className: "quiet", role: "status" });
  const searching = el("button", { type: "button", className: "button primary", onclick: search }, icon("search"), t("Search"));

  /** Do some work with the server, and show what it returns or why it fails. @param {() => Promise<string>} work */
  async function show(work) {
    searching.disabled = true;
    mark(dialog, "aria-busy", "true");
    try {
      say(status, await work());
    } catch (error) {
      say(status, sentence(/** @type {Error} */ (error).message));
    }
    searching.disabled = false;
    mark(dialog, "aria-busy", null);
  }

  /** @param {{ problem: string, connections: Connection[] }} list */
  function draw({ problem, connections }) {
    connected.replaceChildren(...connections.map((model) => row(model,
      [model.default ? t("answers by default") : null, model.usable ? length(model) : model.reason],
      button(t("Disconnect"), () => disconnect(model.name), { "aria-label": t("Disconnect {name}", { name: model.name }) }))));
    return problem || (connections.length === 0 ? t("No model is connected. The one of the package answers.") : "");
  }

  function search() {
    say(status, t("Each model that is found gets one short request. This may take a minute."));
    show(async () => {
      const { candidates } = await api.json("/v1/connection-search", { method: "POST" });
      const others = candidates.filter((/** @type {Candidate} */ model) => !model.connected);
      found.replaceChildren(...others.map((/** @type {Candidate} */ model) => row(model,
        model.works ? [length(model), speed(model)] : [model.reason],
        model.works ? button(t("Connect"), (/** @type {any} */ event) => connect(model.name, event.currentTarget.closest("li")),
          { "aria-label": t("Connect {name}", { name: model.name }) }) : null)));
      return many("{n} model was found.", "{n} models were found.", candidates.length);
    });
  }

  /** @param {string} name @param {HTMLElement} line its line among those that were found */
  function connect(name, line) {
    show(async () => {
      const complaint = draw(await api.send("POST", "/v1/connections", { names: [name] }));
      line.remove();
      return complaint || t("{name} is connected.", { name });
    });
  }

  /** @param {string} name */
  function disconnect(name) {
    show(async () => {
      await api.json(`/v1/connections/${name.split("/").map(encodeURIComponent).join("/")}`, { method: "DELETE" });
      return draw(await api.json("/v1/connections")) || t("{name} is disconnected.", { name });
    });
  }

  const dialog = el("dialog", { className: "wide", "aria-labelledby": "models-title", onclose: () => dialog.remove() },
    el("form", { method: "dialog" },
      el("h2", { id: "models-title" }, t("Models")),
      el("p", { className: "quiet" }, t("The server looks for model servers on its machine, for keys of services in its environment, and for GGUF files.")),
      connected, found, status,
      el("div", { className: "answers" }, el("button", { type: "submit", className: "button" }, t("Close")), searching)));
  document.body.append(dialog);
  dialog.showModal();
  show(async () => draw(await api.json("/v1/connections"))).then(() => searching.focus());
}

/**
 * A line of a list: the model, where it is, and what is known of it.
 * @param {{ name: string, where: string }} model
 * @param {(string | null)[]} facts
 * @param {HTMLElement | null} action
 */
function row({ name, where }, facts, action) {
  return el("li", {}, el("span", { className: "main" }, el("strong", {}, name),
    el("span", { className: "quiet" }, [where, ...facts].filter(Boolean).join(" · "))), action);
}

/** @param {{ context: number | null }} model */
function length({ context }) {
  return context === null ? null : t("{n} tokens of context", { n: context.toLocaleString() });
}

/** @param {Candidate} model */
function speed({ first_token_seconds: first, tokens_per_second: rate }) {
  const parts = [first === null ? null : t("first token after {n} s", { n: first.toFixed(1) }),
    rate === null ? null : t("{n} tokens/s", { n: Math.round(rate).toLocaleString() })];
  return parts.filter(Boolean).join(", ");
}
