// Head-to-head results of the best agents of a ladder, as a table that can be read without colours.

import { get } from "./api.js";
import { h, put, redraw, throttled } from "./dom.js";
import { agentLink, problem, section, table } from "./parts.js";

export function matrixCard(env, signal) {
  const place = h("div");
  const node = section(
    "Head to head",
    { class: "card", hidden: true },
    h("p", { class: "quiet small" }, "Games won, drawn and lost by the agent of the row against the agent of the column."),
    place,
  );
  const read = throttled(async () => {
    try {
      const found = await get("/v1/matrix", { env_id: env.env_id }, signal);
      node.hidden = found.agents.length < 2;
      redraw(place, found, () => grid(found));
    } catch (error) {
      if (error.name !== "AbortError") put(place, problem(error));
    }
  }, 2000);
  return { node, read };
}

function grid({ agents, meetings }) {
  const met = new Map(meetings.map((one) => [`${one.one} ${one.other}`, one]));
  const rows = agents.map((agent) => h(
    "tr",
    null,
    h("th", { scope: "row", class: "nowrap" }, `${agent.rank} `, agentLink(agent)),
    agents.map((other) => cell(agent, other, met.get(`${agent.submission_id} ${other.submission_id}`))),
  ));
  const heads = agents.map((agent) => ({ text: h("span", { title: `${agent.algorithm} v${agent.version}` }, `${agent.algorithm} v${agent.version}`) }));
  return table("Head to head", ["Agent", ...heads], rows, { class: "matrix" });
}

function cell(agent, other, meeting) {
  if (agent.submission_id === other.submission_id) return h("td", { class: "self" }, h("span", { class: "unseen" }, "itself"));
  if (!meeting) return h("td", { class: "quiet" }, "\u2013");
  const games = meeting.wins + meeting.draws + meeting.losses;
  const share = (meeting.wins + meeting.draws / 2) / games;
  const kind = share > 0.5 ? "ahead" : share < 0.5 ? "behind" : "level";
  const title = `${meeting.wins} won, ${meeting.draws} drawn, ${meeting.losses} lost`;
  return h("td", { class: `nowrap ${kind}`, title }, `${meeting.wins}/${meeting.draws}/${meeting.losses}`);
}
