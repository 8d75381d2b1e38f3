// The sessions that there are, asked for once, and again whenever events were missed.

import { encoded } from "./ids.js";

const PAGE = 1000;
const AT_A_TIME = 4;

/** All sessions that the caller may list, as trees. */
export async function listAll(api) {
  const found = [];
  for (let after = ""; after !== null; ) {
    const page = await api.patiently(`/v1/sessions?limit=${PAGE}&after=${encodeURIComponent(after)}`);
    found.push(...page.sessions);
    after = page.next;
  }
  const parents = found.filter((each) => each.sub_sessions > 0).map((each) => each.id);
  const trees = await inTurn([...parents, ...(await grantedBelow(api, found))], (id) => tree(api, id));
  const whole = new Map(trees.filter(Boolean).map((each) => [each.id, each]));
  const roots = found.map((each) => whole.get(each.id) ?? each);
  return [...roots, ...[...whole.values()].filter((each) => each.id.includes("/"))];
}

/** A caller may have a right at a sub-session and none at the session above: no listing of the roots names those. */
async function grantedBelow(api, listed) {
  const me = await api.patiently("/v1/whoami");
  const seen = new Set(listed.map((each) => each.id));
  const deep = me.grants
    .filter(({ prefix, ops }) => prefix.startsWith("/sessions/") && ops.includes("list"))
    .map(({ prefix }) => prefix.slice("/sessions/".length).replace(/\/$/, ""))
    .filter((id) => id.includes("/") && !seen.has(id.slice(0, id.indexOf("/"))));
  return [...new Set(deep)];
}

async function tree(api, id) {
  try {
    return await api.patiently(`/v1/sessions/${encoded(id)}/sub_sessions`);
  } catch (error) {
    if (error.status === 404 || error.status === 403) return null; // gone meanwhile, or not ours to see
    throw error;
  }
}

/** Do something for each, a few at a time; the results in order. */
export async function inTurn(items, work) {
  const results = new Array(items.length);
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const index = next++;
      results[index] = await work(items[index]);
    }
  };
  await Promise.all(Array.from({ length: Math.min(AT_A_TIME, items.length) }, worker));
  return results;
}
