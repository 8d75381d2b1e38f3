// The start: find out whether a token is needed, then show the sessions.

import { Api, Problem } from "./api.js";
import { CfsApp } from "./app.js";
import { encoded } from "./ids.js";
import { Login } from "./login.js";
import { applyTheme } from "./preferences.js";
import { language, t } from "./text.js";

const AGAIN = 1000;
const api = new Api();
/** @type {HTMLElement | null} */
let shown = null;
let shared = false; // the token came with a link

async function begin() {
  try {
    const me = await api.json("/v1/whoami");
    if (shared) openShared(me);
    shown = new CfsApp(api, me, leave);
    document.body.replaceChildren(shown);
  } catch (error) {
    if (error instanceof Problem && error.status === 401) ask(api.token === null ? "" : t("This token is not valid."));
    else setTimeout(begin, AGAIN); // the server is not there yet
  }
}

function ask(complaint) {
  shown = new Login(complaint, (token) => {
    api.token = token;
    begin();
  });
  document.body.replaceChildren(shown);
}

/** A link that was shared has the token after "#", which is never sent; it is taken out of the address. */
function takeShare() {
  const [, token] = location.hash.match(/^#share=(.+)$/) ?? [];
  if (token === undefined) return false;
  api.token = decodeURIComponent(token);
  history.replaceState(null, "", location.pathname);
  shared = true;
  return true;
}

/** Show the session that a link is for. */
function openShared({ grants }) {
  shared = false;
  const found = grants.find(({ prefix }) => prefix.startsWith("/sessions/"));
  if (found) history.replaceState(null, "", `#conversation/${encoded(found.prefix.slice("/sessions/".length))}`);
}

function leave() {
  api.token = null;
  ask("");
}

api.onRefused = () => {
  if (shown instanceof CfsApp) ask(t("Your token is no longer valid."));
};
applyTheme();
document.documentElement.lang = language;
takeShare();
addEventListener("hashchange", () => takeShare() && begin()); // a link that is opened in this tab
begin();
