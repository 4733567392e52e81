// The front page: the top of every board, matches to watch, and how busy the arena is. Updated by events.

import { get } from "./api.js";
import { board } from "./board.js";
import { h, put, reconcile, redraw, throttled } from "./dom.js";
import { count } from "./format.js";
import { watch } from "./live.js";
import { empty, envLink, envPath, mark, problem, resultText, seatsLine, time, titleOf } from "./parts.js";
import { showLive, showReplay } from "./viewer_frame.js";

const TOP = 5;
const KINDS = { verified: "verified", ladder: "ladder", "script-only": "self-reported" };

export async function render({ signal }) {
  const { environments } = await get("/v1/environments", {}, signal);
  const shown = environments.filter((env) => env.enabled).sort(
    (one, two) => Number(two.entries > 0) - Number(one.entries > 0), // boards with agents first
  );
  const cards = shown.map((env) => card(env, signal));
  const matches = h("ul", { class: "watch-list" });
  const screen = showcase(signal);
  const busy = h("p", { class: "busy", role: "status" });
  const readMatches = throttled(() => recent(matches, screen, signal), 400);
  const readQueue = throttled(() => queue(busy, signal), 400);
  await Promise.all([...cards.map((one) => one.read()), readMatches(), readQueue()]);

  const byTopic = new Map(cards.map((one) => [`board:${one.env.env_id}`, one.read]));
  const topics = [
    "queue",
    ...byTopic.keys(),
    ...shown.filter((env) => env.kind === "ladder").map((env) => `matches:${env.env_id}`),
  ];
  watch(topics, ({ topic, kind }) => {
    if (kind === "reset") for (const read of [...byTopic.values(), readMatches, readQueue]) void read();
    else if (byTopic.has(topic)) void byTopic.get(topic)();
    else if (topic === "queue") void readQueue();
    else void readMatches();
  }, signal);

  const node = h(
    "div",
    { class: "page" },
    h(
      "div",
      { class: "hero" },
      h("h1", null, "Harena"),
      h(
        "p",
        { class: "lead" },
        "Submit an agent. It plays in a sandbox on secret seeds, and the boards update live.",
      ),
      h("p", { class: "row" }, h("a", { href: "/submit", class: "button primary" }, "Submit an agent"), busy),
    ),
    h(
      "div",
      { class: "cards" },
      cards.length ? cards.map((one) => one.node) : empty(
        "There are no open environments yet. A host can add them on the Host page.",
      ),
    ),
    h("section", { class: "card" }, h("h2", null, "Matches to watch"), h("div", { class: "watch-row" }, matches, screen.node)),
  );
  return { title: "Harena", node };
}

function card(env, signal) {
  const grid = board(
    `Top of ${titleOf(env)}`,
    { ladder: env.kind === "ladder", compact: true, unverified: env.kind === "script-only" },
  );
  const place = h("div", null, grid.node);
  const note = h("p", { class: "quiet small" });
  const read = throttled(async () => {
    try {
      const found = await get("/v1/boards", { env_id: env.env_id, limit: TOP }, signal);
      grid.update(found.entries);
      grid.node.hidden = !found.entries.length;
      redraw(note, found.total, () => below(env, found.total));
    } catch (error) {
      if (error.name !== "AbortError") put(note, problem(error));
    }
  });
  const picture = env.kind === "ladder" ? thumbnail(env, signal) : null;
  const node = h(
    "section",
    { class: "card", "data-env": env.env_id },
    h(
      "div",
      { class: "card-head" },
      h("h2", null, envLink(env.env_id, titleOf(env))),
      mark(KINDS[env.kind] ?? env.kind, env.kind === "script-only" ? "warn" : "soft"),
    ),
    env.summary ? h("p", { class: "quiet summary" }, env.summary) : null,
    picture,
    env.season?.frozen ? h("p", null, mark("frozen", "warn", "No new submissions until the season ends")) : null,
    place,
    note,
  );
  return { env, node, read };
}

