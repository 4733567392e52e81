// Markdown of hosts as DOM nodes: headings, paragraphs, lists, code, emphasis and links to http(s). Everything else,
// HTML included, is text: nothing is ever parsed as markup, so nothing has to be removed from it.

import { h } from "./dom.js";

const MAX_BLOCKS = 2000;
const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*|\[([^\]\n]{1,300})\]\(([^()\s]{1,2000})\)/g;

export function markdown(text) {
  return h("div", { class: "markdown" }, blocks(text.replaceAll("\r\n", "\n").split("\n")));
}

function blocks(lines) {
  const made = [];
  let at = 0;
  while (at < lines.length && made.length < MAX_BLOCKS) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
    } else if (line.startsWith("```")) {
      const end = lines.findIndex((one, index) => index > at && one.startsWith("```"));
      const last = end < 0 ? lines.length : end;
      made.push(h("pre", { tabindex: 0 }, h("code", null, lines.slice(at + 1, last).join("\n"))));
      at = last + 1;
    } else if (/^#{1,6} /.test(line)) {
      made.push(h("h3", null, inline(line.replace(/^#+ /, ""))));
      at += 1;
    } else {
      const kind = listKind(line);
      let end = at;
      while (end < lines.length && belongs(lines[end], kind)) end += 1;
      const part = lines.slice(at, end);
      made.push(kind ? h(kind, null, part.map((one) => h("li", null, inline(item(one))))) : paragraph(part));
      at = end;
    }
  }
  return made;
}

const listKind = (line) => (/^\s*[-*] /.test(line) ? "ul" : /^\s*\d{1,4}[.)] /.test(line) ? "ol" : null);
const item = (line) => line.replace(/^\s*([-*]|\d{1,4}[.)]) /, "");
const paragraph = (lines) => h("p", null, inline(lines.join(" ")));

function belongs(line, kind) {
  if (!line.trim() || line.startsWith("```") || /^#{1,6} /.test(line)) return false;
  return listKind(line) === kind;
}

function inline(text) {
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    parts.push(text.slice(from, found.index), styled(found));
    from = found.index + found[0].length;
  }
  return [...parts, text.slice(from)];
}

function styled([all, code, strong, emphasis, label, target]) {
  if (code !== undefined) return h("code", null, code);
  if (strong !== undefined) return h("strong", null, strong);
  if (emphasis !== undefined) return h("em", null, emphasis);
  return /^https?:\/\//i.test(target)
    ? h("a", { href: target, rel: "noopener noreferrer nofollow", target: "_blank" }, label)
    : all;
}
