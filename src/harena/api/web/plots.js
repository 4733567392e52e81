// SVG plots: intervals, sparklines, strips of returns, ratings with their uncertainty. Each has a text label. Wide plots
// are drawn at their actual width, so that their text stays readable on a phone.

import { h, put, s } from "./dom.js";
import { num, percent, range } from "./format.js";

const finite = (values) => values.filter((value) => typeof value === "number" && Number.isFinite(value));

export function extent(values) {
  const known = finite(values);
  if (!known.length) return [0, 1];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

const scale = ([low, high], from, to) => (value) => from + ((value - low) / (high - low)) * (to - from);

// ---- in tables ----

export function spark(points) {
  const known = finite(points ?? []);
  if (known.length < 2) return h("span", { class: "quiet" }, "");
  const y = scale(extent(known), 20, 4);
  const x = scale([0, known.length - 1], 3, 77);
  const line = known.map((value, at) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const last = known.length - 1;
  return s(
    "svg",
    {
      class: "spark",
      viewBox: "0 0 80 24",
      width: 80,
      height: 24,
      role: "img",
      "aria-label": `score over time, from ${num(known[0])} to ${num(known[last])}`,
    },
    s("polyline", { points: line }),
    s("circle", { cx: x(last), cy: y(known[last]), r: 2.4 }),
  );
}

// Score and interval on the scale that all rows share.
export function interval(entry, span) {
  const x = scale(span, 6, 144);
  const low = entry.low ?? entry.score;
  const high = entry.high ?? entry.score;
  if (typeof entry.score !== "number") return h("span", null, "");
  return s(
    "svg",
    {
      class: "interval",
      viewBox: "0 0 150 20",
      width: 150,
      height: 20,
      role: "img",
      "aria-label": `from ${range(low, high)}`,
    },
    s("line", { class: "rail", x1: 2, x2: 148, y1: 10, y2: 10 }),
    s("line", { class: "bar", x1: x(low), x2: x(high), y1: 10, y2: 10 }),
    s("circle", { cx: x(entry.score), cy: 10, r: 4 }),
  );
}

export function shares({ wins, draws, losses }) {
  const all = wins + draws + losses;
  if (!all) return h("span", { class: "quiet" }, "\u2013");
  const width = (part) => (part / all) * 120;
  return s(
    "svg",
    {
      class: "shares",
      viewBox: "0 0 120 14",
      width: 120,
      height: 14,
      role: "img",
      "aria-label": `${percent(wins / all)} won, ${percent(draws / all)} drawn, ${percent(losses / all)} lost`,
    },
    s("rect", { class: "won", x: 0, width: width(wins), height: 14 }),
    s("rect", { class: "drawn", x: width(wins), width: width(draws), height: 14 }),
    s("rect", { class: "lost", x: width(wins) + width(draws), width: width(losses), height: 14 }),
  );
}

// ---- figures ----

function ticks([low, high], about = 5) {
  const raw = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw);
  const found = [];
  const tiny = step * 1e-6; // sums of steps miss zero and the end by a hair
  for (let at = Math.ceil(low / step) * step; at <= high + tiny; at += step) found.push(Math.abs(at) < tiny ? 0 : at);
  return found;
}

const tickText = (value) => num(value, Number.isInteger(value) ? 0 : Math.abs(value) >= 10 ? 1 : 2);

// Draws again when the width changes; `draw(width)` returns the svg.
function fitted(label, height, draw) {
  const holder = h("div", { class: "plot", "data-height": height });
  let drawn = 0;
  const fit = () => {
    const width = Math.round(holder.clientWidth);
    if (!width || width === drawn) return;
    drawn = width;
    put(
      holder,
      s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, draw(width)),
    );
  };
  new ResizeObserver(fit).observe(holder);
  return holder;
}

// Every episode a dot; mean with its interval below.
export function strip(evaluation, { score, low, high }) {
  const returns = finite(evaluation.returns ?? []);
  if (!returns.length) return null;
  const [from, to] = extent([...returns, low, high]);
  const pad = (to - from) * 0.04;
  const span = [from - pad, to + pad];
  const ends = range(Math.min(...returns), Math.max(...returns));
  const label = `Returns of ${returns.length} episodes, from ${ends}, mean ${num(score)}`;
  return fitted(label, 128, (width) => {
    const x = scale(span, 12, width - 12);
    const seen = new Map();
    const dots = returns.map((value) => {
      const cell = Math.round(x(value) / 7);
      const row = seen.get(cell) ?? 0;
      seen.set(cell, row + 1);
      const offset = (row % 2 ? 1 : -1) * Math.ceil(row / 2) * 7;
      return s(
        "circle",
        { class: "dot", cx: x(value), cy: 44 + Math.max(-38, Math.min(38, offset)), r: 3.6 },
        s("title", null, num(value)),
      );
    });
    const below = typeof low === "number" && typeof high === "number" ? s(
      "line",
      { class: "bar", x1: x(low), x2: x(high), y1: 94, y2: 94 },
    ) : null;
    const axis = ticks(span, width < 480 ? 4 : 7).map((value) => [
      s("line", { class: "grid", x1: x(value), x2: x(value), y1: 4, y2: 104 }),
      s("text", { x: x(value), y: 121, "text-anchor": "middle" }, tickText(value)),
    ]);
    return [axis, dots, below ?? [], s("circle", { class: "mean", cx: x(score), cy: 94, r: 5 })];
  });
}

