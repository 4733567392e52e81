// One season: when it ran, what it promised at its start and revealed at its end, its final board.

import { address, environment, get } from "./api.js";
import { board } from "./board.js";
import { h } from "./dom.js";
import { dateText } from "./format.js";
import { empty, envLink, envPath, facts, mark, section } from "./parts.js";

const OPEN =
  "The season is over, so its secrets are open: every seed follows from them, and their hashes are the commitments of " +
  "the start.";
const SEALED =
  "Every seed follows from a secret. This commitment is its hash; the secret is shown when the season ends, and so is " +
  "everything that happened in hidden episodes.";

function finalsText({ finals, ended_at: ended }) {
  if (ended && !finals) return "It ended without finals: the public board stands.";
  if (ended) return "The finalists played more episodes, on seeds from the second secret. That decided their order.";
  if (finals) return `${finals.done} of ${finals.total} finalists have been evaluated. The end shows the results.`;
  return "After the freeze the finalists of every owner play more episodes, on other seeds. That decides.";
}

export async function render({ params: [id], signal }) {
  const season = await get(`/v1/seasons/${encodeURIComponent(id)}`, {}, signal);
  const [env, found, held] = await Promise.all([
    environment(season.env_id, signal),
    get("/v1/boards", { env_id: season.env_id, season: season.ended_at ? season.id : "", limit: 100 }, signal),
    get("/v1/tournaments", { env_id: season.env_id }, signal),
  ]);
  const finals = held.tournaments.filter((one) => one.finals && (
    one.season_id === undefined || String(one.season_id) === String(season.id)
  ));
  const grid = board(
    `Board of ${season.name}`,
    { ladder: env.kind === "ladder", unverified: env.kind === "script-only" },
  );
  grid.update(found.entries);
  const state = season.ended_at ? mark("ended", "soft") : season.frozen ? mark("frozen", "warn") : mark("live", "good");
  const node = h(
    "div",
    { class: "page" },
    h("h1", null, season.name, " ", state),
    h(
      "p",
      { class: "quiet" },
      envLink(season.env_id, env.title),
      ` · from ${dateText(season.started_at)}`,
      season.ended_at ? ` to ${dateText(season.ended_at)}` : "",
    ),
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        { class: "stack" },
        section(
          season.ended_at ? "Final board" : "Board",
          { class: "card" },
          found.entries.length ? grid.node : empty("Nobody has a place yet."),
          h(
            "p",
            { class: "quiet small" },
            h(
              "a",
              { href: address(envPath(season.env_id), { season: season.ended_at ? season.id : "" }) },
              "With filters and pages",
            ),
          ),
        ),
      ),
      h(
        "div",
        { class: "stack" },
        section(
          "Hidden seeds",
          { class: "card" },
          h(
            "p",
            { class: "quiet small" },
            season.secret ? OPEN : SEALED,
          ),
          facts([
            ["Commitment", hex(season.commitment)],
            ["Secret", hex(season.secret)],
            ["Commitment of the finals", env.kind === "verified" ? hex(season.final_commitment) : null],
            ["Secret of the finals", env.kind === "verified" ? hex(season.final_secret) : null],
          ]),
        ),
        env.kind === "verified" ? section(
          "Finals",
          { class: "card" },
          h("p", { class: "quiet small" }, finalsText(season)),
        ) : null,
        finals.length ? section(
          "Finals",
          { class: "card" },
          h(
            "ul",
            { class: "plain" },
            finals.map((one) => h(
              "li",
              null,
              h("a", { href: `/tournament/${encodeURIComponent(one.id)}` }, one.name),
              " ",
              mark(one.state, "soft"),
            )),
          ),
        ) : null,
      ),
    ),
  );
  return { title: season.name, node };
}

const hex = (text) => (text ? h("code", { class: "hex" }, text) : null);
