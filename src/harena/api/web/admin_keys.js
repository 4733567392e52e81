// API keys: create, rotate, revoke. The token of a key is shown once, when it is created.

import { call, get, post } from "./api.js";
import { h, put } from "./dom.js";
import { formOf } from "./fields.js";
import { dateText } from "./format.js";
import { action, codeBlock, empty, mark, section, table, time } from "./parts.js";

const SCOPES = [
  ["read,submit", "Read and submit"],
  ["read", "Read only"],
  ["read,submit,host", "Host: also seasons, queue and bench"],
  ["admin", "Admin: everything, including keys"],
];
const DAYS = [
  ["", "Never"],
  ["7", "In a week"],
  ["30", "In 30 days"],
  ["365", "In a year"],
];

export async function panel({ signal }) {
  const list = h("div");
  const shown = h("div", { "aria-live": "polite" });

  function once({ key, token }) {
    put(
      shown,
      h(
        "div",
        { class: "once" },
        h(
          "p",
          null,
          h("strong", null, `New key of ${key.owner}. `),
          "Copy it now. It is not stored and cannot be shown again.",
        ),
        codeBlock(token, "The new key"),
      ),
    );
  }

  async function read() {
    const { keys } = await get("/v1/keys", {}, signal);
    put(list, keys.length ? keyTable(keys, once, read) : empty("No keys yet."));
  }

  await read();
  const fields = [
    { name: "owner", label: "Owner", required: true },
    { name: "label", label: "Label" },
    { name: "scopes", label: "Permissions", kind: "choice", value: "read,submit", options: SCOPES },
    { name: "days", label: "Expires", kind: "choice", value: "", options: DAYS },
  ];
  const maker = formOf(fields, "Create a key", async ({ owner, label, scopes, days }, form) => {
    once(await post(
      "/v1/keys",
      { owner, label, scopes: scopes.split(","), ...(days ? { expires_in_s: Number(days) * 86400 } : {}) },
    ));
    form.reset();
    await read();
  });
  return h(
    "div",
    { class: "stack" },
    section("Create a key", { class: "card" }, maker, shown),
    section("Keys", { class: "card" }, list),
  );
}

function over(key) {
  if (key.revoked_at) return mark("revoked", "bad");
  return key.expires_at && Date.parse(key.expires_at) <= Date.now() ? mark("expired") : null;
}

function keyTable(keys, once, read) {
  const path = (key) => `/v1/keys/${encodeURIComponent(key.id)}`;
  const rows = keys.map((key) =>
    h(
      "tr",
      null,
      h("th", { scope: "row" }, key.owner, h("span", { class: "owner" }, key.label)),
      h("td", null, key.scopes.join(", ")),
      h(
        "td",
        { class: "wide nowrap" },
        time(key.created_at),
        key.expires_at ? h("span", { class: "owner" }, `until ${dateText(key.expires_at)}`) : null,
      ),
      h(
        "td",
        null,
        over(key) ??
          h(
              "span",
              { class: "row" },
              action("Rotate", async () => {
                once(await post(`${path(key)}/rotate`));
                await read();
              }, { kind: "small-button", confirm: `Create a new key for ${key.owner}? The old key will stop working.` }),
              action("Revoke", async () => {
                await call("DELETE", path(key));
                await read();
              }, { kind: "small-button danger", confirm: `Revoke this key of ${key.owner}? It will stop working.` }),
            ),
      ),
    ),
  );
  return table("Keys", ["Owner", "Permissions", { text: "Created", class: "wide" }, ""], rows);
}