// Running rating after each match, with a band of two standard deviations, and the board's score as a line. The two are
// different estimates: pairing uses the first, the board is one fit over all games.
export function ratings(points, score) {
  const known = points.filter((point) => Number.isFinite(point.rating));
  if (known.length < 2) return null;
  const sigma = (point) => (Number.isFinite(point.sigma) ? 2 * point.sigma : 0);
  const placed = Number.isFinite(score);
  const ends = known.flatMap((point) => [point.rating - sigma(point), point.rating + sigma(point)]);
  const span = extent(placed ? [...ends, score] : ends);
  const last = known[known.length - 1];
  const now = `now ${num(last.rating)} plus or minus ${num(sigma(last))}`;
  const label = `Running rating over ${known.length} matches, ${now}${placed ? `; the board's score is ${num(score)}` : ""}`;
  return fitted(label, 220, (width) => {
    const x = scale([0, known.length - 1], 44, width - 12);
    const y = scale(span, 190, 12);
    const upper = known.map((point, at) => `${x(at).toFixed(1)},${y(point.rating + sigma(point)).toFixed(1)}`);
    const lower = known.map(
      (point, at) => `${x(at).toFixed(1)},${y(point.rating - sigma(point)).toFixed(1)}`,
    ).reverse();
    const line = known.map((point, at) => `${x(at).toFixed(1)},${y(point.rating).toFixed(1)}`).join(" ");
    return [
      ticks(span).map((value) => [
        s("line", { class: "grid", x1: 44, x2: width - 12, y1: y(value), y2: y(value) }),
        s("text", { x: 38, y: y(value) + 4, "text-anchor": "end" }, tickText(value)),
      ]),
      ticks([1, known.length], width < 480 ? 4 : 8).filter(Number.isInteger).map((value) =>
        s("text", { x: x(value - 1), y: 210, "text-anchor": "middle" }, String(value)),
      ),
      s("polygon", { class: "band", points: [...upper, ...lower].join(" ") }),
      s("polyline", { class: "line", points: line }),
      placed ? [
        s("line", { class: "board-score", x1: 44, x2: width - 12, y1: y(score), y2: y(score) }),
        s("text", { class: "board-score", x: 48, y: y(score) - 5 }, `board score ${num(score)}`),
      ] : [],
      s("circle", { class: "mean", cx: x(known.length - 1), cy: y(last.rating), r: 4 }),
    ];
  });
}

// The score of each version with its interval, oldest first.
export function versions(all) {
  const known = all.filter((one) => Number.isFinite(one.score)).sort((one, two) => one.version - two.version);
  if (known.length < 2) return null;
  const span = extent(known.flatMap((one) => [one.score, one.low, one.high]));
  const label = `Score of ${known.length} versions, from ${range(known[0].score, known.at(-1).score)}`;
  return fitted(label, 180, (width) => {
    const x = scale([0, known.length - 1], 64, width - 30);
    const y = scale(span, 150, 12);
    const every = Math.ceil(known.length / Math.max(2, Math.floor(width / 44)));
    return [
      ticks(span, 4).map((value) => [
        s("line", { class: "grid", x1: 44, x2: width - 12, y1: y(value), y2: y(value) }),
        s("text", { x: 38, y: y(value) + 4, "text-anchor": "end" }, tickText(value)),
      ]),
      s("polyline", { class: "line thin", points: known.map((one, at) => `${x(at)},${y(one.score)}`).join(" ") }),
      known.map((one, at) => [
        Number.isFinite(one.low) && Number.isFinite(one.high) ? s(
          "line",
          { class: "bar", x1: x(at), x2: x(at), y1: y(one.low), y2: y(one.high) },
        ) : [],
        s("circle", { class: "mean", cx: x(at), cy: y(one.score), r: 4 }),
        at % every ? [] : s("text", { x: x(at), y: 172, "text-anchor": "middle" }, `v${one.version}`),
      ]),
    ];
  });
}
