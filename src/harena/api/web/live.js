// Server-sent events: one connection for everything the open page subscribes to, reopened when it drops. Subscribers get
// "reset" when it opens, and whenever events may have been missed, and then read their data again.

const MOST_TOPICS = 50; // the server's limit
const SLOWEST_MS = 10_000;
const FIRST_MS = 500;
const badge = document.getElementById("live");
const listeners = new Set();
let source = null;
let timer = 0;
let wait_ms = FIRST_MS;

function show(state) {
  const words = { live: "Live", lost: "Reconnecting" };
  badge.hidden = !state;
  badge.className = `live ${state || ""}`;
  if (badge.textContent !== (words[state] || "")) badge.textContent = words[state] || "";
}

// Topics as the server names them: "board:<env>", "matches:<env>", "submission:<id>", "match:<id>", "queue".
export function watch(topics, hear, signal) {
  if (signal.aborted) return;
  const listener = { topics, hear };
  listeners.add(listener);
  signal.addEventListener("abort", () => {
    listeners.delete(listener);
    soon();
  });
  soon();
}

// Several parts of a page subscribe at the same moment; wait to open one connection for all of them.
function soon() {
  clearTimeout(timer);
  timer = setTimeout(open, 0);
}

function open() {
  close();
  const topics = [...new Set([...listeners].flatMap((listener) => listener.topics))];
  if (!topics.length) {
    show(null);
    return;
  }
  if (document.hidden) return;
  source = new EventSource(`/v1/events?topics=${encodeURIComponent(topics.slice(0, MOST_TOPICS).join(","))}`);
  source.addEventListener("open", connected);
  source.addEventListener("message", (event) => tell(JSON.parse(event.data)));
  source.addEventListener("reset", reset);
  source.addEventListener("error", dropped);
}

function connected() {
  wait_ms = FIRST_MS;
  show("live");
  reset(); // data that the page read before may be outdated
}

const reset = () => tell({ topic: "", kind: "reset", body: {} });

function tell(news) {
  for (const { topics, hear } of [...listeners]) {
    if (news.kind === "reset" || topics.includes(news.topic)) hear(news);
  }
}

function dropped() {
  show("lost");
  if (source.readyState !== EventSource.CLOSED) return; // the browser reconnects by itself
  timer = setTimeout(open, wait_ms);
  wait_ms = Math.min(SLOWEST_MS, wait_ms * 2);
}

function close() {
  clearTimeout(timer);
  source?.close();
  source = null;
}

// A browser opens at most six connections to a host for all its tabs, so hidden tabs close theirs.
document.addEventListener("visibilitychange", () => (document.hidden ? close() : soon()));

// Receives the frames of a running match until "finished".
export function frames(matchId, { frame, reset: anew, finished, lost }, signal) {
  const stream = new EventSource(`/v1/matches/${encodeURIComponent(matchId)}/live`);
  stream.addEventListener("frame", (event) => frame(JSON.parse(event.data)));
  stream.addEventListener("reset", anew);
  stream.addEventListener("finished", (event) => {
    stream.close();
    finished(JSON.parse(event.data));
  });
  stream.addEventListener("error", () => lost(stream.readyState === EventSource.CLOSED));
  signal.addEventListener("abort", () => stream.close());
}
