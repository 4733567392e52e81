// One season: its dates, its commitments and secrets, and its board.

import { address, environment, get } from "./api.js";
import { board } from "./board.js";
import { h } from "./dom.js";
import { dateText } from "./format.js";
import { empty, envLink, envPath, facts, mark, section } from "./parts.js";

const OPEN =
  "The season has ended, so its secrets are public. Every seed is derived from them, and their hashes are the " +
  "commitments published at the start.";
const SEALED =
  "Every seed is derived from a secret. The commitment is the hash of that secret. When the season ends, the secret " +
  "and everything that happened in hidden episodes are shown.";

function finalsText({ finals, ended_at: ended }) {
  if (ended && !finals) return "The season ended without finals. The public board is final.";
  if (ended) return "The finalists played more episodes on seeds from the second secret, which decided their order.";
  if (finals) {
    return `${finals.done} of ${finals.total} finalists have been evaluated. The results are shown at the end.`;
  }
  return "After the freeze, the finalists of every owner play more episodes on other seeds, which decide.";
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
          found.entries.length ? grid.node : empty("No agents are ranked yet."),
          h(
            "p",
            { class: "quiet small" },
            h(
              "a",
              { href: address(envPath(season.env_id), { season: season.ended_at ? season.id : "" }) },
              "Show with filters and pages",
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
            ["Commitment for the finals", env.kind === "verified" ? hex(season.final_commitment) : null],
            ["Secret for the finals", env.kind === "verified" ? hex(season.final_secret) : null],
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
