// One tournament: a bracket for eliminations, a cross table for a round robin, rounds for the rest, and the standings.

import { get } from "./api.js";
import { h, put, redraw, s, throttled } from "./dom.js";
import { points } from "./format.js";
import { watch } from "./live.js";
import { agentLink, agentName, envLink, mark, problem, section, table, time } from "./parts.js";

export async function render({ params: [id], signal }) {
  const path = `/v1/tournaments/${encodeURIComponent(id)}`;
  const first = await get(path, {}, signal);
  const body = h("div", { class: "stack" });
  const state = h("span", { role: "status" });

  function draw(tournament) {
    redraw(state, tournament.state, () => mark(tournament.state, tournament.state === "running" ? "good" : "soft"));
    redraw(body, tournament, () => [standings(tournament), games(tournament)]);
  }

  const read = throttled(async () => {
    try {
      draw(await get(path, {}, signal));
    } catch (error) {
      if (error.name !== "AbortError") put(body, problem(error));
    }
  }, 500);

  draw(first);
  if (first.state === "running") watch([`tournament:${first.id}`], () => void read(), signal);
  const node = h(
    "div",
    { class: "page" },
    h("h1", null, first.name, " ", state),
    h(
      "p",
      { class: "quiet" },
      envLink(first.env_id),
      ` · ${first.finals ? "finals, " : ""}${first.format.replaceAll("_", " ").replaceAll("-", " ")} · `,
      time(first.created_at),
    ),
    body,
  );
  return { title: first.name, node };
}

function standings(tournament) {
  const heads = [
    { text: "Rank", class: "number" },
    "Agent",
    { text: "Points", class: "number" },
    { text: "Won/drawn/lost", class: "number wide" },
  ];
  const rows = tournament.standings.map((one) => {
    const who = tournament.participants[one.agent];
    return h(
      "tr",
      null,
      h("td", { class: "number rank" }, one.rank),
      h("td", { class: "who" }, agentLink(who), h("span", { class: "owner" }, who.owner)),
      h("td", { class: "number" }, points(one.points)),
      h("td", { class: "number wide" }, `${one.wins}/${one.draws}/${one.losses}`),
    );
  });
  return section("Standings", { class: "card" }, table("Standings", heads, rows, { class: "board" }));
}

function games(tournament) {
  if (/elim/.test(tournament.format)) return bracket(tournament);
  if (/robin/.test(tournament.format) && pairs(tournament)) return crossTable(tournament);
  return rounds(tournament);
}

const pairs = (tournament) => tournament.rounds.every((round) => round.ties.every((tie) => tie.agents.length === 2));

// ---- elimination ----

function bracket(tournament) {
  const losers = tournament.rounds.filter((round) => round.name?.startsWith("losers"));
  const winners = tournament.rounds.filter((round) => !losers.includes(round));
  return section(
    "Bracket",
    { class: "card" },
    tree(tournament, winners, "Bracket"),
    losers.length ? [h("h3", null, "Losers\u2019 bracket"), tree(tournament, losers, "Losers\u2019 bracket")] : null,
  );
}

function tree(tournament, rounds, label) {
  const cards = rounds.map((round) => round.ties.map((tie) => ({ tie, node: tieCard(tournament, tie) })));
  const column = (round, at) =>
    h(
      "li",
      { class: "bracket-round" },
      h("h3", null, roundName(tournament, rounds, round)),
      h("ul", { class: "ties" }, cards[at].map(({ node }) => h("li", null, node))),
    );
  const list = h("ol", { class: "bracket" }, rounds.map(column));
  const lines = s("svg", { class: "bracket-lines", "aria-hidden": "true" });
  const holder = h("div", { class: "bracket-holder" }, list, lines);
  new ResizeObserver(() => connect(lines, holder, cards)).observe(list);
  return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, holder);
}

