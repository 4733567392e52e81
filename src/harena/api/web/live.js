// News from the server: one connection for all that the open page listens to, made again when it drops. Whoever listens
// is told "reset" when it is there, and whenever something may have been missed, and reads again.

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

// Several parts of a page start to listen in the same moment: one connection for all of them.
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
  reset(); // what the page read before may be old by now
}

const reset = () => tell({ topic: "", kind: "reset", body: {} });

function tell(news) {
  for (const { topics, hear } of [...listeners]) {
    if (news.kind === "reset" || topics.includes(news.topic)) hear(news);
  }
}

function dropped() {
  show("lost");
  if (source.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
  timer = setTimeout(open, wait_ms);
  wait_ms = Math.min(SLOWEST_MS, wait_ms * 2);
}

function close() {
  clearTimeout(timer);
  source?.close();
  source = null;
}

// A browser opens six connections to a host, for all its tabs: those that nobody sees give theirs back.
document.addEventListener("visibilitychange", () => (document.hidden ? close() : soon()));

// The frames of a running match. Ends by itself with "finished".
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