// A moment of the latest match. It says nothing that the text does not say, so it is hidden from screen readers and keys.
function thumbnail(env, signal) {
  const stage = h("div", { class: "viewer thumbnail", "aria-hidden": "true", inert: true, hidden: true });
  void get("/v1/matches", { env_id: env.env_id, state: "finished", limit: 5 }, signal).then(({ matches }) => {
    const match = matches.find((one) => one.has_replay);
    if (!match) return;
    stage.hidden = false;
    showReplay(stage, match, { step: Math.floor((match.steps ?? 0) * 0.6), mini: true });
  }).catch(() => {}); // the board below is what counts
  return stage;
}

function below(env, total) {
  if (!total) return "No agents yet. Yours could be the first.";
  return h("a", { href: envPath(env.env_id) }, total > TOP ? `Show all ${count(total, "agent")}` : "Show the board");
}

// The match that is being played, or the latest replay, as a picture. A replay is played to its end before the next.
function showcase(signal) {
  const stage = h("div", { class: "viewer mini-viewer" });
  const link = h("a", { class: "quiet small" });
  const node = h("div", { class: "showcase", hidden: true }, stage, link);
  let shown = null;
  let live = null;

  function name(match, text) {
    node.hidden = false;
    link.href = `/match/${encodeURIComponent(match.id)}`;
    put(link, `${text}: `, seatsLine(match));
  }

  function show(running, latest) {
    if (live) return;
    if (latest && shown !== latest.id && latest.has_replay && !busy()) {
      shown = latest.id;
      showReplay(stage, latest, { mini: true });
      name(latest, "Latest match");
    }
    if (running) tune(running);
  }

  const busy = () => {
    const viewer = stage.querySelector("iframe")?.contentWindow?.harena;
    return Boolean(shown) && viewer && viewer.frame() < viewer.count() - 1;
  };

  // Listens before it shows anything: the oldest match may still be waiting.
  function tune(match) {
    live = new AbortController();
    const ends = AbortSignal.any([signal, live.signal]);
    const place = h("div", { class: "viewer mini-viewer", hidden: true });
    const over = () => {
      live?.abort();
      live = null;
      shown = null;
    };
    showLive(place, match, {
      mini: true,
      over,
      started: () => {
        stage.hidden = true;
        place.hidden = false;
        name(match, "Being played");
      },
    }, ends);
    ends.addEventListener("abort", () => {
      place.remove();
      stage.hidden = false;
    });
    node.prepend(place);
  }

  return { node, show };
}

async function recent(list, screen, signal) {
  try {
    const [waiting, over] = await Promise.all([
      get("/v1/matches", { state: "scheduled", limit: 20 }, signal),
      get("/v1/matches", { state: "finished", limit: 5 }, signal),
    ]);
    const next = waiting.matches.sort((one, two) => one.number - two.number).slice(0, 1); // the oldest is played first
    const all = [...next, ...over.matches.slice(0, 5 - next.length)];
    reconcile(list, all, (match) => match.id, watchItem);
    screen.show(next[0], over.matches.find((match) => match.has_replay));
    if (!all.length) put(list, h("li", null, empty("No matches have been played yet.")));
  } catch (error) {
    if (error.name !== "AbortError") put(list, h("li", null, problem(error)));
  }
}

function watchItem(match) {
  const running = match.state === "scheduled";
  return h(
    "li",
    null,
    h(
      "a",
      { href: `/match/${encodeURIComponent(match.id)}`, class: "watch" },
      running ? "Watch live" : "Replay",
      h("span", { class: "unseen" }, ` match ${match.number}`),
    ),
    h("span", { class: "players" }, seatsLine(match)),
    h("span", { class: "quiet" }, running ? "playing now" : resultText(match)),
    h("span", { class: "quiet small" }, match.env_id, " ", running ? null : time(match.finished_at)),
  );
}

async function queue(place, signal) {
  try {
    const { waiting, running } = (await get("/v1", {}, signal)).queue;
    const waits = waiting ? `${count(waiting, "submission")} waiting` : "no submissions waiting";
    const busy = `${count(running, "job")} running, ${waits}`;
    const text = waiting || running ? busy : "Idle: a submission starts immediately";
    if (place.textContent !== text) place.textContent = text;
  } catch (error) {
    if (error.name !== "AbortError") put(place, "The queue status is not available");
  }
}
