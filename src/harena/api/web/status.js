// The progress of a submission: its steps, place in the queue, warnings, reason of failure and log.

import { call, get } from "./api.js";
import { h, put, redraw, throttled } from "./dom.js";
import { duration, num } from "./format.js";
import { watch } from "./live.js";
import { problem } from "./parts.js";

const STEPS = ["received", "checked", "queued", "running", "ranked"];
const ENDS = { rejected: "Rejected", failed: "Failed", cancelled: "Cancelled" };
const FINAL = new Set(["ranked", ...Object.keys(ENDS)]);

export function sentence(submission) {
  const { state, position, eta_s: eta, waits_for: cause } = submission;
  if (state === "ranked") return ranked(submission);
  if (state === "running") return "Running.";
  if (state === "queued") {
    const left = typeof eta === "number" ? `, about ${duration(eta)} left` : "";
    const place = position ? `${position} ahead of it` : "next in the queue";
    const why = cause === "another attempt" ? "the platform failed and will try again" : place;
    return `Waiting, ${why}${left}.`;
  }
  if (state === "failed") return "The submission failed.";
  if (state === "rejected") return "The submission was rejected.";
  if (state === "cancelled") return "The submission was cancelled.";
  return state === "checked" ? "Checked." : "Received.";
}

function ranked({ score, standing }) {
  const place = standing?.rank ? `, rank ${standing.rank}` : "";
  if (typeof score === "number") return `Ranked with a score of ${num(score)}${place}.`;
  if (standing) return `On the ladder with a score of ${num(standing.score)}${place}.`;
  return "On the ladder. Its first games will be played soon.";
}

function steps(submission) {
  const ended = ENDS[submission.state];
  const at = STEPS.indexOf(submission.state);
  return h(
    "ol",
    { class: "steps" },
    STEPS.map((name, index) => {
      const last = index === STEPS.length - 1;
      if (last && ended) return h("li", { class: "bad", "aria-current": "step" }, ended);
      const done = at > index || submission.state === "ranked";
      return h(
        "li",
        { class: done ? "done" : at === index ? "now" : "", "aria-current": at === index ? "step" : null },
        name,
      );
    }),
  );
}

// Draws the submission and follows it to its end. `changed(submission)` is called with every new state.
export function follow(submission, changed, signal) {
  const line = h("p", { class: "status-line", role: "status" });
  const place = h("div");
  const log = h("div");
  const node = h("div", { class: "status" }, line, place, log);

  function draw(one) {
    if (line.textContent !== sentence(one)) line.textContent = sentence(one);
    node.dataset.state = one.state;
    const shown = [one.state, one.reason, one.warnings];
    redraw(place, shown, () => [steps(one), reason(one.reason, one.state === "rejected" || (one.state === "failed" && one.mine)), warnings(one.warnings)]);
  }

  const read = throttled(async () => {
    try {
      const now = await get(`/v1/submissions/${encodeURIComponent(submission.id)}`, {}, signal);
      draw(now);
      changed(now);
      if (FINAL.has(now.state)) await showLog(now, log);
    } catch (error) {
      if (error.name !== "AbortError") put(log, problem(error));
    }
  });

  draw(submission);
  if (FINAL.has(submission.state)) void showLog(submission, log);
  watch([`submission:${submission.id}`, `board:${submission.env_id}`, "queue"], ({ topic, kind }) => {
    const mine = topic === `submission:${submission.id}` || kind === "reset";
    if (mine || !FINAL.has(node.dataset.state) || topic.startsWith("board:")) void read();
  }, signal);
  return node;
}

function reason(text, again) {
  if (!text) return null;
  return h(
    "div",
    { class: "reason" },
    h("h3", null, "Reason"),
    h("pre", { tabindex: 0 }, text),
    again ? h("p", null, "Fix this and submit again.") : null,
  );
}

function warnings(all) {
  if (!all?.length) return null;
  const list = h("ul", null, all.map((text) => h("li", null, text)));
  return h("div", { class: "warning" }, h("h3", null, "Warnings"), list);
}

async function showLog(submission, place) {
  if (!submission.mine || !submission.has_log || place.firstChild) return;
  const failed = submission.state !== "ranked";
  const pre = h("pre", { tabindex: 0, "aria-label": "Log" });
  const title = submission.kind === "verified" ? "Practice log" : "Log";
  const details = h("details", { open: failed, class: "log" }, h("summary", null, title), pre);
  put(place, details);
  try {
    pre.textContent = (await call(
      "GET",
      `/v1/submissions/${encodeURIComponent(submission.id)}/log`,
      { text: true },
    )) || "(nothing printed)";
  } catch (error) {
    put(place, problem(error));
  }
}
