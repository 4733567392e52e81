// Creates elements from data. Text from users becomes a text node or an attribute that cannot run: no module parses
// HTML. Handlers are functions; a string as a handler throws.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

export function s(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...shown(children));
  return node;
}

const shown = (children) =>
  children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

const drawn = new WeakMap(); // the state that `redraw` used for a node's content

export function put(node, ...children) {
  drawn.delete(node);
  node.replaceChildren(...shown(children));
  return node;
}

// Replaces the content by `make()`, unless the state is unchanged, so that elements do not move under the pointer.
export function redraw(node, state, make) {
  const text = JSON.stringify(state);
  if (drawn.get(node) === text) return;
  put(node, make());
  drawn.set(node, text);
}

// Updates the children of `parent` to match `items`, in order. Unchanged items keep their node, so that nothing flickers
// and the focus stays. `build(item)` is called for new and changed items; `context` is other state that a row depends on;
// `notable(before, item)` decides which changes are highlighted.
export function reconcile(parent, items, key, build, { context, notable } = {}) {
  const before = parent.reconciled ?? new Map();
  const after = new Map();
  const focused = focusIn(parent);
  let place = parent.firstChild;
  for (const item of items) {
    const id = String(key(item));
    const state = JSON.stringify([item, context]);
    const old = before.get(id);
    const node = old?.state === state ? old.node : build(item);
    if (before.size && node !== old?.node && notable?.(old?.item, item)) node.classList.add("changed");
    after.set(id, { node, state, item });
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  const kept = new Set([...after.values()].map((entry) => entry.node));
  for (const child of [...parent.childNodes]) if (!kept.has(child)) child.remove();
  parent.reconciled = after;
  refocus(focused, before, after);
}

const controls = (node) => [...node.querySelectorAll("a, button, input, select")];

function focusIn(parent) {
  return parent.contains(document.activeElement) ? document.activeElement : null;
}

function refocus(focused, before, after) {
  if (!focused || focused === document.activeElement) return;
  if (focused.isConnected) {
    focused.focus({ preventScroll: true });
    return;
  }
  for (const [id, { node }] of before) {
    const at = controls(node).indexOf(focused);
    if (at >= 0 && after.has(id)) controls(after.get(id).node)[at]?.focus({ preventScroll: true });
  }
}

// Runs at once, and then at most every `gap_ms`. Calls in between lead to one more run after the last of them.
export function throttled(run, gap_ms = 150) {
  let busy = false;
  let again = false;
  return async function ask() {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      await run();
    } finally {
      setTimeout(() => {
        busy = false;
        if (!again) return;
        again = false;
        void ask();
      }, gap_ms);
    }
  };
}

export function debounced(run, wait_ms = 250) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...args), wait_ms);
  };
}

export function announce(text) {
  document.getElementById("announce").textContent = text;
}
