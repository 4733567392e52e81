// Tournaments: start one between the best agents of a board, or cancel one.

import { get, post } from "./api.js";
import { h } from "./dom.js";
import { formOf } from "./fields.js";
import { action, empty, envLink, mark, section, time } from "./parts.js";

const FORMATS = [
  ["round-robin", "Round robin"],
  ["swiss", "Swiss"],
  ["elimination", "Single elimination"],
  ["double-elimination", "Double elimination"],
];

export async function panel({ signal, again, go }) {
  const [{ tournaments }, { environments }] = await Promise.all([
    get("/v1/tournaments", {}, signal),
    get("/v1/admin/environments", {}, signal),
  ]);
  const ladders = environments.filter((env) => env.kind === "ladder");
  return h(
    "div",
    { class: "stack" },
    section(
      "Tournaments",
      { class: "card" },
      tournaments.length ? h(
        "div",
        { class: "stack" },
        tournaments.map((one) => item(one, again)),
      ) : empty("No tournaments yet."),
    ),
    section(
      "Start a tournament",
      { class: "card" },
      ladders.length ? maker(ladders, go) : empty("Tournaments need a ladder, and there is none."),
    ),
  );
}

function item(tournament, again) {
  const cancel = action("Cancel", async () => {
    await post(`/v1/tournaments/${encodeURIComponent(tournament.id)}/cancel`);
    await again();
  }, { kind: "small-button danger", confirm: `Cancel ${tournament.name}? Running games are stopped.` });
  return h(
    "div",
    { class: "item" },
    h(
      "div",
      { class: "item-head" },
      h(
        "span",
        null,
        h("a", { href: `/tournament/${encodeURIComponent(tournament.id)}` }, tournament.name),
        " ",
        h("span", { class: "quiet" }, "in ", envLink(tournament.env_id), ", ", time(tournament.created_at)),
        " ",
        mark(tournament.state, tournament.state === "running" ? "good" : "soft"),
      ),
      tournament.state === "running" ? cancel : null,
    ),
  );
}

function maker(ladders, go) {
  const fields = [
    {
      name: "env_id",
      label: "Environment",
      kind: "choice",
      value: ladders[0].env_id,
      options: ladders.map((env) => [env.env_id, env.env_id]),
    },
    { name: "name", label: "Name", required: true },
    { name: "format", label: "Format", kind: "choice", value: "round-robin", options: FORMATS },
    { name: "top", label: "Number of best agents", kind: "number", value: 8 },
    { name: "games", label: "Games per pair", kind: "number", value: 2 },
  ];
  return formOf(fields, "Start", async (values) => {
    const made = await post("/v1/tournaments", values);
    await go(`/tournament/${encodeURIComponent(made.id)}`);
  });
}
