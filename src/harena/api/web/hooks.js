// Webhooks and mail addresses of the visitor, which are told of results and changes of rank.

import { call, get, post } from "./api.js";
import { h, put } from "./dom.js";
import { formOf } from "./fields.js";
import { action, codeBlock, mark, problem, section } from "./parts.js";

const SMALL = { kind: "small-button" };
const KINDS = [
  ["webhook", "Webhook"],
  ["mail", "Mail"],
];
const path = (hook, rest = "") => `/v1/hooks/${encodeURIComponent(hook.id)}${rest}`;

export function hooksCard(signal) {
  const list = h("div", { class: "stack" });
  const note = h("div", { role: "status" });
  const read = async () => {
    try {
      const { hooks } = await get("/v1/hooks", {}, signal);
      put(list, hooks.map((hook) => item(hook, read)));
    } catch (error) {
      if (error.name !== "AbortError") put(list, problem(error));
    }
  };
  void read();
  const fields = [
    { name: "kind", label: "By", kind: "choice", value: "webhook", options: KINDS },
    { name: "target", label: "URL or mail address", required: true, max: 2000 },
  ];
  const add = formOf(fields, "Add", async ({ kind, target }, form) => {
    const made = await post("/v1/hooks", { kind, target: target.trim() });
    form.reset();
    put(note, made.secret ? [
      h("p", null, "This secret signs what is sent. It is shown only once."),
      codeBlock(made.secret, "Secret of the webhook"),
    ] : h("p", null, "A code was sent to this address. Type it below."));
    await read();
  });
  return section(
    "News",
    { class: "card" },
    h("p", { class: "quiet small" }, "Get results and changes of rank by webhook or mail, where the host allows it."),
    list,
    note,
    add,
  );
}

function item(hook, read) {
  const remove = action("Remove", async () => {
    await call("DELETE", path(hook));
    await read();
  }, SMALL);
  const confirm = hook.confirmed ? null : formOf(
    [{ name: "code", label: "Code from the mail", required: true, max: 20 }],
    "Confirm",
    async ({ code }) => {
      await post(path(hook, "/confirm"), { code });
      await read();
    },
  );
  return h(
    "div",
    { class: "item" },
    h(
      "div",
      { class: "item-head" },
      h("span", null, `${hook.kind}: ${hook.target} `, hook.disabled ? mark("switched off", "warn", "Too many deliveries did not arrive") : null),
      remove,
    ),
    confirm,
  );
}
