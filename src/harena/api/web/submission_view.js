// Parts that show a submission, on its own page and on the agent's: score, plots, opponents, matches, and the actions of
// its owner.

import { address, call, download, get, post } from "./api.js";
import { h, put, reconcile, throttled } from "./dom.js";
import { count, duration, num, percent, range } from "./format.js";
import { MATCH_HEADS, action, agentLink, empty, facts, mark, matchRow, problem, section, table } from "./parts.js";
import { ratings, shares, strip } from "./plots.js";

const path = (submission, rest = "") => `/v1/submissions/${encodeURIComponent(submission.id)}${rest}`;
const SMALL = { kind: "small-button" };
const ACTIVE = new Set(["received", "checked", "queued", "running"]);

// Agents of a ladder get their score from its board.
export const placed = (submission) => (
  typeof submission.score === "number" || !submission.standing ? submission : submission.standing
);

export function scoreCard(submission) {
  const { standing, evaluation } = submission;
  const { score, low, high } = placed(submission);
  const unverified = submission.kind === "self-reported";
  return h(
    "section",
    { class: "card score-card" },
    h("h2", { class: "unseen" }, "Score"),
    h("p", { class: "big" }, num(score), unverified ? [" ", mark("self-reported", "warn")] : null),
    typeof low === "number" ? h("p", { class: "quiet" }, `95 % interval ${range(low, high)}`) : null,
    facts([
      ["Rank", standing?.rank ? `${standing.rank}${standing.provisional ? " (provisional)" : ""}` : null],
      ["Games", standing?.games ? `${standing.wins} won, ${standing.draws} drawn, ${standing.losses} lost` : null],
      ["Interquartile mean", evaluation && typeof evaluation.iqm === "number" ? num(evaluation.iqm) : null],
      ["Median", evaluation && typeof evaluation.median === "number" ? num(evaluation.median) : null],
      ["Episodes", evaluation?.episodes],
      ["Steps", stepsText(evaluation?.steps)],
      ["CPU time", evaluation?.cpu_s ? duration(evaluation.cpu_s) : null],
      ["Wall time", evaluation?.wall_s ? duration(evaluation.wall_s) : null],
      [
        "Digest",
        submission.digest ? h(
          "code",
          { class: "digest", title: submission.digest },
          submission.digest.slice(0, 12),
        ) : null,
      ],
    ]),
    submission.benched ? h(
      "p",
      { class: "warning" },
      h("strong", null, "Benched. "),
      typeof submission.benched === "string" ? submission.benched : "It is not matched until a host lets it play again.",
    ) : null,
  );
}

function stepsText(steps) {
  if (Array.isArray(steps)) return steps.reduce((sum, one) => sum + one, 0).toLocaleString("en");
  return typeof steps === "number" ? steps.toLocaleString("en") : null;
}

// Explains what an owner cannot see yet.
export function hiddenCard() {
  return section(
    "Hidden until the season ends",
    { class: "card" },
    h(
      "p",
      { class: "quiet small" },
      "The score comes from episodes on secret seeds. Nobody sees their returns, steps, times, logs or replays before ",
      "the season ends. The same code always keeps its first result.",
    ),
    h(
      "p",
      { class: "quiet small" },
      "At the end the finalists play more episodes on seeds from a second secret, which decide the final board.",
    ),
  );
}

// Episodes on public seeds with all their details, for the owner.
export async function practiceCard(submission, signal) {
  const { episodes, score } = await get(path(submission, "/practice"), {}, signal);
  if (!episodes.length) return null;
  const heads = [
    "Episode",
    { text: "Return", class: "number" },
    { text: "Steps", class: "number" },
    { text: "Seed", class: "wide" },
    "",
  ];
  const rows = episodes.map((one) => {
    const name = `${submission.algorithm}-v${submission.version}-practice-${one.episode + 1}`;
    const open = path(submission, `/practice/${one.episode}`);
    return h(
      "tr",
      null,
      h("td", null, one.episode + 1, one.fault ? [" ", mark(one.fault, "warn")] : null),
      h("td", { class: "number" }, num(one.score)),
      h("td", { class: "number" }, one.steps),
      h("td", { class: "wide" }, h("code", null, one.seed)),
      h(
        "td",
        { class: "nowrap" },
        one.url ? action("Replay", () => download(`${open}?format=html`, `${name}.html`), SMALL) : null,
        one.has_log ? [" ", action("Log", () => download(`${open}/log`, `${name}.log`), SMALL)] : null,
      ),
    );
  });
  return section(
    "Practice",
    { class: "card practice" },
    h(
      "p",
      { class: "quiet small" },
      "Episodes on public seeds, visible only to you",
      typeof score === "number" ? `: ${num(score)} on average. ` : ". ",
      "They do not count for any board.",
    ),
    table("Practice", heads, rows),
  );
}

