// The host's page, with one tab for each task. The tab is in the address, so that it can be linked to.

import { may, session } from "./api.js";
import { h } from "./dom.js";

const TABS = [
  ["environments", "Environments", () => import("./admin_environments.js")],
  ["seasons", "Seasons", () => import("./admin_seasons.js")],
  ["tournaments", "Tournaments", () => import("./admin_tournaments.js")],
  ["queue", "Queue", () => import("./admin_queue.js")],
  ["benched", "Benched agents", () => import("./admin_benched.js")],
  ["owners", "Owners and quotas", () => import("./admin_owners.js")],
  ["keys", "Keys", () => import("./admin_keys.js")],
  ["audit", "Audit log", () => import("./admin_audit.js")],
];

export async function render({ query, signal, go }) {
  const state = await session();
  if (!may(state, "host")) return { title: "Host", node: refused(state) };
  const [name, label, load] = TABS.find(([known]) => known === query.get("tab")) ?? TABS[0];
  const again = () => go(`/admin?tab=${name}`, { replace: true, keep: true });
  const content = await (await load()).panel({ signal, again, go });
  const tab = ([id, text]) => h(
    "a",
    { href: `/admin?tab=${id}`, "data-keep": true, "aria-current": id === name ? "page" : null },
    text,
  );
  return {
    title: `${label}, host`,
    node: h(
      "div",
      { class: "page" },
      h("h1", null, "Host"),
      h("nav", { class: "tabs", "aria-label": "Host tasks" }, TABS.map(tab)),
      content,
    ),
  };
}

function refused(state) {
  return h(
    "div",
    { class: "page narrow-page" },
    h("h1", null, "Host"),
    h(
      "p",
      { class: "card" },
      state.me ? "Your key does not have the scope \"host\"." : [
        "This page is for the host. ",
        h("a", { href: "/login" }, "Log in"),
        " with a key that has the scope \"host\".",
      ],
    ),
  );
}
