// Owners and their quotas.

import { call, get } from "./api.js";
import { h } from "./dom.js";
import { formOf } from "./fields.js";
import { empty, section, table } from "./parts.js";

export async function panel({ signal, again }) {
  const { owners } = await get("/v1/admin/owners", {}, signal);
  const limit = (value) => value ?? h("span", { class: "quiet" }, "default");
  const rows = owners.map((one) =>
    h(
      "tr",
      null,
      h("th", { scope: "row" }, one.owner),
      h("td", { class: "number" }, limit(one.per_day)),
      h("td", { class: "number" }, limit(one.at_once)),
      h("td", { class: "number wide" }, one.submissions),
      h("td", { class: "number wide" }, one.keys),
    ),
  );
  const heads = [
    "Owner",
    ...["Per day", "At once"].map((text) => ({ text, class: "number" })),
    ...["Submissions", "Keys"].map((text) => ({ text, class: "number wide" })),
  ];
  const fields = [
    { name: "owner", label: "Owner", required: true },
    { name: "per_day", label: "Submissions per day", kind: "number", help: "Leave empty for the arena's default." },
    { name: "at_once", label: "Submissions at once", kind: "number", help: "Leave empty for the arena's default." },
  ];
  return h(
    "div",
    { class: "stack" },
    section(
      "Owners",
      { class: "card" },
      rows.length ? table("Owners", heads, rows) : empty("No owners yet: nobody has submitted or has a key."),
    ),
    section("Set a quota", { class: "card" }, formOf(fields, "Save", async ({
      owner,
      per_day = null,
      at_once = null,
    }) => {
      await call("PUT", "/v1/admin/quotas", { json: { owner, per_day, at_once } });
      await again();
    })),
  );
}
