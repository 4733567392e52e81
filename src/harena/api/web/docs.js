// Shows the API description (/openapi.json) as a page: paths by tag, parameters, bodies, responses.

import { h, put } from "./dom.js";
import { codeBlock, empty, problem, table } from "./parts.js";
import { ApiError } from "./api.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
const DEEPEST = 4;
const main = document.getElementById("main");

async function load() {
  const answer = await fetch("/openapi.json", { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new ApiError(answer.status, { detail: "The API description cannot be loaded." });
  return answer.json();
}

function page(spec) {
  const groups = grouped(spec);
  return h(
    "div",
    { class: "page docs" },
    h("h1", null, spec.info?.title ?? "API"),
    h(
      "p",
      { class: "quiet" },
      spec.info?.version ? `Version ${spec.info.version} · ` : "",
      h("a", { href: "/openapi.json" }, "openapi.json"),
    ),
    spec.info?.description ? h("p", { class: "prose" }, spec.info.description) : null,
    [...groups].map(([tag, endpoints]) => h(
      "section",
      { class: "card" },
      h("h2", null, tag),
      h("div", null, endpoints.map((one) => endpoint(spec, one))),
    )),
  );
}

function grouped(spec) {
  const groups = new Map();
  for (const [path, item] of Object.entries(spec.paths ?? {})) {
    for (const method of METHODS) {
      if (!item[method]) continue;
      const tag = item[method].tags?.[0] ?? "other";
      groups.set(
        tag,
        [...(groups.get(tag) ?? []), { path, method, operation: item[method], shared: item.parameters ?? [] }],
      );
    }
  }
  return groups;
}

function endpoint(spec, { path, method, operation, shared }) {
  const details = h(
    "details",
    { class: "endpoint" },
    h(
      "summary",
      null,
      h("span", { class: "method" }, method.toUpperCase()),
      h("code", null, path),
      h("span", { class: "quiet" }, operation.summary ?? ""),
    ),
  );
  details.addEventListener(
    "toggle",
    () => details.childElementCount === 1 && details.append(body(spec, operation, shared)),
    { once: true },
  );
  return details;
}

function body(spec, operation, shared) {
  const parameters = [...shared, ...(operation.parameters ?? [])].map((one) => resolved(spec, one));
  return h(
    "div",
    { class: "body" },
    operation.description ? h("p", { class: "prose" }, operation.description) : null,
    parameters.length ? parameterTable(spec, parameters) : null,
    content(spec, "Body", resolved(spec, operation.requestBody)?.content),
    Object.entries(operation.responses ?? {}).map(([status, answer]) => response(spec, status, resolved(spec, answer))),
  );
}

function parameterTable(spec, parameters) {
  const rows = parameters.map((one) =>
    h(
      "tr",
      null,
      h("td", null, h("code", null, one.name), one.required ? " (required)" : ""),
      h("td", null, one.in),
      h("td", null, kind(spec, one.schema)),
      h("td", { class: "wide quiet" }, one.description ?? ""),
    ),
  );
  return table("Parameters", ["Parameter", "In", "Type", { text: "Meaning", class: "wide" }], rows);
}

function response(spec, status, answer) {
  return h(
    "div",
    { class: "stack" },
    h("h3", null, `${status} ${answer?.description ?? ""}`),
    content(spec, "", answer?.content),
  );
}

function content(spec, title, types) {
  return Object.entries(types ?? {}).map(([type, media]) => {
    const shape = sketch(spec, media.schema, 0);
    const nothing = shape === undefined || (typeof shape === "object" && shape !== null && !Object.keys(shape).length);
    return h(
      "div",
      { class: "stack" },
      h("h3", null, [title, type].filter(Boolean).join(": ")),
      nothing ? empty("No fixed structure.") : codeBlock(JSON.stringify(shape, null, 2), type),
    );
  });
}

function resolved(spec, node) {
  for (let hops = 0; node?.$ref && hops < 8; hops += 1) {
    node = node.$ref.replace(/^#\//, "").split("/").reduce((at, part) => at?.[part], spec);
  }
  return node;
}

function kind(spec, schema) {
  const known = resolved(spec, schema) ?? {};
  const options = (known.anyOf ?? known.oneOf ?? []).map((one) => kind(spec, one)).filter((one) => one !== "null");
  if (options.length) return options.join(" or ");
  if (known.enum) return known.enum.join(" | ");
  if (known.const !== undefined) return String(known.const);
  if (known.type === "array") return `list of ${kind(spec, known.items)}`;
  return [known.type ?? "any", known.format].filter(Boolean).join(", ");
}

// An example of the schema, with types in place of values.
function sketch(spec, schema, depth) {
  const known = resolved(spec, schema);
  if (!known) return undefined;
  const first = (known.anyOf ?? known.oneOf ?? known.allOf ?? []).find((one) => resolved(spec, one)?.type !== "null");
  if (first && !known.properties) return sketch(spec, first, depth);
  if (depth > DEEPEST) return "…";
  if (known.properties) return Object.fromEntries(Object.entries(known.properties).map(([name, one]) => [
    name,
    sketch(spec, one, depth + 1) ?? "any",
  ]));
  if (known.type === "array") return [sketch(spec, known.items, depth + 1) ?? "any"];
  if (known.type === "object") {
    const values = known.additionalProperties;
    return values && values !== true ? { "…": sketch(spec, values, depth + 1) } : {};
  }
  return kind(spec, known);
}

try {
  put(main, page(await load()));
} catch (error) {
  put(main, h("div", { class: "page" }, h("h1", null, "API"), problem(error)));
}
