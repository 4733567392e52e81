// One environment: its board with filters, pages and past seasons, the separate self-reported board, recent matches,
// rules, limits, a sample agent to copy, exports.

import { address, environment, get } from "./api.js";
import { board } from "./board.js";
import { debounced, h, put, reconcile, redraw, throttled } from "./dom.js";
import { count, dateText, num } from "./format.js";
import { watch } from "./live.js";
import { matrixCard } from "./matrix.js";
import { markdown } from "./markdown.js";
import {
  MATCH_HEADS,
  codeBlock,
  empty,
  envPath,
  facts,
  mark,
  matchRow,
  pager,
  problem,
  section,
  table,
  titleOf,
} from "./parts.js";

const PAGE = 50;
const NOTES = {
  ladder:
    "Strength estimated from all games of the season, with its 95 % interval. " +
    "Agents that cannot be told apart share a rank.",
  verified:
    "Mean return over hidden seeds, with its 95 % interval. The platform steps the environment. " +
    "This public board is based on one set of seeds. At the end of the season, finals on other seeds decide.",
};
const LABELS = { verified: "Verified board", ladder: "Ladder", "self-reported": "Self-reported" };

export async function render({ params: [envId], query, signal, go }) {
  const env = await environment(envId, signal);
  const wanted = {
    user: query.get("user") ?? "",
    algorithm: query.get("algorithm") ?? "",
    season: query.get("season") ?? "",
    offset: Math.max(0, Number.parseInt(query.get("offset") ?? "0", 10) || 0),
  };
  const here = (changes) => {
    const query = { ...wanted, ...changes };
    return address(envPath(env.env_id), { ...query, offset: query.offset || "" });
  };
  const reported = env.kind === "verified" ? selfReported(env, wanted, signal) : null;
  const main = mainBoard(env, wanted, here, go, () => void reported?.read(), signal);
  const matches = matchList(env, signal);
  const matrix = env.kind === "ladder" ? matrixCard(env, signal) : null;
  await Promise.all([main.read(), reported?.read(), matches?.read(), matrix?.read(), tournaments(env, main.finals, signal)]);

  watch([`board:${env.env_id}`, `matches:${env.env_id}`], ({ topic, kind }) => {
    if (kind === "reset" || topic.startsWith("board:")) {
      void main.read();
      void reported?.read();
    }
    if (kind === "reset" || topic.startsWith("matches:")) {
      void matches?.read();
      void matrix?.read();
    }
  }, signal);

  const node = h(
    "div",
    { class: "page" },
    header(env, main.agents),
    h(
      "div",
      { class: "columns" },
      h("div", { class: "stack" }, main.node, reported?.node, matrix?.node, matches?.node, sample(env)),
      h("div", { class: "stack" }, about(env), limits(env), seasons(env), main.finals, exports_(env)),
    ),
  );
  return { title: titleOf(env), node };
}

function header(env, agents) {
  return h(
    "div",
    { class: "page-head" },
    h(
      "div",
      null,
      h("h1", null, titleOf(env)),
      h(
        "p",
        { class: "quiet" },
        env.env_id,
        " · ",
        agents,
        env.season ? ` · ${env.season.name}` : " · no open season",
      ),
      env.summary ? h("p", { class: "lead" }, env.summary) : null,
    ),
    env.enabled
      ? h("a", { href: address("/submit", { env_id: env.env_id }), class: "button primary" }, "Submit an agent")
      : mark("closed", "warn", "The host has closed this environment"),
  );
}

function mainBoard(env, wanted, here, go, filtered, signal) {
  const ladder = env.kind === "ladder";
  const grid = board(`Board of ${titleOf(env)}`, { ladder, unverified: env.kind === "script-only" });
  const agents = h("span", null, count(env.entries ?? 0, "agent"));
  const below = h("div");
  const notes = h("p", { class: "quiet small" });
  const read = throttled(async () => {
    try {
      const query = { env_id: env.env_id, ...wanted, limit: PAGE };
      const found = await get("/v1/boards", query, signal);
      grid.update(found.entries);
      grid.node.hidden = !found.entries.length;
      const all = found.live && !wanted.user && !wanted.algorithm;
      if (all) redraw(agents, found.total, () => count(found.total, "agent"));
      redraw(notes, found.live, () => note(env, found));
      redraw(below, [found.total, wanted], () => {
        if (found.entries.length) return pager(found.total, PAGE, wanted.offset, (offset) => here({ offset }));
        const narrowed = wanted.user || wanted.algorithm;
        return empty(narrowed ? "No agent matches the filter." : "No agents yet. Yours could be the first.");
      });
    } catch (error) {
      if (error.name !== "AbortError") put(below, problem(error));
    }
  });
  const name = env.kind === "script-only" ? "self-reported" : env.kind;
  const node = h(
    "section",
    { class: "card", id: "board" },
    h("div", { class: "card-head" }, h("h2", null, LABELS[name]), switcher(env, wanted, here, go)),
    env.kind === "script-only" ? unverifiedNote() : null,
    filters(wanted, here, () => {
      void read();
      filtered();
    }),
    notes,
    grid.node,
    below,
  );
  return { node, read, agents, finals: h("div") };
}

