// Submitting an agent: choose or drop files, describe them, and follow the submission.

import { clientId, get, session, upload } from "./api.js";
import { announce, h, put } from "./dom.js";
import { bytes, count, percent } from "./format.js";
import { envLink, mark, problem, titleOf } from "./parts.js";
import { follow } from "./status.js";

const ENTRIES = ["agent.py", "main.py", "submission.py"];

export async function render({ query, signal }) {
  const [{ environments }, state] = await Promise.all([get("/v1/environments", {}, signal), session()]);
  const open = environments.filter((env) => env.enabled);
  const result = h("div", { class: "stack", "aria-live": "polite" });
  const allowed = state.me || state.anonymous_submit;
  const teams = state.me ? (await get("/v1/me", {}, signal)).teams.filter((one) => one.joined) : [];
  const node = h(
    "div",
    { class: "page narrow-page" },
    h("h1", null, "Submit an agent"),
    allowed ? form(open, { ...state, teams }, query.get("env_id"), result, signal) : needsKey(),
    result,
  );
  return { title: "Submit an agent", node };
}

const needsKey = () =>
  h(
    "p",
    { class: "card" },
    "This arena accepts submissions only with a key. ",
    h("a", { href: "/login" }, "Log in with your key"),
    " to submit.",
  );

function form(environments, state, wantedEnv, result, signal) {
  const chosen = [];
  const files = picker(chosen, refresh);
  const main = mainChooser();
  const bar = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Upload" });
  const errors = h("div");
  const about = h("p", { class: "quiet small" });
  const send = h("button", { type: "submit", class: "primary" }, "Submit");
  const env = h(
    "select",
    { id: "env", name: "env_id", required: true },
    environments.map((one) => h("option", { value: one.env_id, selected: one.env_id === wantedEnv }, label(one))),
  );
  env.addEventListener("change", explain);

  function explain() {
    const one = environments.find((known) => known.env_id === env.value);
    put(
      about,
      one ? [
        envLink(one.env_id, "Rules and a sample agent"),
        one.kind === "script-only" ? [" ", mark("self-reported", "warn")] : null,
      ] : "No environment is open.",
    );
  }

  function refresh() {
    files.draw();
    main.draw(chosen);
    put(errors);
  }

  async function submit(event) {
    event.preventDefault();
    put(errors);
    if (!chosen.length) {
      put(errors, h("p", { class: "problem", role: "alert" }, "Choose a .py file, several files, or a zip first."));
      files.focus();
      return;
    }
    const data = new FormData(event.currentTarget);
    data.set("client_id", clientId);
    data.delete("picked");
    for (const file of chosen) data.append(chosen.length > 1 ? "files" : "file", file, file.name);
    send.disabled = true;
    bar.hidden = false;
    try {
      const made = await upload("/v1/submissions", data, (share) => {
        bar.value = share;
        bar.textContent = percent(share);
      });
      chosen.length = 0;
      refresh();
      result.prepend(card(made, signal));
    } catch (error) {
      put(errors, problem(error));
    } finally {
      send.disabled = false;
      bar.hidden = true;
    }
  }

  explain();
  return h(
    "form",
    { class: "card form", onsubmit: submit },
    files.node,
    paste(files),
    main.node,
    field("env", "Environment", env, about),
    field(
      "algorithm",
      "Algorithm",
      h(
        "input",
        { id: "algorithm", name: "algorithm", value: "Custom", maxlength: 200, required: true, autocomplete: "off" },
      ),
      h("p", { class: "quiet small" }, "A submission with the same name replaces your previous version."),
    ),
    owner(state),
    errors,
    h("p", { class: "row" }, send, bar),
  );
}

const label = (env) => (env.title && env.title !== env.env_id ? `${titleOf(env)} (${env.env_id})` : env.env_id);
const field = (id, text, ...children) => h("div", { class: "field" }, h("label", { for: id }, text), ...children);

function owner(state) {
  if (state.teams.length) {
    const names = [state.me.owner, ...state.teams.map((one) => one.team)];
    const select = h("select", { id: "owner", name: "user_id" }, names.map((one) => h("option", { value: one }, one)));
    return field("owner", "List it under", select);
  }
  if (state.me) return h("p", { class: "quiet" }, "It will be listed under ", h("strong", null, state.me.owner), ".");
  const input = h(
    "input",
    {
      id: "owner",
      name: "user_id",
      value: remembered(),
      maxlength: 200,
      placeholder: "anonymous",
      autocomplete: "nickname",
    },
  );
  input.addEventListener("change", () => remember(input.value));
  return field(
    "owner",
    "Your name",
    input,
    h(
      "p",
      { class: "quiet small" },
      "Your name is shown on the board. Without a key, only this browser can see the log and the code.",
    ),
  );
}

