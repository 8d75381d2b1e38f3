// Sharing a session: a link with a token that may read it, or write to it, and nothing else.

import { button, el, say } from "./dom.js";
import { icon } from "./icons.js";
import { nameOf } from "./ids.js";
import { t } from "./text.js";

const DAY = 86_400;

/**
 * Open the dialog in which links to a session are made and revoked.
 * @param {any} api
 * @param {string} id
 */
export function openShare(api, id) {
  const access = el("select", { id: "share-access" },
    el("option", { value: "read" }, t("Read")), el("option", { value: "write" }, t("Read and write")));
  const expires = el("select", { id: "share-expires" },
    el("option", { value: String(DAY) }, t("1 day")), el("option", { value: String(7 * DAY), selected: true }, t("7 days")),
    el("option", { value: String(30 * DAY) }, t("30 days")), el("option", { value: "" }, t("No end")));
  const link = el("input", { type: "text", readOnly: true, "aria-label": t("Link") });
  const copy = button(t("Copy"), async () => {
    await navigator.clipboard.writeText(link.value);
    say(status, t("Copied."));
  });
  const made = el("div", { className: "made", hidden: true }, link, copy);
  const status = el("p", { className: "quiet", role: "status" });
  const list = el("ul", { className: "shares", "aria-label": t("Links to this session") });

  async function make(event) {
    event.preventDefault();
    try {
      const share = await api.share(id, access.value, expires.value === "" ? null : Number(expires.value));
      link.value = new URL(share.path, location.href).href;
      made.hidden = false;
      link.focus();
      link.select();
      say(status, share.token === null
        ? t("This link is the address of the session. It opens for everyone who can reach the server.")
        : t("The link is shown only now. Everyone who has it may use it until it ends or is revoked."));
      await show();
    } catch (error) {
      say(status, error.message);
    }
  }

  async function show() {
    try {
      const { shares } = await api.shares(id);
      list.replaceChildren(...shares.map((share) => el("li", {},
        el("span", {}, share.access === "write" ? t("Read and write") : t("Read")),
        el("span", { className: "quiet" }, share.expires === null ? t("No end")
          : t("until {time}", { time: new Date(share.expires * 1000).toLocaleString() })),
        button(t("Revoke"), () => revoke(share.id), { className: "button danger" }))));
    } catch (error) {
      say(status, error.message);
    }
  }

  async function revoke(share) {
    try {
      await api.unshare(share);
      made.hidden = true;
      say(status, t("Revoked. The link no longer works."));
    } catch (error) {
      say(status, error.message);
    }
    await show();
  }

  const isOpen = api.token === null; // this page got here without one
  const dialog = el("dialog", { "aria-labelledby": "share-title", onclose: () => dialog.remove() },
    el("form", { onsubmit: make },
      el("h2", { id: "share-title" }, t("Share {name}", { name: nameOf(id) })),
      ...(isOpen
        ? [el("p", { className: "warning" }, t("This server asks for no tokens: everyone who can reach it may read, change and delete all sessions, with this link or without.")),
          el("p", { className: "quiet" }, t("To share one session only, create a token, and start the server with it:")),
          el("pre", { tabIndex: 0 }, "cfs token create me --grant / --tokens tokens.toml\ncfs serve --tokens tokens.toml")]
        : [el("p", { className: "quiet" }, t("A person with the link sees this session and its sub-sessions, and nothing else."))]),
      el("div", { className: "choices", hidden: isOpen },
        el("label", { htmlFor: "share-access" }, t("May")), access,
        el("label", { htmlFor: "share-expires" }, t("For")), expires),
      made, list, status,
      el("div", { className: "answers" }, button(t("Close"), () => dialog.close()),
        el("button", { type: "submit", className: "button primary" }, icon("link"), t("Make a link")))));
  document.body.append(dialog);
  dialog.showModal();
  if (!isOpen) access.focus();
  show();
}