function note(env, found) {
  if (!found.live) return "This season has ended. The board is final.";
  if (env.season?.frozen) return "Frozen: new submissions are not accepted. Existing agents continue to play.";
  return NOTES[env.kind] ?? "";
}

function filters(wanted, here, changed) {
  const apply = debounced((form) => {
    const data = new FormData(form);
    Object.assign(wanted, { user: data.get("user").trim(), algorithm: data.get("algorithm").trim(), offset: 0 });
    history.replaceState(null, "", here({}));
    changed();
  });
  const field = (name, label) =>
    h(
      "div",
      { class: "field" },
      h("label", { for: `filter-${name}` }, label),
      h(
        "input",
        { id: `filter-${name}`, name, type: "search", value: wanted[name], maxlength: 200, autocomplete: "off" },
      ),
    );
  return h(
    "form",
    {
      class: "filters",
      role: "search",
      "aria-label": "Filter the board",
      onsubmit: (event) => event.preventDefault(),
      oninput: (event) => apply(event.currentTarget),
    },
    field("user", "Owner"),
    field("algorithm", "Algorithm"),
  );
}

function switcher(env, wanted, here, go) {
  const seasonList = env.seasons ?? [];
  if (seasonList.length < 2) return null;
  const select = h(
    "select",
    { id: "season", onchange: (event) => void go(here({ season: event.target.value, offset: 0 }), { keep: true }) },
    h("option", { value: "" }, "Current"),
    seasonList.filter((one) => one.ended_at).map((one) => h(
      "option",
      { value: one.id, selected: String(one.id) === wanted.season },
      one.name,
    )),
  );
  return h("div", { class: "inline-field" }, h("label", { for: "season" }, "Season"), select);
}

const unverifiedNote = () =>
  h(
    "p",
    { class: "warning" },
    h("strong", null, "Not verified. "),
    "These scripts report their own scores; the platform only ran them. They are never ranked with verified entries.",
  );

function selfReported(env, wanted, signal) {
  const grid = board(`Self-reported scores of ${titleOf(env)}`, { unverified: true });
  const errors = h("div");
  const node = h(
    "section",
    { class: "card apart", id: "self-reported", hidden: true },
    h("h2", null, LABELS["self-reported"]),
    unverifiedNote(),
    grid.node,
    errors,
  );
  const read = throttled(async () => {
    const { season, user, algorithm } = wanted;
    try {
      const found = await get(
        "/v1/boards",
        { env_id: env.env_id, board: "self-reported", season, user, algorithm, limit: 20 },
        signal,
      );
      grid.update(found.entries);
      node.hidden = !found.entries.length;
      put(errors);
    } catch (error) {
      node.hidden = false;
      if (error.name !== "AbortError") put(errors, problem(error));
    }
  });
  return { node, read };
}

function matchList(env, signal) {
  if (env.kind !== "ladder") return null;
  const grid = table("Recent matches", MATCH_HEADS, []);
  const errors = h("div");
  const node = section("Recent matches", { class: "card" }, grid, errors);
  const body = grid.querySelector("tbody");
  const read = throttled(async () => {
    try {
      const { matches } = await get("/v1/matches", { env_id: env.env_id, limit: 12 }, signal);
      reconcile(body, matches, (match) => match.id, matchRow);
      put(errors);
    } catch (error) {
      if (error.name !== "AbortError") put(errors, problem(error));
    }
  }, 400);
  return { node, read };
}

async function tournaments(env, place, signal) {
  try {
    const { tournaments: found } = await get("/v1/tournaments", { env_id: env.env_id }, signal);
    if (!found.length) return;
    const items = found.map((one) => h(
      "li",
      null,
      h("a", { href: `/tournament/${encodeURIComponent(one.id)}` }, one.name),
      " ",
      mark(one.state, one.state === "running" ? "good" : "soft"),
    ));
    put(place, section("Tournaments", { class: "card" }, h("ul", { class: "plain" }, items)));
  } catch (error) {
    if (error.name !== "AbortError") put(place, problem(error));
  }
}

