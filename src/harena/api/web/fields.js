// Builds forms from a list of fields, for the host's page. Errors of the server are shown in the form.

import { h, put } from "./dom.js";
import { problem } from "./parts.js";

let made = 0;

// A field: {name, label, kind: text|long|number|check|choice, value, options, help, hint, required}.
function control(field, id) {
  const shared = { id, name: field.name, required: field.required };
  if (field.kind === "long") return h(
    "textarea",
    { ...shared, rows: field.rows ?? 8, spellcheck: "false" },
    field.value ?? "",
  );
  if (field.kind === "check") return h("input", { ...shared, type: "checkbox", checked: Boolean(field.value) });
  if (field.kind === "choice") return h(
    "select",
    shared,
    field.options.map(([value, text]) => h("option", { value, selected: value === field.value }, text)),
  );
  if (field.kind === "number") {
    return h("input", { ...shared, type: "number", step: "any", value: field.value ?? "", placeholder: field.hint });
  }
  return h(
    "input",
    { ...shared, type: "text", value: field.value ?? "", maxlength: field.max ?? 200, autocomplete: "off" },
  );
}

function labelled(field) {
  made += 1;
  const id = `field-${made}`;
  const input = control(field, id);
  const label = h("label", { for: id }, field.label);
  const help = field.help ? h("p", { class: "quiet small" }, field.help) : null;
  return field.kind === "check" ? h("div", { class: "check" }, input, label) : h(
    "div",
    { class: "field" },
    label,
    input,
    help,
  );
}

// Values by name, ready for JSON. Empty numbers are left out.
function values(form, fields) {
  const found = {};
  for (const field of fields) {
    const input = form.elements.namedItem(field.name);
    if (field.kind === "check") found[field.name] = input.checked;
    else if (field.kind === "number") {
      if (input.value !== "") found[field.name] = Number(input.value);
    } else found[field.name] = input.value;
  }
  return found;
}

export function formOf(fields, submitLabel, send) {
  const errors = h("div", null);
  const button = h("button", { type: "submit", class: "primary" }, submitLabel);
  const wide = fields.filter((field) => field.kind === "long" || field.wide);
  const rest = fields.filter((field) => !wide.includes(field));
  return h(
    "form",
    {
      class: "form",
      onsubmit: async (event) => {
        event.preventDefault();
        put(errors);
        button.disabled = true;
        try {
          await send(values(event.target, fields), event.target);
        } catch (error) {
          put(errors, problem(error));
        } finally {
          button.disabled = false;
        }
      },
    },
    wide.map(labelled),
    rest.length ? h("div", { class: "split" }, rest.map(labelled)) : null,
    errors,
    h("p", null, button),
  );
}
