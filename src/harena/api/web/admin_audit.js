// The audit log: what hosts have changed, newest first.

import { get } from "./api.js";
import { h } from "./dom.js";
import { empty, section, table, time } from "./parts.js";

export async function panel({ signal }) {
  const { entries } = await get("/v1/admin/audit", { limit: 200 }, signal);
  const rows = entries.map((entry) =>
    h(
      "tr",
      null,
      h("td", { class: "nowrap" }, time(entry.at)),
      h("td", null, entry.who),
      h("td", null, entry.what, entry.body ? h("code", { class: "small audit-body" }, entry.body) : null),
      h("td", { class: "number" }, entry.status ?? "\u2013"),
    ),
  );
  const heads = ["When", "Who", "What", { text: "Status", class: "number" }];
  return section(
    "Audit log",
    { class: "card" },
    rows.length ? table("Audit log", heads, rows) : empty("Nothing has been changed yet."),
  );
}