export function finalCard(submission) {
  const final = submission.final_result;
  if (!final) return null;
  return section(
    "Finals",
    { class: "card" },
    h("p", { class: "big" }, num(final.score)),
    typeof final.low === "number" ? h("p", { class: "quiet" }, `95 % interval ${range(final.low, final.high)}`) : null,
    h("p", { class: "quiet small" }, `${count(final.episodes, "episode")} on seeds from the season's second secret.`),
  );
}

// What a script printed beside its score.
export function metricsCard(submission) {
  const all = Object.entries(submission.evaluation?.metrics ?? {});
  if (!all.length) return null;
  return section("Metrics", { class: "card" }, facts(all.map(([name, value]) => [name, metricText(value)])));
}

function metricText(value) {
  if (Array.isArray(value)) {
    const some = value.slice(0, 20).map((one) => num(one)).join(", ");
    return value.length > 20 ? `${some}, …` : some;
  }
  return typeof value === "number" ? num(value) : String(value);
}

export function returnsCard(submission) {
  const plot = submission.evaluation ? strip(submission.evaluation, submission) : null;
  if (!plot) return null;
  return section(
    "Returns",
    { class: "card" },
    h("p", { class: "quiet small" }, "Each dot is an episode. The mean and its 95 % interval are shown below."),
    plot,
  );
}

// Replays of hidden seeds, visible once the season has ended.
export async function replaysCard(submission, signal) {
  const { replays } = await get(path(submission, "/replays"), {}, signal);
  if (!replays.length) return null;
  const item = ({ episode, roles, url }) =>
    h("li", null, h("a", { href: address(url, { format: "html" }) }, `Episode ${episode + 1}`), ` ${roles.join(", ")}`);
  return section("Replays", { class: "card" }, h("ul", { class: "plain" }, replays.map(item)));
}

// Each card loads its own data, so that a failure does not affect the others.
export function ladderCards(submission, signal) {
  const plot = h("div");
  const others = h("div");
  const read = throttled(async () => {
    await Promise.all([
      fill(plot, () => ratingPlot(submission, signal)),
      fill(others, () => opponents(submission, signal)),
    ]);
  }, 1000);
  return { node: h("div", { class: "stack" }, plot, others), read };
}

async function fill(place, make) {
  try {
    put(place, await make());
  } catch (error) {
    if (error.name !== "AbortError") put(place, problem(error));
  }
}

async function ratingPlot(submission, signal) {
  const { points } = await get(path(submission, "/ratings"), {}, signal);
  const now = await get(path(submission), {}, signal);
  const plot = ratings(points, now.standing?.score);
  if (!plot) return null;
  return section(
    "Running rating",
    { class: "card" },
    h(
      "p",
      { class: "quiet small" },
      `Moves with each of ${count(points.length, "rated match", "rated matches")} and decides who meets whom; `,
      "the band is two standard deviations. The board's score is a separate estimate from all games at once, ",
      "so the two can differ.",
    ),
    plot,
  );
}