function about(env) {
  if (!env.rules && !env.observation && !env.action) return null;
  return section(
    "Rules",
    { class: "card" },
    env.rules ? markdown(env.rules) : null,
    facts([["Seats", env.seats], ["Observation", space(env.observation)], ["Action", space(env.action)]]),
  );
}

const readable = (value) => (
  value === null || value === undefined ? null : typeof value === "string" ? value : JSON.stringify(value)
);

// "box, 8 numbers (float32), -1 to 11"; "one of 3: 0 to 2".
function space(of) {
  if (!of || typeof of !== "object") return of ? String(of) : null;
  if (of.kind === "discrete") return `one of ${of.n}: ${num(of.start ?? 0)} to ${num((of.start ?? 0) + of.n - 1)}`;
  if (of.kind !== "box" || !Array.isArray(of.shape)) return JSON.stringify(of);
  const bounds = typeof of.low === "number" && typeof of.high === "number" ? `, ${num(of.low)} to ${num(of.high)}` : "";
  return `${of.shape.join(" \u00d7 ") || "1"} ${of.dtype ?? ""}${bounds}`;
}

function limits(env) {
  const pairs = Object.entries(env.limits ?? {}).map(([name, value]) => limit(name, value));
  const packages = (env.packages ?? []).map((one) => (typeof one === "string" ? one : one.name)).join(", ");
  if (!pairs.length && !packages) return null;
  return section("Limits", { class: "card" }, facts([...pairs, ["Packages", packages]]));
}

const UNITS = { s: "s", mb: "MB", bytes: "bytes" };

const LIMIT_NAMES = {
  episodes: "Episodes",
  practice_episodes: "Practice episodes",
  final_episodes: "Episodes in the finals",
  finalists: "Finalists of each owner",
  start_s: "Time to start",
  move_s: "Time for a move",
  bank_s: "Extra time",
  match_s: "Time for a match",
  run_s: "Time to run",
  memory_mb: "Memory",
  processes: "Processes",
};

// "move_s": 5 reads "Time for a move: 5 s".
function limit(name, value) {
  const [, words, unit] = /^(.*?)_(s|mb|bytes)$/.exec(name) ?? [null, name, ""];
  const plain = words.replaceAll("_", " ");
  const label = LIMIT_NAMES[name] ?? plain[0].toUpperCase() + plain.slice(1);
  return [label, `${readable(value)} ${UNITS[unit] ?? ""}`.trim()];
}

function seasons(env) {
  const all = env.seasons ?? [];
  if (!all.length) return null;
  const item = (one) =>
    h(
      "li",
      null,
      h("a", { href: `/seasons/${encodeURIComponent(one.id)}` }, one.name),
      " ",
      one.ended_at ? h(
        "span",
        { class: "quiet" },
        `ended ${dateText(one.ended_at)}`,
      ) : mark(one.frozen ? "frozen" : "live", one.frozen ? "warn" : "good"),
    );
  return section("Seasons", { class: "card" }, h("ul", { class: "plain" }, all.map(item)));
}

function sample(env) {
  if (!env.sample_agent) return null;
  return section(
    "A sample agent",
    { class: "card", id: "sample" },
    h(
      "p",
      { class: "quiet" },
      "Save it as agent.py, change it, and submit it. ",
      h("a", { href: address("/v1/kits", { env_id: env.env_id }), download: "" }, "Starter kit (zip)"),
    ),
    codeBlock(env.sample_agent, "Sample agent"),
  );
}

function feeds(env) {
  const whats = env.kind === "ladder" ? ["results", "ranks", "matches"] : ["results", "ranks"];
  return whats.map((what) => [h("a", { href: address(`/v1/feeds/${what}`, { env_id: env.env_id }), type: "application/atom+xml" }, what), " "]);
}

function exports_(env) {
  const whats = env.kind === "ladder" ? ["board", "matches", "ratings", "submissions"] : ["board", "submissions"];
  const links = (what) => ["csv", "jsonl", "parquet"].map((format) => [
    " ",
    h("a", { href: address(`/v1/export/${what}`, { env_id: env.env_id, format }), download: "" }, format),
  ]);
  return section(
    "Exports",
    { class: "card" },
    h(
      "ul",
      { class: "plain" },
      whats.map((what) => h("li", null, `${what[0].toUpperCase()}${what.slice(1)}:`, links(what))),
      h("li", null, "Feeds: ", feeds(env)),
    ),
  );
}