// From each tie to the next one that its winner played.
function connect(lines, holder, cards) {
  const origin = holder.getBoundingClientRect();
  const paths = [];
  for (let at = 1; at < cards.length; at += 1) {
    for (const { tie, node } of cards[at]) {
      const decided = cards[at - 1].filter((one) => one.tie.winner !== null && tie.agents.includes(one.tie.winner));
      for (const source of decided) {
        const [from, to] = [source.node.getBoundingClientRect(), node.getBoundingClientRect()];
        const [x1, x2] = [from.right - origin.left, to.left - origin.left];
        const [y1, y2] = [from.top + from.height / 2 - origin.top, to.top + to.height / 2 - origin.top];
        paths.push(s("path", { d: `M${x1} ${y1}H${(x1 + x2) / 2}V${y2}H${x2}` }));
      }
    }
  }
  lines.setAttribute("width", holder.scrollWidth);
  lines.setAttribute("height", holder.scrollHeight);
  put(lines, paths);
}

function roundName(tournament, rounds, round) {
  const last = round === rounds.at(-1) && round.ties.length === 1 && rounds.length > 1;
  const name = last && tournament.format === "elimination" ? "final" : (round.name ?? `round ${round.number}`);
  const short = name.replace(/^losers' /, "");
  return short[0].toUpperCase() + short.slice(1);
}

function tieCard(tournament, tie) {
  const lines = tie.agents.map((agent, at) => {
    const who = tournament.participants[agent];
    const won = tie.winner === agent;
    return h(
      "p",
      { class: won ? "tie-line won" : "tie-line" },
      h(
        "span",
        { class: "tie-name" },
        agentName(who),
        h("span", { class: "quiet" }, ` ${who.owner}`),
        won ? h("span", { class: "unseen" }, " (winner)") : null,
      ),
      h("span", { class: "number" }, tie.agents.length > 1 ? points(tie.scores?.[at]) : ""),
    );
  });
  if (tie.agents.length === 1) lines.push(h("p", { class: "tie-line quiet" }, "bye"));
  return h("div", { class: "tie" }, lines, links(tie));
}

function links(tie) {
  if (!tie.matches.length) return null;
  return h(
    "p",
    { class: "tie-links small" },
    tie.matches.map((id, at) => [
      at ? " " : null,
      h("a", { href: `/match/${encodeURIComponent(id)}` }, tie.matches.length === 1 ? "replay" : `game ${at + 1}`),
    ]),
  );
}

// ---- round robin ----

function crossTable(tournament) {
  const order = tournament.standings.map((one) => one.agent);
  const cells = new Map();
  for (const tie of tournament.rounds.flatMap((round) => round.ties)) {
    tie.agents.forEach((agent, at) => {
      const key = `${agent}:${tie.agents[1 - at]}`;
      const cell = cells.get(key) ?? { points: 0, against: 0, matches: [] };
      cell.points += tie.scores?.[at] ?? 0;
      cell.against += tie.scores?.[1 - at] ?? 0;
      cell.matches.push(...tie.matches);
      cells.set(key, cell);
    });
  }
  const heads = [
    "Agent",
    ...order.map((agent, at) => ({
      text: h("abbr", { title: agentName(tournament.participants[agent]) }, String(at + 1)),
      class: "number",
    })),
  ];
  const rows = order.map((agent, at) =>
    h(
      "tr",
      null,
      h("th", { scope: "row" }, `${at + 1} `, agentName(tournament.participants[agent])),
      order.map((other) => (other === agent ? h("td", { class: "self" }) : crossCell(cells.get(`${agent}:${other}`)))),
    ),
  );
  return section(
    "Cross table",
    { class: "card" },
    h("p", { class: "quiet small" }, "Each row shows the points of its agent against the agent of each column."),
    table("Cross table", heads, rows, { class: "cross" }),
  );
}

function crossCell(cell) {
  if (!cell) return h("td", { class: "number quiet" }, "\u2013");
  const kind = cell.points > cell.against ? "won" : cell.points < cell.against ? "lost" : "drawn";
  const text = points(cell.points);
  return h(
    "td",
    { class: `number ${kind}` },
    cell.matches.length ? h(
      "a",
      { href: `/match/${encodeURIComponent(cell.matches[0])}`, "aria-label": `${text}, ${kind}` },
      text,
    ) : text,
  );
}

// ---- Swiss, and games with more than two seats ----

function rounds(tournament) {
  const one = (round) => h(
    "li",
    null,
    h("h3", null, `Round ${round.number}`),
    h("div", { class: "tie-grid" }, round.ties.map((tie) => tieCard(tournament, tie))),
  );
  return section(
    "Rounds",
    { class: "card" },
    h("ol", { class: "plain rounds" }, [...tournament.rounds].reverse().map(one)),
  );
}
