// One submission: its progress and its results.

import { environment, get } from "./api.js";
import { h, put, redraw } from "./dom.js";
import { watch } from "./live.js";
import { agentPath, envLink, mark, problem, time } from "./parts.js";
import { follow } from "./status.js";
import * as view from "./submission_view.js";

const ACTIVE = new Set(["received", "checked", "queued", "running"]);

export async function render({ params: [id], signal, go }) {
  const submission = await get(`/v1/submissions/${encodeURIComponent(id)}`, {}, signal);
  const env = await environment(submission.env_id, signal);
  const ladder = env.kind === "ladder";
  const over = env.seasons.some((season) => season.id === submission.season_id && season.ended_at);
  const again = () => go(`/submission/${encodeURIComponent(id)}`, { replace: true });
  const lists = ladder
    ? { cards: view.ladderCards(submission, signal), matches: view.matchesCard(submission, signal) }
    : null;
  const rivals = ladder && submission.mine ? await others(submission, signal) : [];
  const replays = over && !ladder ? await view.replaysCard(submission, signal) : null;
  const verified = env.kind === "verified" && submission.kind === "verified";
  const parts = {
    score: h("div"),
    final: h("div"),
    hidden: h("div"),
    practice: h("div"),
    returns: h("div"),
    metrics: h("div"),
    challenge: h("div"),
    owner: h("div"),
  };

  // Only changed parts are redrawn, so that a control does not disappear while somebody uses it.
  function draw(now) {
    const placed = now.state === "ranked" || typeof now.score === "number";
    redraw(parts.score, now, () => (placed ? view.scoreCard(now) : null));
    redraw(parts.returns, [now.evaluation, now.score], () => view.returnsCard(now));
    redraw(parts.metrics, now.evaluation, () => view.metricsCard(now));
    redraw(parts.challenge, now.state, () => view.challengeCard(now, rivals, go));
    redraw(parts.final, now.final_result, () => view.finalCard(now));
    redraw(parts.hidden, ACTIVE.has(now.state), () => (verified && !over ? view.hiddenCard() : null));
    redraw(
      parts.owner,
      [now.state, now.has_log, now.finalist],
      () => view.ownerCard(now, again, go, { finalists: verified && !over }),
    );
    if (verified && now.mine && now.state !== practised && !ACTIVE.has(now.state)) {
      practised = now.state;
      void readPractice(now);
    }
  }

  let practised = null; // the state in which the practice was last read
  async function readPractice(now) {
    try {
      put(parts.practice, await view.practiceCard(now, signal));
    } catch (error) {
      if (error.name !== "AbortError") put(parts.practice, problem(error));
    }
  }

  const status = h(
    "section",
    { class: "card" },
    h("h2", { class: "unseen" }, "State"),
    follow(submission, draw, signal),
  );
  draw(submission);
  if (lists) {
    await Promise.all([lists.cards.read(), lists.matches.read()]);
    watch([`matches:${submission.env_id}`, `board:${submission.env_id}`], ({ topic, kind }) => {
      if (kind === "reset" || topic.startsWith("matches:")) void lists.matches.read();
      if (kind === "reset" || topic.startsWith("board:")) void lists.cards.read();
    }, signal);
  }
  const node = h(
    "div",
    { class: "page" },
    h(
      "h1",
      null,
      submission.algorithm,
      h("span", { class: "version" }, ` v${submission.version}`),
      submission.mine ? [" ", mark("yours", "good")] : null,
    ),
    h(
      "p",
      { class: "quiet" },
      "by ",
      h("strong", null, submission.owner),
      " in ",
      envLink(submission.env_id, env.title),
      ", sent ",
      time(submission.created_at),
      " · ",
      h("a", { href: agentPath(submission, submission.env_id) }, "all versions"),
    ),
    h(
      "div",
      { class: "columns side-first" },
      h(
        "div",
        { class: "stack" },
        status,
        parts.practice,
        parts.returns,
        parts.metrics,
        replays,
        lists?.cards.node,
        lists?.matches.node,
      ),
      h("div", { class: "stack" }, parts.score, parts.final, parts.hidden, parts.challenge, parts.owner),
    ),
  );
  return { title: `${submission.algorithm} v${submission.version}`, node };
}

async function others(submission, signal) {
  const { entries } = await get("/v1/boards", { env_id: submission.env_id, limit: 100 }, signal);
  return entries;
}
