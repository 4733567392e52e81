// Parts shared by several pages: errors, links, marks, tables, copy buttons, confirmation dialogs.

import { ApiError, address } from "./api.js";
import { announce, h, put } from "./dom.js";
import { ago, count, dateText, num } from "./format.js";

export function problem(error) {
  if (!(error instanceof ApiError)) console.error(error);
  const known = error instanceof ApiError;
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("p", null, known ? error.message : "This part of the page could not be displayed because of an error in the page."),
    known && error.hint ? h("p", { class: "quiet" }, error.hint) : null,
    known && error.requestId ? h("p", { class: "quiet small" }, `Request ${error.requestId}`) : null,
  );
}

// A button that is disabled while its action runs and shows errors beside it.
export function action(label, run, { kind = "", confirm = "" } = {}) {
  const place = h("span", { class: "action-problem" });
  const button = h("button", { type: "button", class: kind }, label);
  button.addEventListener("click", async () => {
    if (confirm && !(await sure(confirm, label))) return;
    button.disabled = true;
    put(place);
    try {
      await run(button);
    } catch (error) {
      put(place, problem(error));
    } finally {
      button.disabled = false;
    }
  });
  return h("span", { class: "action" }, button, place);
}

function sure(question, label) {
  return new Promise((resolve) => {
    const yes = h("button", { type: "submit", value: "yes", class: "danger" }, label);
    const no = h("button", { type: "submit", value: "no", autofocus: true }, "Keep it as it is");
    const dialog = h(
      "dialog",
      { "aria-label": label },
      h("form", { method: "dialog" }, h("p", null, question), h("p", { class: "row end" }, no, yes)),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "small-button" }, label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
      announce("Copied");
    } catch {
      button.textContent = "Select and copy"; // the browser does not allow clipboard access here
    }
    setTimeout(() => (button.textContent = label), 2000);
  });
  return button;
}

export function codeBlock(text, label) {
  return h(
    "div",
    { class: "code" },
    copyButton(() => text),
    h("pre", { tabindex: 0, "aria-label": label }, h("code", null, text)),
  );
}

export const mark = (text, kind = "", title = null) => h("span", { class: `mark ${kind}`, title }, text);
export const time = (iso) => (iso ? h("time", { datetime: iso, title: dateText(iso) }, ago(iso)) : "\u2013");
export const empty = (...words) => h("p", { class: "empty" }, ...words);

export function section(title, props, ...children) {
  return h("section", { ...props }, h("h2", null, title), ...children);
}

export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "dl",
    { class: "facts" },
    known.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
  );
}

export const envPath = (envId) => `/env/${envId.split("/").map(encodeURIComponent).join("/")}`;
export const envLink = (envId, title) => h("a", { href: envPath(envId) }, title || envId);
export const titleOf = (env) => env.title || env.env_id;
export const agentPath = (agent, envId) => address(
  "/agent",
  { owner: agent.owner, algorithm: agent.algorithm, env_id: envId },
);
export const agentName = (agent) => `${agent.algorithm} v${agent.version}`;

export function agentLink(agent) {
  const href = `/submission/${encodeURIComponent(agent.submission_id ?? agent.id)}`;
  return h("a", { href, class: "agent" }, agent.algorithm, h("span", { class: "version" }, ` v${agent.version}`));
}

export function wdl(entry) {
  if (!entry.games) return h("span", { class: "quiet" }, "\u2013");
  return h(
    "span",
    { class: "wdl", title: `${entry.wins} won, ${entry.draws} drawn, ${entry.losses} lost` },
    `${entry.wins}/${entry.draws}/${entry.losses}`,
  );
}

export function table(caption, heads, rows, props = {}) {
  const head = h("thead", null, h("tr", null, heads.map((one) => heading(one))));
  const body = h("tbody", null, rows);
  const grid = h("table", null, h("caption", { class: props.shown ? "" : "unseen" }, caption), head, body);
  return h("div", { class: `scroll ${props.class ?? ""}`, tabindex: 0, role: "group", "aria-label": caption }, grid);
}

function heading(one) {
  const { text, class: kind } = typeof one === "string" ? { text: one } : one;
  return h("th", { scope: "col", class: kind }, text);
}

// ---- matches ----

const STATES = { scheduled: "to be played", timeout: "timed out" };
export const stateText = (match) => STATES[match.state] ?? match.state;

export function seatsLine(match) {
  const winner = match.winner;
  return match.seats.flatMap((seat, at) => [
    at ? h("span", { class: "quiet" }, " \u2013 ") : null,
    h(
      "span",
      { class: winner === seat.seat ? "seat-name won" : "seat-name" },
      agentName(seat),
      h("span", { class: "quiet" }, ` ${seat.owner}`),
      winner === seat.seat ? h("span", { class: "unseen" }, " (winner)") : null,
    ),
  ]);
}

export function resultText(match) {
  if (match.state !== "finished") return stateText(match);
  if (match.winner === null) return match.seats.length > 1 ? "draw" : num(match.seats[0]?.score);
  const name = match.seats.find((seat) => seat.seat === match.winner);
  return name ? `${agentName(name)} won` : "decided";
}

function shortResult(match) {
  if (match.state !== "finished") return resultText(match);
  const scores = match.seats.map((seat) => num(seat.score)).join(" : ");
  return match.winner === null && match.seats.length > 1 ? `draw, ${scores}` : scores;
}

export function matchRow(match) {
  const over = match.state !== "scheduled";
  return h(
    "tr",
    null,
    h("td", null, h("a", { href: `/match/${encodeURIComponent(match.id)}`, class: "nowrap" }, `#${match.number}`)),
    h("td", { class: "players" }, seatsLine(match), match.kind === "ladder" ? null : [" ", mark(match.kind)]),
    h("td", { class: "nowrap" }, shortResult(match)),
    h(
      "td",
      { class: "wide nowrap" },
      over ? time(match.finished_at) : h("a", { href: `/match/${encodeURIComponent(match.id)}` }, "watch"),
    ),
  );
}

export const MATCH_HEADS = ["Match", "Agents", "Result", { text: "When", class: "wide" }];

export const pager = (total, limit, offset, href) => {
  if (total <= limit) return null;
  const link = (text, at, on) =>
    on ? h(
      "a",
      { href: href(at), class: "button", "data-keep": true },
      text,
    ) : h("span", { class: "button off", "aria-disabled": "true" }, text);
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    link("Previous", Math.max(0, offset - limit), offset > 0),
    h(
      "span",
      { class: "quiet" },
      `${offset + 1}\u2013${Math.min(total, offset + limit)} of ${count(total, "entry", "entries")}`,
    ),
    link("Next", offset + limit, offset + limit < total),
  );
};
