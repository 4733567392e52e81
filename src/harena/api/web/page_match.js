// One match: the seats, the result, and the game itself, live while it is played and as a replay afterwards.

import { address, download, get } from "./api.js";
import { h, put, redraw, throttled } from "./dom.js";
import { duration, num } from "./format.js";
import { watch } from "./live.js";
import { action, agentLink, copyButton, envLink, facts, mark, problem, resultText, section, stateText, table, time } from "./parts.js";
import { showLive, showReplay } from "./viewer_frame.js";

const over = (match) => match.state !== "scheduled"; // a scheduled match is waiting or being played

export async function render({ params: [id], query, signal }) {
  const path = `/v1/matches/${encodeURIComponent(id)}`;
  let match = await get(path, {}, signal);
  const result = h("p", { class: "status-line", role: "status" });
  const stage = h("div", { class: "viewer" });
  const side = h("div", { class: "stack" });
  let view = null;
  let playing = false; // the API knows only that a match is not over: frames say that it is being played

  function draw() {
    const text = words(match, playing);
    if (result.textContent !== text) result.textContent = text;
    redraw(side, match, () => [seats(match, path), about(match), downloads(match, path)]);
  }

  const read = throttled(async () => {
    try {
      match = await get(path, {}, signal);
      draw();
      if (over(match) && stage.dataset.shows !== "replay") view = showReplay(stage, match);
    } catch (error) {
      if (error.name !== "AbortError") put(stage, problem(error));
    }
  });

  draw();
  const step = /^\d{1,9}$/.test(query.get("step") ?? "") ? Number(query.get("step")) : null;
  if (over(match)) view = showReplay(stage, match, { step });
  else {
    const started = () => {
      playing = true;
      draw();
    };
    view = showLive(stage, match, { started, over: read }, signal);
    watch([`match:${match.id}`], () => void read(), signal);
  }
  const neighbours = await around(match, signal);
  const node = h(
    "div",
    { class: "page" },
    h("h1", null, `Match ${match.number}`),
    h(
      "p",
      { class: "quiet" },
      envLink(match.env_id),
      " · ",
      match.rated ? "rated" : "unrated",
      " ",
      match.kind,
      match.tournament_id ? [
        " · ",
        h("a", { href: `/tournament/${encodeURIComponent(match.tournament_id)}` }, "tournament"),
      ] : null,
    ),
    result,
    h("p", { class: "row wrap" }, neighbours, stepLink(match, () => view), over(match) && match.has_replay ? embedLink(match) : null),
    h("div", { class: "match-columns" }, stage, side),
  );
  return { title: `Match ${match.number}`, node };
}

// The matches of the same environment before and after this one.
async function around(match, signal) {
  const list = (more) => get("/v1/matches", { env_id: match.env_id, limit: 1, ...more }, signal);
  const [before, after] = await Promise.all([list({ before: match.number }), list({ after: match.number })]);
  const link = (text, { matches: [one] }) =>
    one ? h("a", { href: `/match/${encodeURIComponent(one.id)}`, class: "button small-button" }, text) : null;
  return [link("Previous match", before), link("Next match", after)];
}

function stepLink(match, view) {
  const text = () => {
    const step = view()?.contentWindow?.harena?.step() ?? 0;
    return new URL(address(`/match/${encodeURIComponent(match.id)}`, { step }), location.href).href;
  };
  return copyButton(text, "Copy link to this step");
}

// For other sites: the page behind it is the only one that they may show in a frame.
function embedLink(match) {
  const src = new URL(`/embed/match/${encodeURIComponent(match.id)}#play`, location.href).href;
  return copyButton(() => `<iframe src="${src}" title="Match ${match.number}" width="640" height="480"></iframe>`, "Copy embed code");
}

function words(match, playing) {
  if (!over(match)) return playing ? "In progress." : "Waiting to be played.";
  const reason = match.reason ? `: ${match.reason}` : "";
  return `${resultText(match)}${reason}.`.replace(/^./, (first) => first.toUpperCase());
}

function seats(match, path) {
  const rows = match.seats.map((seat, at) =>
    h(
      "tr",
      null,
      h(
        "td",
        { class: "who" },
        h("span", { class: `seat-dot seat${at % 8}` }, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[at] ?? String(at + 1)),
        agentLink(seat),
        h("span", { class: "owner" }, seat.owner),
        match.winner === seat.seat ? mark("winner", "good") : null,
        fault(seat),
        seat.has_log ? action(
          "Log",
          () => download(address(`${path}/log`, { seat: seat.seat }), `match-${match.number}-seat-${seat.seat}.log`),
          { kind: "small-button" },
        ) : null,
      ),
      h("td", { class: "number" }, num(seat.score)),
      h("td", { class: "number" }, typeof seat.cpu_s === "number" ? duration(seat.cpu_s) : "\u2013"),
    ),
  );
  return section(
    "Seats",
    { class: "card" },
    table("Seats", ["Agent", { text: "Score", class: "number" }, { text: "CPU", class: "number" }], rows),
  );
}

function fault(seat) {
  if (!seat.status || seat.status === "ok") return null;
  return h("span", { class: "fault" }, seat.status, seat.reason ? `: ${seat.reason}` : null);
}

function about(match) {
  return section(
    "About",
    { class: "card" },
    facts([
      ["Steps", match.steps],
      ["Played", match.finished_at ? time(match.finished_at) : null],
      ["Duration", typeof match.wall_s === "number" ? duration(match.wall_s) : null],
      ["State", over(match) ? stateText(match) : null],
    ]),
  );
}

function downloads(match, path) {
  if (!match.has_replay) return null;
  const link = (format, text) => h(
    "li",
    null,
    h("a", { href: address(`${path}/replay`, { format }), download: "" }, text),
  );
  return section(
    "Replay",
    { class: "card" },
    h(
      "ul",
      { class: "plain" },
      link("json", "JSON with every frame"),
      link("compact", "Compact format, can be re-run and verified"),
      link("html", "Self-contained HTML page"),
    ),
  );
}