async function opponents(submission, signal) {
  const { opponents: found } = await get(path(submission, "/opponents"), {}, signal);
  if (!found.length) return null;
  const heads = [
    "Opponent",
    { text: "Games", class: "number" },
    { text: "Won", class: "number" },
    { text: "Share", class: "wide" },
  ];
  const rows = found.map((one) =>
    h(
      "tr",
      null,
      h("td", { class: "who" }, agentLink(one), h("span", { class: "owner" }, one.owner)),
      h("td", { class: "number" }, one.games),
      h("td", { class: "number" }, one.games ? percent((one.wins + one.draws / 2) / one.games) : "\u2013"),
      h("td", { class: "wide" }, shares(one)),
    ),
  );
  const legend = h(
    "p",
    { class: "legend quiet small" },
    h("span", { class: "key won" }, "won"),
    h("span", { class: "key drawn" }, "drawn"),
    h("span", { class: "key lost" }, "lost"),
  );
  return section("Opponents", { class: "card" }, legend, table("Opponents", heads, rows));
}

export function matchesCard(submission, signal) {
  const grid = table("Matches", MATCH_HEADS, []);
  const body = grid.querySelector("tbody");
  const note = h("div");
  const node = section("Matches", { class: "card" }, grid, note);
  const read = throttled(async () => {
    try {
      const { matches } = await get("/v1/matches", { submission: submission.id, limit: 25 }, signal);
      reconcile(body, matches, (match) => match.id, matchRow);
      grid.hidden = !matches.length;
      put(note, matches.length ? null : empty("No matches yet."));
    } catch (error) {
      if (error.name !== "AbortError") put(note, problem(error));
    }
  }, 500);
  return { node, read };
}

function finalistAction(submission, again) {
  const choose = async (chosen) => again(await post(path(submission, "/finalist"), { chosen }));
  return submission.finalist
    ? action("Withdraw from the finals", () => choose(false), SMALL)
    : action("Choose for the finals", () => choose(true), SMALL);
}

export function ownerCard(submission, again, go, { finalists = false } = {}) {
  if (!submission.mine) return null;
  const chooses = finalists && submission.kind === "verified" && typeof submission.score === "number";
  const active = ACTIVE.has(submission.state);
  const name = `${submission.algorithm}-v${submission.version}`;
  return section(
    "Yours",
    { class: "card" },
    h(
      "div",
      { class: "row wrap" },
      submission.has_log ? action("Log", () => download(path(submission, "/log"), `${name}.log`), SMALL) : null,
      action("Code", () => download(path(submission, "/code"), `${name}.zip`), SMALL),
      active ? action("Cancel", async () => again(await post(path(submission, "/cancel"))), SMALL) : null,
      active ? null : action("Evaluate again", async () => again(await post(path(submission, "/reevaluate"))), SMALL),
      chooses ? finalistAction(submission, again) : null,
      h("a", { href: address("/submit", { env_id: submission.env_id }), class: "button small-button" }, "New version"),
      action(
        "Delete",
        () => call("DELETE", path(submission)).then(() => go("/")),
        {
          kind: "small-button danger",
          confirm: "Delete this submission? Its code and its place on the board are permanently removed.",
        },
      ),
    ),
    chooses ? h(
      "p",
      { class: "quiet small" },
      submission.finalist ? "You have chosen this submission for the finals. " : null,
      "If you choose none, your best submissions on the public board are the finalists.",
    ) : null,
  );
}

export function challengeCard(submission, entries, go) {
  const others = entries.filter((entry) => entry.submission_id !== submission.id);
  if (!submission.mine || submission.state !== "ranked" || !others.length) return null;
  const select = h(
    "select",
    { id: "opponent" },
    others.map((one) => h("option", { value: one.submission_id }, `${one.algorithm} v${one.version}, ${one.owner}`)),
  );
  const games = h("input", { id: "games", type: "number", min: 1, max: 10, value: 2 });
  return section(
    "Challenge",
    { class: "card" },
    h("p", { class: "quiet small" }, "Games against an opponent of your choice. They do not change ratings."),
    h("div", { class: "field" }, h("label", { for: "opponent" }, "Opponent"), select),
    h("div", { class: "field" }, h("label", { for: "games" }, "Games"), games),
    action("Challenge", async () => {
      const made = await post(
        "/v1/challenges",
        { submission_id: submission.id, opponent_id: select.value, games: Number(games.value) },
      );
      await go(`/match/${encodeURIComponent(made.matches[0].id)}`);
    }, { kind: "primary" }),
  );
}
