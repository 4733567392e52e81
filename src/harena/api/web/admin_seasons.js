// Seasons: start, freeze, play finals, end. Ending a season publishes its secret and cannot be undone.

import { get, post } from "./api.js";
import { h } from "./dom.js";
import { formOf } from "./fields.js";
import { dateText } from "./format.js";
import { action, empty, envLink, mark, section } from "./parts.js";

export async function panel({ signal, again, go }) {
  const { environments } = await get("/v1/admin/environments", {}, signal);
  const found = await Promise.all(environments.map((env) => get("/v1/seasons", { env_id: env.env_id }, signal)));
  const seasons = found.flatMap((one) => one.seasons);
  const open = seasons.filter((season) => !season.ended_at);
  const over = seasons.filter((season) => season.ended_at);
  const free = environments.filter((env) => !open.some((season) => season.env_id === env.env_id));
  const kinds = new Map(environments.map((env) => [env.env_id, env.kind]));
  return h(
    "div",
    { class: "stack" },
    section(
      "Running",
      { class: "card" },
      open.length ? h(
        "div",
        { class: "stack" },
        open.map((season) => item(season, kinds.get(season.env_id), again, go)),
      ) : empty("No season is running, so nobody can submit."),
    ),
    section(
      "Start a season",
      { class: "card" },
      free.length ? [nextSeasons(free, seasons, again), starter(free, again)] : empty("Every environment has a running season. End it to start the next."),
    ),
    over.length ? section(
      "Past",
      { class: "card" },
      h(
        "ul",
        { class: "plain" },
        over.map((season) => h(
          "li",
          null,
          h("a", { href: `/seasons/${season.id}` }, season.name),
          h("span", { class: "quiet" }, ` ${season.env_id}, ended ${dateText(season.ended_at)}`),
        )),
      ),
    ) : null,
  );
}

const finalsQuestion = ({ name }) =>
  `Play a round robin of the best eight of ${name}, two games per pair? It decides the final order.`;
const finalistsQuestion = ({ name }) =>
  `Evaluate the finalists of ${name} on its second secret? Owners cannot change their choice after that.`;
const withoutQuestion = ({ name }) =>
  `End ${name} without finals? The public board becomes final, also for agents fitted to its episodes.`;
const endQuestion = ({ name }) =>
  `End ${name}? Its board is archived, its secret becomes public, and it cannot be reopened.`;

function item(season, kind, again, go) {
  const path = `/v1/seasons/${encodeURIComponent(season.id)}`;
  const freeze = action(season.frozen ? "Unfreeze" : "Freeze", async () => {
    await post(`${path}/freeze`, { frozen: !season.frozen });
    await again();
  }, { kind: "small-button" });
  const finals = action("Play finals", async () => {
    const tournament = await post(`${path}/finals`, { top: 8, games: 2 });
    await go(`/tournament/${encodeURIComponent(tournament.id)}`);
  }, { kind: "small-button", confirm: finalsQuestion(season) });
  const evaluate = action("Evaluate finalists", async () => {
    await post(`${path}/finalists`);
    await again();
  }, { kind: "small-button", confirm: finalistsQuestion(season) });
  const without = action("End without finals", async () => {
    await post(`${path}/end`, { without_finals: true });
    await again();
  }, { kind: "small-button danger", confirm: withoutQuestion(season) });
  const verified = kind === "verified";
  const through = season.finals && season.finals.done === season.finals.total;
  const end = action("End", async () => {
    await post(`${path}/end`);
    await again();
  }, { kind: "small-button danger", confirm: endQuestion(season) });
  return h(
    "div",
    { class: "item" },
    h(
      "div",
      { class: "item-head" },
      h(
        "span",
        null,
        h("a", { href: `/seasons/${season.id}` }, season.name),
        " ",
        h("span", { class: "quiet" }, "in ", envLink(season.env_id), `, since ${dateText(season.started_at)}`),
        " ",
        season.frozen ? mark("frozen", "warn") : mark("live", "good"),
        season.finals ? [" ", mark(`finals ${season.finals.done} of ${season.finals.total}`, "soft")] : null,
      ),
      h(
        "span",
        { class: "row" },
        freeze,
        kind === "ladder" && season.frozen ? finals : null,
        verified && season.frozen && !through ? evaluate : null,
        end,
        verified && !through ? without : null,
      ),
    ),
  );
}

// One click for each environment without a season, with the next number as its name.
function nextSeasons(free, seasons, again) {
  return h(
    "p",
    { class: "row wrap" },
    free.map((env) => {
      const name = `season ${seasons.filter((season) => season.env_id === env.env_id).length + 1}`;
      return action(`Start ${name} of ${env.env_id}`, async () => {
        await post("/v1/seasons", { env_id: env.env_id, name });
        await again();
      });
    }),
  );
}

function starter(free, again) {
  const fields = [
    {
      name: "env_id",
      label: "Environment",
      kind: "choice",
      value: free[0].env_id,
      options: free.map((env) => [env.env_id, env.env_id]),
    },
    { name: "name", label: "Name", required: true },
  ];
  return formOf(fields, "Start", async (values) => {
    await post("/v1/seasons", values);
    await again();
  });
}
