// The application shell: routing, links without reloading, title and focus after navigation, and the account in the
// header. A page is a module with `render(context)`, which returns {title, node}. Its signal is aborted with the page.

import { announce, h, put } from "./dom.js";
import { may, session } from "./api.js";
import { problem } from "./parts.js";

const ROUTES = [
  [/^\/$/, () => import("./page_home.js")],
  [/^\/env\/(.+)$/, () => import("./page_env.js")],
  [/^\/mine$/, () => import("./page_mine.js")],
  [/^\/search$/, () => import("./page_search.js")],
  [/^\/submit$/, () => import("./page_submit.js")],
  [/^\/submission\/([^/]+)$/, () => import("./page_submission.js")],
  [/^\/agent$/, () => import("./page_agent.js")],
  [/^\/match\/([^/]+)$/, () => import("./page_match.js")],
  [/^\/tournament\/([^/]+)$/, () => import("./page_tournament.js")],
  [/^\/seasons\/([^/]+)$/, () => import("./page_season.js")],
  [/^\/login$/, () => import("./page_login.js")],
  [/^\/admin$/, () => import("./page_admin.js")],
];

const main = document.getElementById("main");
let leaving = new AbortController();
let shownPath = "";

function route(path) {
  for (const [pattern, load] of ROUTES) {
    const found = pattern.exec(path);
    if (found) return { load, params: found.slice(1).map(readable) };
  }
  return { load: async () => ({ render: missing }), params: [] };
}

function readable(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function missing() {
  const node = h(
    "div",
    { class: "page" },
    h("h1", null, "No such page"),
    h("p", null, h("a", { href: "/" }, "Go to the boards")),
  );
  return { title: "No such page", node };
}

async function show({ first = false, keep = false } = {}) {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const { load, params } = route(location.pathname);
  const slow = setTimeout(() => main.classList.add("waiting"), 200);
  main.setAttribute("aria-busy", "true");
  let page;
  try {
    const module = await load();
    page = await module.render({ params, query: new URLSearchParams(location.search), signal, go });
  } catch (error) {
    if (signal.aborted) return;
    page = { title: "Something went wrong", node: failed(error) };
  } finally {
    clearTimeout(slow);
  }
  if (signal.aborted) return;
  put(main, page.node);
  main.classList.remove("waiting");
  main.removeAttribute("aria-busy");
  document.title = page.title === "Harena" ? page.title : `${page.title} · Harena`;
  markNavigation();
  if (!first && !keep) settle(page.title);
  shownPath = location.pathname;
}

function failed(error) {
  return h(
    "div",
    { class: "page" },
    h("h1", null, error.status === 404 ? "Not found" : "Something went wrong"),
    problem(error),
  );
}

function settle(title) {
  window.scrollTo(0, 0);
  const heading = main.querySelector("h1") ?? main;
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
  announce(title);
}

function markNavigation() {
  for (const link of document.querySelectorAll("[data-nav]")) {
    if (link.dataset.nav === location.pathname) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// Go to another address. `replace` adds no entry to the history; `keep` keeps scroll and focus, for filters and paging.
export function go(address, { replace = false, keep = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  return show({ keep });
}

function onClick(event) {
  const elsewhere = event.metaKey || event.ctrlKey || event.shiftKey || event.altKey; // a new tab or window
  if (event.defaultPrevented || event.button !== 0 || elsewhere) return;
  const link = event.target.closest?.("a[href]");
  if (!link || link.target || link.hasAttribute("download") || "plain" in link.dataset) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || url.pathname.startsWith("/v1/") || url.pathname.startsWith("/static/")) return;
  if (url.hash && url.pathname === location.pathname && url.search === location.search) return;
  event.preventDefault();
  void go(url.pathname + url.search, { keep: "keep" in link.dataset });
}

function account(state) {
  const link = document.getElementById("account");
  link.textContent = state.me ? state.me.owner : "Log in";
  link.setAttribute("aria-label", state.me ? `Logged in as ${state.me.owner}` : "Log in");
  document.getElementById("nav-admin").hidden = !may(state, "host");
}

document.addEventListener("click", onClick);
addEventListener("popstate", () => void show({ keep: shownPath === location.pathname }));
addEventListener("harena-session", (event) => account(event.detail));
session().catch(() => {}); // the page that needs the session shows the error
void show({ first: true });