function remembered() {
  try {
    return localStorage.getItem("harena.owner") ?? "";
  } catch {
    return "";
  }
}

function remember(name) {
  try {
    localStorage.setItem("harena.owner", name);
  } catch {
    // storage is off: the name must be typed again next time
  }
}

function picker(chosen, refresh) {
  const input = h(
    "input",
    { id: "picked", name: "picked", type: "file", multiple: true, class: "unseen", "aria-describedby": "drop-help" },
  );
  const list = h("ul", { class: "files" });
  const zone = h(
    "div",
    { class: "drop" },
    h("p", { class: "drop-title" }, "Drop your agent here"),
    h(
      "p",
      { id: "drop-help", class: "quiet small" },
      "One .py file, several files, or a zip. Up to 10 MB per file and 50 MB in total.",
    ),
    input,
    h("label", { for: "picked", class: "button" }, "Choose files"),
    list,
  );

  function take(files) {
    for (const file of files) {
      const same = chosen.findIndex((known) => known.name === file.name);
      if (same >= 0) chosen.splice(same, 1);
      chosen.push(file);
    }
    announce(`${count(chosen.length, "file")} chosen`);
    refresh();
  }

  function draw() {
    put(
      list,
      chosen.map((file, at) => h(
        "li",
        null,
        h("span", null, file.name, " ", h("span", { class: "quiet" }, bytes(file.size))),
        h(
          "button",
          { type: "button", class: "small-button", "aria-label": `Remove ${file.name}`, onclick: () => drop(at) },
          "Remove",
        ),
      )),
    );
  }

  function drop(at) {
    chosen.splice(at, 1);
    refresh();
    input.focus();
  }

  input.addEventListener("change", () => {
    take([...input.files]);
    input.value = "";
  });
  for (const name of ["dragenter", "dragover"]) {
    zone.addEventListener(name, (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
  }
  for (const name of ["dragleave", "drop"]) zone.addEventListener(name, () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    take([...event.dataTransfer.files]);
  });
  return { node: zone, draw, take, focus: () => input.focus() };
}

// Code that is typed or pasted becomes a file like the others.
function paste(files) {
  const text = h("textarea", { id: "paste", rows: 10, spellcheck: "false", class: "code-input" });
  const name = h("input", { id: "paste-name", value: "agent.py", maxlength: 100, autocomplete: "off" });
  const add = h("button", { type: "button" }, "Use this code");
  const errors = h("div");
  add.addEventListener("click", () => {
    const fits = /^[\w-]+\.py$/.test(name.value.trim()) && text.value.trim();
    put(errors, fits ? null : h("p", { class: "problem", role: "alert" }, "Type some code, and a name such as agent.py."));
    if (fits) files.take([new File([text.value], name.value.trim(), { type: "text/x-python" })]);
  });
  return h(
    "details",
    { class: "paste" },
    h("summary", null, "Or paste code"),
    field("paste", "Code", text),
    field("paste-name", "File name", name),
    errors,
    h("p", null, add),
  );
}

function mainChooser() {
  const select = h("select", { id: "main-file", name: "main_file" });
  const node = field("main-file", "Main file", select);
  node.hidden = true;
  select.disabled = true;
  function draw(files) {
    const names = files.map((file) => file.name).filter((name) => name.endsWith(".py"));
    const several = files.length > 1 && names.length > 0;
    node.hidden = !several;
    select.disabled = !several; // a disabled field is not sent
    const likely = ENTRIES.find((name) => names.includes(name)) ?? names[0];
    put(select, names.map((name) => h("option", { value: name, selected: name === likely }, name)));
  }
  return { node, draw };
}

function card(submission, signal) {
  const link = h(
    "a",
    { href: `/submission/${encodeURIComponent(submission.id)}` },
    `${submission.algorithm} v${submission.version}`,
  );
  const head = h(
    "div",
    { class: "card-head" },
    h("h2", null, link, h("span", { class: "quiet" }, ` in ${submission.env_id}`)),
  );
  const extra = h("p");
  const status = follow(submission, (now) => {
    put(
      extra,
      now.state === "ranked" ? envLink(
        now.env_id,
        now.standing?.rank ? `See it on the board, rank ${now.standing.rank}` : "See the board",
      ) : "",
    );
  }, signal);
  return h(
    "section",
    { class: "card", "aria-label": `Submission ${submission.algorithm} version ${submission.version}` },
    head,
    status,
    extra,
  );
}
