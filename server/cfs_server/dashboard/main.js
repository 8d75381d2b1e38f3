// The start: find out whether a token is needed, then show the sessions.

import { Api, Problem } from "./api.js";
import { CfsApp } from "./app.js";
import { Login } from "./login.js";
import { applyTheme } from "./preferences.js";
import { language, t } from "./text.js";

const AGAIN = 1000;
const api = new Api();
/** @type {HTMLElement | null} */
let shown = null;

async function begin() {
  try {
    const me = await api.json("/v1/whoami");
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
  const found = location.hash.match(/^#share=([^&]+)(?:&(.*))?$/);
  if (!found) return;
  api.token = decodeURIComponent(found[1]);
  history.replaceState(null, "", found[2] ? `#${found[2]}` : location.pathname);
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
begin();
