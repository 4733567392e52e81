// My submissions: all of this visitor and their teams, compared side by side, with the choice of finalists.

import { address, get, post } from "./api.js";
import { announce, h, put } from "./dom.js";
import { count, num, range } from "./format.js";
import { watch } from "./live.js";
import { action, agentLink, empty, envLink, mark, problem, section, table, time } from "./parts.js";
import { sentence } from "./status.js";
import { placed } from "./submission_view.js";

const MOST = 4; // columns that fit beside each other
const FOLLOWED = 40; // topics of one event stream

const path = (one, rest = "") => `/v1/submissions/${encodeURIComponent(one.id)}${rest}`;
const name = (one) => `${one.algorithm} v${one.version}`;

export async function render({ query, signal }) {
  const read = async () => (await get("/v1/submissions", { mine: true, limit: 100 }, signal)).submissions;
  let all = await read();
  const wanted = (query.get("compare") ?? "").split(",").filter(Boolean);
  const chosen = new Set(wanted.filter((id) => all.some((one) => one.id === id)).slice(0, MOST));
  const list = h("div");
  const compared = h("div", { id: "compared" });

  function choose(id, on) {
    if (on) chosen.add(id);
    else chosen.delete(id);
    history.replaceState(null, "", address("/mine", { compare: [...chosen].join(",") }));
    for (const box of list.querySelectorAll("input[type=checkbox]")) {
      box.disabled = chosen.size >= MOST && !chosen.has(box.value);
    }
    void compare();
  }

  function draw() {
    put(list, all.length ? overview(all, chosen, choose, again) : empty(
      "You have not submitted anything from this browser. ",
      h("a", { href: "/submit" }, "Submit an agent"),
      ", or log in to see what you sent with your key.",
    ));
  }

  async function compare() {
    const picked = all.filter((one) => chosen.has(one.id));
    if (picked.length < 2) {
      put(compared, h("p", { class: "quiet" }, `Choose two to ${MOST} submissions to compare them.`));
      return;
    }
    try {
      const practised = await Promise.all(picked.map((one) => get(path(one, "/practice"), {}, signal)));
      put(compared, sideBySide(picked, practised));
      announce(`${picked.length} submissions compared`);
    } catch (error) {
      if (error.name !== "AbortError") put(compared, problem(error));
    }
  }

  async function again() {
    all = await read();
    draw();
    await compare();
  }

  draw();
  await compare();
  const active = all.filter((one) => one.state === "queued" || one.state === "running").slice(0, FOLLOWED);
  if (active.length) watch(active.map((one) => `submission:${one.id}`), () => void again(), signal);
  const node = h(
    "div",
    { class: "page" },
    h("h1", null, "My submissions"),
    section("Submissions", { class: "card" }, list),
    section("Side by side", { class: "card" }, compared),
  );
  return { title: "My submissions", node };
}

function overview(all, chosen, choose, again) {
  const heads = ["Compare", "Agent", "Environment", { text: "Score", class: "number" }, "State", "Finals", { text: "Id", class: "wide" }];
  const rows = all.map((one) => {
    const box = h("input", {
      type: "checkbox",
      value: one.id,
      checked: chosen.has(one.id),
      disabled: chosen.size >= MOST && !chosen.has(one.id),
      "aria-label": `Compare ${name(one)}`,
      onchange: (event) => choose(one.id, event.target.checked),
    });
    return h(
      "tr",
      null,
      h("td", null, box),
      h("td", { class: "who" }, agentLink(one), h("span", { class: "owner" }, one.owner)),
      h("td", null, envLink(one.env_id)),
      h("td", { class: "number" }, num(placed(one).score)),
      h("td", null, sentence(one), " ", h("span", { class: "quiet small" }, time(one.created_at))),
      h("td", null, finalist(one, again)),
      h("td", { class: "wide" }, h("code", { title: one.id }, one.id.slice(0, 8))),
    );
  });
  return [h("p", { class: "quiet small" }, count(all.length, "submission")), table("My submissions", heads, rows)];
}

function finalist(one, again) {
  if (one.kind !== "verified" || typeof one.score !== "number" || one.standing?.board === "ladder" || one.final_result) {
    return h("span", { class: "quiet" }, "\u2013");
  }
  const choose = async (chosen) => {
    await post(path(one, "/finalist"), { chosen });
    await again();
  };
  return one.finalist
    ? h("span", { class: "row" }, mark("final", "good"), action("Withdraw", () => choose(false), { kind: "small-button" }))
    : action("Choose", () => choose(true), { kind: "small-button" });
}

function sideBySide(picked, practised) {
  const fields = [
    ["Environment", (one) => envLink(one.env_id)],
    ["State", (one) => sentence(one)],
    ["Score", (one) => num(placed(one).score)],
    ["95 % interval", (one) => range(placed(one).low, placed(one).high) || "\u2013"],
    ["Rank", (one) => one.standing?.rank ?? "\u2013"],
    ["Won, drawn, lost", ({ standing }) => (standing?.games ? `${standing.wins}, ${standing.draws}, ${standing.losses}` : "\u2013")],
    ["Practice score", (one, at) => num(practised[at].score)],
    ["Practice episodes that failed", (one, at) => practised[at].episodes.filter((episode) => episode.fault).length],
    ["Main file", (one) => one.main_file || "\u2013"],
    ["Same code", (one) => (picked.filter((other) => other.digest === one.digest).length > 1 ? "yes" : "no")],
    ["Sent", (one) => time(one.created_at)],
  ];
  const rows = fields.map(([label, value]) => h(
    "tr",
    null,
    h("th", { scope: "row" }, label),
    picked.map((one, at) => h("td", null, value(one, at))),
  ));
  return table("Comparison", ["What", ...picked.map((one) => ({ text: name(one) }))], rows, { class: "compare" });
}
