// The beginning: find out whether a token is needed, then show the sessions.

import { Api, Problem } from "./api.js";
import { App } from "./app.js";
import { Login } from "./login.js";

const AGAIN = 1000;
const api = new Api();
let shown = null;

async function begin() {
  shown?.close();
  shown = null;
  try {
    const me = await api.json("/v1/whoami");
    shown = new App(api, me, leave);
    document.body.replaceChildren(shown.element);
    shown.start();
  } catch (error) {
    if (error instanceof Problem && error.status === 401) ask(api.token === null ? "" : "This token is not valid.");
    else setTimeout(begin, AGAIN); // the server is not there yet
  }
}

function ask(complaint) {
  shown?.close();
  shown = new Login(complaint, (token) => {
    api.token = token;
    begin();
  });
  document.body.replaceChildren(shown.element);
  shown.focus();
}

function leave() {
  api.token = null;
  ask("");
}

api.onRefused = () => {
  if (shown instanceof App) ask("Your token is no longer valid.");
};
begin();
