// Benched agents with the reason, and actions to bench and unbench.

import { get, post } from "./api.js";
import { h } from "./dom.js";
import { formOf } from "./fields.js";
import { action, agentLink, empty, envLink, section, table, time } from "./parts.js";

export async function panel({ signal, again }) {
  const { benched } = await get("/v1/admin/benched", {}, signal);
  const rows = benched.map((one) =>
    h(
      "tr",
      null,
      h("td", { class: "who" }, agentLink(one), h("span", { class: "owner" }, one.owner, " in ", envLink(one.env_id))),
      h("td", { class: "prose" }, one.reason),
      h("td", { class: "wide nowrap" }, time(one.benched_at)),
      h("td", null, action("Let it play", async () => {
        await post("/v1/admin/unbench", { submission_id: one.submission_id });
        await again();
      }, { kind: "small-button" })),
    ),
  );
  return h(
    "div",
    { class: "stack" },
    section(
      "Benched agents",
      { class: "card" },
      rows.length ? table(
        "Benched agents",
        ["Agent", "Reason", { text: "Since", class: "wide" }, ""],
        rows,
      ) : empty("No agents are benched."),
    ),
    section("Bench an agent", { class: "card" }, formOf([
      { name: "submission_id", label: "Submission id", required: true },
      { name: "reason", label: "Reason", required: true },
    ], "Bench", async (values) => {
      await post("/v1/admin/bench", { ...values, submission_id: values.submission_id.trim() });
      await again();
    })),
  );
}
