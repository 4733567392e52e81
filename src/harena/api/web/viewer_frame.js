// The match viewer in a frame. It is a separate page with its own security policy; its height follows its content, and
// its theme is that of this page.

import { address } from "./api.js";
import { h, put } from "./dom.js";
import { frames } from "./live.js";

const themed = (view) => {
  const root = view.contentDocument?.documentElement;
  if (!root) return;
  const { theme } = document.documentElement.dataset;
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
  view.contentWindow.harena?.redraw();
};

function framed(stage, src, title) {
  const view = h("iframe", { src, title, class: "stage-frame" });
  view.addEventListener("load", () => {
    const body = view.contentDocument?.body;
    if (!body) return;
    const fit = () => {
      view.style.height = `${Math.ceil(body.getBoundingClientRect().height) + 2}px`;
    };
    new ResizeObserver(fit).observe(body);
    fit();
    themed(view);
    new MutationObserver(() => themed(view)).observe(
      document.documentElement,
      { attributeFilter: ["data-theme"] },
    );
  });
  put(stage, view);
  return view;
}

const source = (match, hash) => `${address(
  `/v1/matches/${encodeURIComponent(match.id)}/replay`,
  { format: "html" },
)}#${hash}`;

// `step`: paused there; otherwise it starts to play.
export function showReplay(stage, match, { step = null, mini = false } = {}) {
  stage.dataset.shows = "replay";
  if (!match.has_replay) {
    put(stage, h("p", { class: "card empty" }, "There is no replay of this match."));
    return null;
  }
  return framed(stage, source(match, `${step === null ? "play" : `step=${step}`}${mini ? "&mini" : ""}`), "Replay");
}

// Frames are appended as they arrive. `started` is called with the first one, `over` when the match may have ended.
export function showLive(stage, match, { started, over, mini = false }, signal) {
  stage.dataset.shows = "live";
  const view = framed(stage, source(match, mini ? "mini" : ""), "Live match");
  const waiting = h("p", { class: "quiet", role: "status" }, "Waiting for the first move.");
  stage.prepend(waiting);
  view.hidden = true; // no empty board while it waits
  let stream = new AbortController();
  view.addEventListener("load", () => {
    const viewer = view.contentWindow.harena;
    if (!viewer) return;
    stream.abort();
    stream = new AbortController();
    frames(match.id, {
      frame: (one) => {
        viewer.append(one);
        if (waiting.textContent === "Live") return;
        waiting.textContent = "Live";
        view.hidden = false;
        started();
      },
      reset: () => view.contentWindow.location.reload(), // too slow for the stream: start again
      finished: () => void over(),
      lost: (gone) => {
        waiting.textContent = "Reconnecting";
        if (gone) void over();
      },
    }, AbortSignal.any([signal, stream.signal]));
  });
  return view;
}
