// Teams of the visitor: found one, invite people, accept or decline, leave.

import { call, get, post } from "./api.js";
import { h, put } from "./dom.js";
import { formOf } from "./fields.js";
import { action, mark, problem, section } from "./parts.js";

const SMALL = { kind: "small-button" };
const path = (team, rest) => `/v1/teams/${team.split("/").map(encodeURIComponent).join("/")}/${rest}`;

export function teamsCard(me, signal) {
  const list = h("div", { class: "stack" });
  const read = async () => {
    try {
      const { teams } = await get("/v1/teams", {}, signal);
      put(list, teams.map((team) => item(team, me, read)));
    } catch (error) {
      if (error.name !== "AbortError") put(list, problem(error));
    }
  };
  void read();
  const found = formOf([{ name: "name", label: "Name of a new team", required: true }], "Found a team", async ({ name }, form) => {
    await post("/v1/teams", { name: name.trim() });
    form.reset();
    await read();
  });
  return section(
    "Teams",
    { class: "card" },
    h("p", { class: "quiet small" }, "Members share the team's quota, its finalists and its rows on the boards."),
    list,
    found,
  );
}

function item(team, me, read) {
  const own = team.members.find((one) => one.owner === me.owner);
  const after = (run) => async () => {
    await run();
    await read();
  };
  const people = team.members.map((one) => h(
    "li",
    { class: "row" },
    one.owner,
    one.captain ? mark("captain", "good") : null,
    one.joined ? null : mark("invited", "soft"),
    own?.captain && one.owner !== me.owner
      ? action("Remove", after(() => post(path(team.name, "leave"), { owner: one.owner })), SMALL)
      : null,
  ));
  const invite = own?.captain ? formOf(
    [{ name: "owner", label: "Invite somebody who has a key", required: true }],
    "Invite",
    async ({ owner }) => {
      await post(path(team.name, "invite"), { owner: owner.trim() });
      await read();
    },
  ) : null;
  return h(
    "div",
    { class: "item" },
    h("h3", null, team.name),
    h("ul", { class: "plain" }, people),
    h(
      "p",
      { class: "row" },
      own?.joined ? null : action("Join", after(() => call("POST", path(team.name, "join"))), SMALL),
      action(own?.joined ? "Leave" : "Decline", after(() => call("POST", path(team.name, "leave"))), SMALL),
    ),
    invite,
  );
}
