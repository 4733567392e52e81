// Login with an API key. The key is sent once, and the server sets a cookie that scripts cannot read.

import { get, post, session } from "./api.js";
import { h, put } from "./dom.js";
import { hooksCard } from "./hooks.js";
import { teamsCard } from "./teams.js";
import { action, codeBlock, facts, problem, section, time } from "./parts.js";

export async function render({ go, signal }) {
  const state = await session(true);
  if (!state.me) return { title: "Log in", node: form(state, go) };
  const [me, { keys }] = await Promise.all([get("/v1/me", {}, signal), get("/v1/keys", {}, signal)]);
  return { title: "Account", node: account(me, keys, go, signal) };
}

function form(state, go) {
  const errors = h("div");
  const token = h(
    "input",
    {
      id: "token",
      name: "token",
      type: "password",
      required: true,
      autocomplete: "current-password",
      spellcheck: "false",
      placeholder: "hrn_\u2026",
    },
  );
  async function submit(event) {
    event.preventDefault();
    put(errors);
    try {
      await post("/v1/login", { token: token.value.trim() });
      token.value = "";
      await session(true);
      await go("/login", { replace: true });
    } catch (error) {
      put(errors, problem(error));
      token.focus();
    }
  }
  return h(
    "div",
    { class: "page narrow-page" },
    h("h1", null, "Log in"),
    h(
      "form",
      { class: "card form", onsubmit: submit },
      h(
        "p",
        { class: "quiet" },
        "Paste the API key that the host gave you. ",
        state.anonymous_read ? "You can view boards and matches without a key." : "You need a key to view this arena.",
      ),
      h("div", { class: "field" }, h("label", { for: "token" }, "API key"), token),
      errors,
      h("p", null, h("button", { type: "submit", class: "primary" }, "Log in")),
    ),
  );
}

function account(me, keys, go, signal) {
  const logout = action("Log out", async () => {
    await post("/v1/logout");
    await session(true);
    await go("/login", { replace: true });
  });
  return h(
    "div",
    { class: "page narrow-page" },
    h("h1", null, me.owner),
    h(
      "section",
      { class: "card" },
      h("h2", null, "Account"),
      facts([
        ["Permissions", me.scopes.join(", ")],
        ["Submissions today", `${me.quota.used_today} of ${me.quota.per_day ?? "unlimited"}`],
        ["Active submissions", `${me.quota.active} of ${me.quota.at_once ?? "unlimited"}`],
      ]),
      h("p", { class: "row" }, h("a", { href: "/submit", class: "button" }, "Submit an agent"), h("a", { href: "/mine", class: "button" }, "My submissions"), logout),
    ),
    teamsCard(me, signal),
    hooksCard(signal),
    section(
      "Your keys",
      { class: "card" },
      h(
        "ul",
        { class: "plain keys" },
        keys.filter((key) => key.owner === me.owner && !key.revoked_at).map((key) => keyItem(key)),
      ),
    ),
  );
}

function keyItem(key) {
  const place = h("div");
  const rotate = action("Rotate", async () => {
    const { token } = await post(`/v1/keys/${encodeURIComponent(key.id)}/rotate`);
    put(
      place,
      h("p", null, "This is your new key. It is shown only once. The old key no longer works."),
      codeBlock(token, "New key"),
    );
  }, { confirm: "Replace this key by a new one? Programs that use the old key will stop working." });
  return h(
    "li",
    null,
    h("strong", null, key.label || key.id),
    h("span", { class: "quiet" }, ` ${key.scopes.join(", ")}, created `, time(key.created_at)),
    h("div", { class: "row" }, rotate),
    place,
  );
}
