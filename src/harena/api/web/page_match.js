// One match: the seats, the result, and the game itself, live while it is played and as a replay afterwards.

import { address, download, get } from "./api.js";
import { h, put, redraw, throttled } from "./dom.js";
import { duration, num } from "./format.js";
import { frames, watch } from "./live.js";
import { action, agentLink, envLink, facts, mark, problem, resultText, section, table, time } from "./parts.js";

const over = (match) => match.state !== "scheduled"; // a scheduled match is waiting or being played

export async function render({ params: [id], signal }) {
  const path = `/v1/matches/${encodeURIComponent(id)}`;
  let match = await get(path, {}, signal);
  const result = h("p", { class: "status-line", role: "status" });
  const stage = h("div", { class: "viewer" });
  const side = h("div", { class: "stack" });

  function draw() {
    if (result.textContent !== words(match)) result.textContent = words(match);
    redraw(side, match, () => [seats(match, path), about(match), downloads(match, path)]);
  }

  const read = throttled(async () => {
    try {
      match = await get(path, {}, signal);
      draw();
      if (over(match) && stage.dataset.shows !== "replay") replay(stage, match, path);
    } catch (error) {
      if (error.name !== "AbortError") put(stage, problem(error));
    }
  });

  draw();
  if (over(match)) replay(stage, match, path);
  else {
    live(stage, match, path, read, signal);
    watch([`match:${match.id}`], () => void read(), signal);
  }
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
    h("div", { class: "match-columns" }, stage, side),
  );
  return { title: `Match ${match.number}`, node };
}

function words(match) {
  if (!over(match)) return "In progress.";
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
      ["State", match.state],
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

// The viewer is a separate page with its own security policy. Its height follows its content.
function frame(stage, src, title) {
  const view = h("iframe", { src, title, class: "stage-frame" });
  view.addEventListener("load", () => {
    const body = view.contentDocument?.body;
    if (!body) return;
    const fit = () => {
      view.style.height = `${Math.ceil(body.getBoundingClientRect().height) + 2}px`;
    };
    new ResizeObserver(fit).observe(body);
    fit();
  });
  put(stage, view);
  return view;
}

function replay(stage, match, path) {
  stage.dataset.shows = "replay";
  if (match.has_replay) frame(stage, address(`${path}/replay`, { format: "html" }), "Replay");
  else put(stage, h("p", { class: "card empty" }, "There is no replay of this match."));
}

// The same viewer, which receives frames as they arrive.
function live(stage, match, path, read, signal) {
  stage.dataset.shows = "live";
  const view = frame(stage, address(`${path}/replay`, { format: "html" }), "Live match");
  const waiting = h("p", { class: "quiet", role: "status" }, "Waiting for the first move.");
  stage.prepend(waiting);
  let stream = new AbortController();
  view.addEventListener("load", () => {
    const viewer = view.contentWindow.harena;
    if (!viewer) return;
    stream.abort();
    stream = new AbortController();
    frames(match.id, {
      frame: (one) => {
        waiting.textContent = "Live";
        viewer.append(one);
      },
      reset: () => view.contentWindow.location.reload(), // too slow for the stream: start again
      finished: () => void read(),
      lost: (gone) => {
        waiting.textContent = "Reconnecting";
        if (gone) void read();
      },
    }, AbortSignal.any([signal, stream.signal]));
  });
}
