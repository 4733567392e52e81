// Environments: open and close them, edit their texts, set limits, add one.

import { call, get } from "./api.js";
import { h, put } from "./dom.js";
import { formOf } from "./fields.js";
import { action, envLink, mark, section, titleOf } from "./parts.js";

const KINDS = [
  ["", "Default for the environment"],
  ["verified", "Verified: the platform runs the environment"],
  ["ladder", "Ladder: agents play each other"],
  ["script-only", "Self-reported scripts only"],
];
const EPISODES = [
  ["episodes", "Episodes on hidden seeds"],
  ["practice_episodes", "Practice episodes"],
  ["final_episodes", "Episodes in the finals"],
  ["finalists", "Finalists of each owner"],
];
const NUMBERS = [
  ["start_s", "Time to start, s"],
  ["move_s", "Time for a move, s"],
  ["bank_s", "Extra time for a match, s"],
  ["match_s", "Time for a match, s"],
  ["memory_mb", "Memory, MB"],
  ["processes", "Processes"],
];
const LADDER_NUMBERS = [
  ["games_target", "Games before a rating counts as settled"],
  ["upkeep_s", "Time between matches after that, s"],
  ["provisional_games", "Games until no longer provisional"],
  ["agents_per_owner", "Agents per owner (0: no limit)"],
];
const MODELS = [
  ["plackett-luce", "Plackett-Luce"],
  ["elo", "Elo"],
];

const ACCESS = [
  ["public", "Everybody"],
  ["invited", "Everybody sees it, guests submit"],
  ["private", "Only guests know of it"],
];

const save = (body) => call("PUT", "/v1/admin/environments", { json: body });

export async function panel({ signal, again }) {
  const { environments } = await get("/v1/admin/environments", {}, signal);
  return h(
    "div",
    { class: "stack" },
    section(
      "Environments",
      { class: "card" },
      h("div", { class: "stack" }, environments.map((env) => item(env, again))),
    ),
    section("Add an environment", { class: "card" }, adder(again)),
  );
}

function item(env, again) {
  const place = h("div");
  const edit = h("button", { type: "button", class: "small-button", "aria-expanded": "false" }, "Edit");
  edit.addEventListener("click", () => {
    const open = edit.getAttribute("aria-expanded") === "true";
    edit.setAttribute("aria-expanded", String(!open));
    if (open) put(place);
    else put(place, editor(env, again), guestList(env));
  });
  return h(
    "div",
    { class: "item" },
    h(
      "div",
      { class: "item-head" },
      h(
        "span",
        null,
        envLink(env.env_id, titleOf(env)),
        " ",
        h("span", { class: "quiet" }, `${env.env_id}, ${env.kind}`),
        " ",
        env.enabled ? mark("open", "good") : mark("closed", "warn"),
        env.access === "public" ? null : [" ", mark(env.access, "soft")],
      ),
      h("span", { class: "row" }, edit, action(env.enabled ? "Close" : "Open", async () => {
        await save({ env_id: env.env_id, enabled: !env.enabled });
        await again();
      }, { kind: "small-button" })),
    ),
    place,
  );
}

// The server stores the values that were set and uses defaults for the rest: an empty number means the default.
function editor(env, again) {
  const known = env.settings;
  const ladder = env.kind === "ladder";
  const number = ([name, label]) => ({ name, label, kind: "number", value: known[name], hint: "default" });
  const fields = [
    { name: "title", label: "Title", wide: true, value: known.title },
    { name: "access", label: "Who sees it and submits", kind: "choice", value: env.access, options: ACCESS },
    { name: "summary", label: "One-line summary", wide: true, value: known.summary, max: 2000 },
    { name: "rules", label: "Rules (Markdown)", kind: "long", value: known.rules },
    { name: "sample_agent", label: "Sample agent", kind: "long", rows: 12, value: known.sample_agent },
    ...[...NUMBERS, ...(ladder ? LADDER_NUMBERS : EPISODES)].map(number),
    ...(ladder ? [{ name: "model", label: "Rating", kind: "choice", value: known.model, options: MODELS }] : []),
    ...(ladder ? [{
      name: "owners_meet",
      label: "Agents of one owner may meet",
      kind: "check",
      value: known.owners_meet ?? false,
    }] : []),
  ];
  return formOf(fields, "Save", async ({ access, ...changed }) => {
    const shown = new Set(fields.map((field) => field.name));
    const others = Object.entries(known).filter(([name]) => !shown.has(name)); // of another kind of board
    const settings = { ...Object.fromEntries(others), ...changed };
    await save({ env_id: env.env_id, settings, access, enabled: env.enabled });
    await again();
  });
}

// Owners and teams that may submit to an environment that is not public, and see a private one.
function guestList(env) {
  const list = h("ul", { class: "plain" });
  const draw = ({ owners }) => put(
    list,
    owners.map((owner) => h("li", { class: "row" }, owner, action("Remove", async () => {
      draw(await call("POST", "/v1/admin/guests/remove", { json: { env_id: env.env_id, owner } }));
    }, { kind: "small-button" }))),
  );
  void get("/v1/admin/guests", { env_id: env.env_id }).then(draw);
  const field = { name: "owner", label: "Invite an owner or a team", required: true };
  const form = formOf([field], "Invite", async ({ owner }, element) => {
    draw(await call("POST", "/v1/admin/guests", { json: { env_id: env.env_id, owner: owner.trim() } }));
    element.reset();
  });
  return h("div", { class: "stack" }, h("h3", null, "Guests"), list, form);
}

function adder(again) {
  const fields = [
    { name: "env_id", label: "Environment id", required: true, help: "For example pong-v1, CartPole-v1 or, when trusted, nim:Nim." },
    { name: "kind", label: "Kind", kind: "choice", value: "", options: KINDS },
    { name: "title", label: "Title" },
  ];
  return formOf(fields, "Add", async ({ env_id, kind, title }) => {
    await save({ env_id: env_id.trim(), ...(kind ? { kind } : {}), settings: title ? { title } : {}, enabled: true });
    await again();
  });
}
