// An agent with all its versions: the progress, and the newest version in full.

import { get } from "./api.js";
import { h } from "./dom.js";
import { num, range } from "./format.js";
import { watch } from "./live.js";
import { agentLink, empty, envLink, mark, section, table, time } from "./parts.js";
import { versions as versionPlot } from "./plots.js";
import { ladderCards, matchesCard, placed, returnsCard, scoreCard } from "./submission_view.js";

export async function render({ query, signal, go }) {
  const wanted = {
    owner: query.get("owner") ?? "",
    algorithm: query.get("algorithm") ?? "",
    env_id: query.get("env_id") ?? "",
  };
  const agent = await get("/v1/agents", wanted, signal);
  const newest = agent.versions.find((one) => one.state === "ranked") ?? agent.versions[0];
  const lists = newest?.standing?.games !== undefined && newest.standing?.games !== null ? {
    cards: ladderCards(newest, signal),
    matches: matchesCard(newest, signal),
  } : null;
  if (lists) await Promise.all([lists.cards.read(), lists.matches.read()]);
  if (newest) {
    const again = () => go(location.pathname + location.search, { replace: true, keep: true });
    watch(agent.versions.map((one) => `submission:${one.id}`), ({ kind }) => kind !== "reset" && void again(), signal);
  }
  const plot = versionPlot(agent.versions.map((one) => ({ version: one.version, ...pick(placed(one)) })));
  const node = h(
    "div",
    { class: "page" },
    h("h1", null, agent.algorithm),
    h(
      "p",
      { class: "quiet" },
      "by ",
      h("strong", null, agent.owner),
      agent.env_id ? [" in ", envLink(agent.env_id)] : null,
    ),
    h(
      "div",
      { class: "columns side-first" },
      h(
        "div",
        { class: "stack" },
        section(
          "Versions",
          { class: "card" },
          plot,
          agent.versions.length ? versionTable(agent.versions) : empty("There is no version that you can see."),
        ),
        newest ? returnsCard(newest) : null,
        lists?.cards.node,
        lists?.matches.node,
      ),
      h("div", { class: "stack" }, newest ? scoreCard(newest) : null),
    ),
  );
  return { title: `${agent.algorithm} by ${agent.owner}`, node };
}

const pick = ({ score, low, high }) => ({ score, low, high });

function versionTable(versions) {
  const heads = [
    "Version",
    "State",
    { text: "Score", class: "number" },
    { text: "95 % interval", class: "wide" },
    { text: "Sent", class: "wide" },
  ];
  const rows = versions.map((one) => {
    const { score, low, high } = placed(one);
    return h(
      "tr",
      null,
      h("td", null, agentLink(one)),
      h("td", null, mark(one.state, one.state === "ranked" ? "good" : "soft")),
      h("td", { class: "number" }, num(score)),
      h("td", { class: "wide" }, range(low, high)),
      h("td", { class: "wide nowrap" }, time(one.created_at)),
    );
  });
  return table("Versions", heads, rows);
}
