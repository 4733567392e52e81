// A board as a table that is updated row by row. Unchanged rows are not redrawn.

import { h, reconcile } from "./dom.js";
import { digitsFor, num, range } from "./format.js";
import { agentLink, mark, table, time, wdl } from "./parts.js";
import { extent, interval, spark } from "./plots.js";

const MARKS = [
  ["anonymous", "no key", "Sent without a key, so the name is not verified"],
  ["provisional", "provisional", "Few games so far: the score may still change a lot"],
  ["benched", "benched", "Not matched until a host lets it play again"],
];

export function board(caption, { ladder = false, compact = false, unverified = false } = {}) {
  const heads = [
    { text: "Rank", class: "number" },
    "Agent",
    { text: unverified && !compact ? "Score, as reported" : "Score", class: "number" },
    ...(compact || unverified ? [] : [{ text: "95 % interval", class: "wide" }]),
    ...(ladder ? [{ text: "Trend", class: compact ? "" : "wide" }] : []),
    ...(ladder && !compact ? [{ text: "Won/drawn/lost", class: "number wide" }] : []),
    ...(compact ? [] : [{ text: "When", class: "wider" }]),
  ];
  const node = table(caption, heads, [], { class: `board ${unverified ? "unverified" : ""}` });
  const body = node.querySelector("tbody");

  function update(entries) {
    const span = extent(entries.flatMap((entry) => [entry.score, entry.low, entry.high]));
    const digits = digitsFor(entries.map((entry) => entry.score));
    reconcile(
      body,
      entries,
      (entry) => entry.submission_id,
      (entry) => row(entry, span, digits),
      { context: [span, digits], notable: (before, entry) => before?.rank !== entry.rank },
    );
  }

  function row(entry, span, digits) {
    return h(
      "tr",
      { "data-id": entry.submission_id },
      h("td", { class: "number rank" }, entry.rank),
      h(
        "td",
        { class: "who" },
        agentLink(entry),
        h("span", { class: "owner", title: entry.owner }, entry.owner),
        marks(entry, compact),
      ),
      h(
        "td",
        { class: "number score" },
        num(entry.score, digits),
        compact ? null : tries(entry, digits),
        compact || unverified ? null : h("span", { class: "narrow small quiet" }, range(entry.low, entry.high, digits)),
      ),
      compact || unverified ? null : h("td", { class: "wide" }, interval(entry, span)),
      ladder ? h("td", { class: compact ? "" : "wide" }, spark(entry.spark)) : null,
      ladder && !compact ? h("td", { class: "number wide" }, wdl(entry)) : null,
      compact ? null : h("td", { class: "wider nowrap quiet" }, time(entry.at)),
    );
  }

  return { node, update };
}

// The best of many tries is partly luck, so the number of tries is shown beside the score.
function tries(entry, digits) {
  if (entry.final) {
    const before = typeof entry.public_score === "number" ? `, public ${num(entry.public_score, digits)}` : "";
    return h("span", { class: "tries small quiet", title: "The finals decide the rank" }, `final${before}`);
  }
  if (!(entry.tries > 1)) return null;
  const likely = typeof entry.discounted === "number" ? `, about ${num(entry.discounted, digits)} adjusted for luck` : "";
  const title = "The adjusted score subtracts the luck that the best of this many equally good programs would have";
  return h("span", { class: "tries small quiet", title }, `best of ${entry.tries}${likely}`);
}

function marks(entry, compact) {
  return MARKS.filter(
    ([field]) => entry[field] && !(compact && field === "anonymous"),
  ).map(([field, text, why]) => mark(text, field, why));
}
