// The queue: waiting, running and dead jobs. Dead jobs can be revived.

import { get, post } from "./api.js";
import { h, put, redraw, throttled } from "./dom.js";
import { watch } from "./live.js";
import { action, empty, problem, section, table, time } from "./parts.js";

export async function panel({ signal }) {
  const node = h("div", { class: "stack" });
  const read = throttled(async () => {
    try {
      const queue = await get("/v1/admin/queue", {}, signal);
      redraw(node, queue, () => drawn(queue, read));
    } catch (error) {
      if (error.name !== "AbortError") put(node, problem(error));
    }
  }, 500);
  await read();
  watch(["queue"], () => void read(), signal);
  return node;
}

function drawn(queue, read) {
  return [
    section("Now", { class: "card" }, numbers(queue.counts), cancelAll(read)),
    section(
      "Running",
      { class: "card" },
      queue.running.length ? jobs("Running jobs", queue.running, read) : empty("No jobs are running."),
    ),
    section(
      "Dead",
      { class: "card" },
      queue.dead.length ? jobs("Dead jobs", queue.dead, read) : empty("No jobs have failed permanently."),
    ),
  ];
}

// One click for a broken environment, or for somebody who floods the queue.
function cancelAll(read) {
  const env = h("input", { id: "cancel-env", type: "text", maxlength: 200, autocomplete: "off" });
  const owner = h("input", { id: "cancel-owner", type: "text", maxlength: 200, autocomplete: "off" });
  const told = h("p", { class: "quiet small", role: "status" });
  return h(
    "details",
    null,
    h("summary", null, "Cancel many submissions"),
    h("p", { class: "quiet small" }, "Cancels what waits or runs. Empty fields mean all."),
    h(
      "div",
      { class: "split" },
      h("div", { class: "field" }, h("label", { for: "cancel-env" }, "Environment"), env),
      h("div", { class: "field" }, h("label", { for: "cancel-owner" }, "Owner"), owner),
    ),
    action("Cancel submissions", async () => {
      const body = Object.fromEntries(
        [["env_id", env.value.trim()], ["owner", owner.value.trim()]].filter(([, value]) => value),
      );
      const { cancelled } = await post("/v1/admin/cancel", body);
      told.textContent = `${cancelled} cancelled.`;
      await read();
    }, { kind: "danger", confirm: "Cancel all these submissions? Their owners have to submit them again." }),
    told,
  );
}

function numbers(counts) {
  const rows = Object.entries(counts).map(([kind, states]) =>
    h(
      "tr",
      null,
      h("th", { scope: "row" }, kind),
      ["queued", "running", "dead"].map((state) => h("td", { class: "number" }, states[state] ?? 0)),
    ),
  );
  const heads = ["Jobs", ...["Waiting", "Running", "Dead"].map((text) => ({ text, class: "number" }))];
  return rows.length ? table("Jobs by kind", heads, rows) : empty("The queue is empty.");
}

function jobs(caption, all, read) {
  const rows = all.map((job) => {
    const change = (what, label) =>
      action(label, async () => {
        await post(`/v1/admin/jobs/${encodeURIComponent(job.id)}/${what}`);
        await read();
      }, { kind: "small-button" });
    return h(
      "tr",
      null,
      h("td", null, `#${job.id} ${job.kind}`, h("span", { class: "owner" }, subject(job.payload))),
      h("td", { class: "number" }, `${job.attempts} of ${job.max_attempts}`),
      h("td", { class: "wide" }, job.reason || time(job.started_at ?? job.created_at)),
      h("td", null, job.state === "dead" ? change("revive", "Revive") : change("cancel", "Cancel")),
    );
  });
  return table(caption, ["Job", { text: "Attempts", class: "number" }, { text: "Details", class: "wide" }, ""], rows);
}

function subject(payload) {
  if (payload.submission_id) return h(
    "a",
    { href: `/submission/${encodeURIComponent(payload.submission_id)}` },
    "submission",
  );
  if (payload.match_id) return h("a", { href: `/match/${encodeURIComponent(payload.match_id)}` }, "match");
  return "";
}
