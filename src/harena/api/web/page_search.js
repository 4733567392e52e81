// Search over environments, owners, agents, submissions and matches.

import { address, get } from "./api.js";
import { announce, debounced, h, put } from "./dom.js";
import { count } from "./format.js";
import { agentPath, empty, envLink, problem, section } from "./parts.js";

const LEAST = 2;

export async function render({ query, signal }) {
  const text = query.get("q") ?? "";
  const results = h("div", { class: "stack" });
  const input = h("input", {
    id: "search-text",
    name: "q",
    type: "search",
    value: text,
    maxlength: 100,
    autocomplete: "off",
    placeholder: "A name, an environment, a match number or an id",
  });

  async function find() {
    const wanted = input.value.trim();
    history.replaceState(null, "", address("/search", { q: wanted }));
    if (wanted.length < LEAST) {
      put(results, h("p", { class: "quiet" }, `Type at least ${LEAST} characters.`));
      return;
    }
    try {
      const found = await get("/v1/search", { q: wanted }, signal);
      if (input.value.trim() === wanted) put(results, shown(found));
    } catch (error) {
      if (error.name !== "AbortError") put(results, problem(error));
    }
  }

  const soon = debounced(() => void find());
  const form = h(
    "form",
    {
      role: "search",
      "aria-label": "Search the arena",
      class: "card form",
      onsubmit: (event) => {
        event.preventDefault();
        void find();
      },
      oninput: soon,
    },
    h("div", { class: "field" }, h("label", { for: "search-text" }, "Search"), input),
  );
  await find();
  return { title: "Search", node: h("div", { class: "page" }, h("h1", null, "Search"), form, results) };
}

function shown(found) {
  const groups = [
    ["Environments", found.environments, (env) => envLink(env.env_id, env.title)],
    ["Agents", found.agents, (agent) => [
      h("a", { href: agentPath(agent, agent.env_id) }, agent.algorithm),
      h("span", { class: "quiet" }, ` ${agent.owner}, ${agent.env_id}`),
    ]],
    ["Owners", found.owners, (owner) => h("a", { href: address("/search", { q: owner }) }, owner)],
    ["Submissions", found.submissions, (one) => [
      h("a", { href: `/submission/${encodeURIComponent(one.id)}` }, `${one.algorithm} v${one.version}`),
      h("span", { class: "quiet" }, ` ${one.owner}, ${one.env_id}, ${one.id.slice(0, 8)}`),
    ]],
    ["Matches", found.matches, (match) => [
      h("a", { href: `/match/${encodeURIComponent(match.id)}` }, `Match ${match.number}`),
      h("span", { class: "quiet" }, ` ${match.env_id}`),
    ]],
  ].filter(([, items]) => items.length);
  const total = groups.reduce((sum, [, items]) => sum + items.length, 0);
  announce(total ? `${count(total, "result")} found` : "Nothing was found");
  if (!total) return empty("Nothing was found.");
  return groups.map(([title, items, line]) => section(
    title,
    { class: "card" },
    h("ul", { class: "plain" }, items.map((item) => h("li", null, line(item)))),
  ));
}
