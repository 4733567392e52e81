// Elements from data. Whatever a stranger wrote becomes a text node or an attribute that cannot run: nothing here, and
// nothing in the other modules, parses HTML. Handlers are functions; a string as a handler throws.

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

const drawn = new WeakMap(); // what `redraw` drew a node's content from

export function put(node, ...children) {
  drawn.delete(node);
  node.replaceChildren(...shown(children));
  return node;
}

// Puts what `make()` returns, unless it would be drawn from the same state: what somebody is about to click stays.
export function redraw(node, state, make) {
  const text = JSON.stringify(state);
  if (drawn.get(node) === text) return;
  put(node, make());
  drawn.set(node, text);
}

// Makes the children of `parent` those of `items`, in order. What did not change stays the very node that it was, so
// that nothing flickers and the focus stays. `build(item)` is called for what is new or different; `context` is what
// else a row is drawn from; `notable(before, item)` says which changes are worth a glance, and are marked.
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

// At once, and then at most every `gap_ms`: however many ask, one more run follows the last of them.
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
