// Elements, numbers and times. A text becomes a text node, never markup.

export const at = id => document.getElementById(id);

export function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "style") Object.assign(node.style, value);
    else if (name === "click") node.addEventListener("click", value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().map(child => child instanceof Node ? child : document.createTextNode(String(child ?? ""))));
  return node;
}

/** Give `target` these children. Equal ones stay as they are: with the pointer over them, the focus, a selection. */
export function put(target, ...nodes) {
  nodes.forEach((node, i) => {
    const old = target.childNodes[i];
    if (!old) target.append(node); else if (!old.isEqualNode(node)) old.replaceWith(node);
  });
  while (target.childNodes.length > nodes.length) target.lastChild.remove();
}

export const count = n => n === null || n === undefined ? "-" : Number(n).toLocaleString("en");

export function span(s) {
  if (s === null || s === undefined) return "-";
  if (s < 0.0995) return (s * 1000).toFixed(s < 0.01 ? 1 : 0) + " ms";
  if (s < 120) return s.toFixed(s < 10 ? 2 : 0) + " s";
  return s < 7200 ? Math.round(s / 60) + " min" : s < 172800 ? (s / 3600).toFixed(1) + " h" : Math.round(s / 86400) + " d";
}

/** An age, without fractions: it changes while one looks. */
export const age = s => s < 120 ? Math.max(0, Math.floor(s)) + " s" : span(s);

// -- times, in the browser's zone or in UTC --

const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "local";
const kept = () => { try { return localStorage; } catch { return {}; } };
let utc = kept().utc === "1";

export const zoneName = () => utc ? "UTC" : ZONE;
export function switchZone() { utc = !utc; kept().utc = utc ? "1" : "0"; }

function written(seconds, inUtc, withDay) {
  const moment = new Date(seconds * 1000), two = n => String(n).padStart(2, "0");
  const [y, m, d, h, min, s] = inUtc
    ? [moment.getUTCFullYear(), moment.getUTCMonth(), moment.getUTCDate(), moment.getUTCHours(), moment.getUTCMinutes(), moment.getUTCSeconds()]
    : [moment.getFullYear(), moment.getMonth(), moment.getDate(), moment.getHours(), moment.getMinutes(), moment.getSeconds()];
  return (withDay ? `${y}-${two(m + 1)}-${two(d)} ` : "") + `${two(h)}:${two(min)}:${two(s)}`;
}
const both = seconds => `${written(seconds, false, true)} ${ZONE}\n${written(seconds, true, true)} UTC`;
export function clock(seconds, withDay) {
  const today = written(Date.now() / 1000, utc, true).slice(0, 10) === written(seconds, utc, true).slice(0, 10);
  return written(seconds, utc, withDay ?? !today);
}
export function time(seconds, before = "", note = "") {
  if (seconds === null || seconds === undefined) return make("span", { class: "soft" }, "not known");
  const iso = new Date(seconds * 1000).toISOString();
  return make("time", { datetime: iso, title: both(seconds) + note }, before + clock(seconds));
}

// -- words, with the glossary at the end of the page --

const slug = word => "word-" + word.replaceAll(" ", "-");
export const meaning = word => at(slug(word))?.nextElementSibling.textContent ?? "";
export const term = (word, text) => make("a", { class: "term", href: "#" + slug(word), title: meaning(word) }, text || word);
export function explainAll() {
  for (const link of document.querySelectorAll("a.term")) link.title = at(link.getAttribute("href").slice(1)).nextElementSibling.textContent;
  document.addEventListener("click", event => {
    const link = event.target.closest?.("a.term");
    if (!link) return;
    event.preventDefault(); // the address has the place in the data
    at("words").open = true;
    for (const old of document.querySelectorAll("dt.here")) old.classList.remove("here");
    const word = at(link.getAttribute("href").slice(1));
    word.classList.add("here"); word.scrollIntoView({ block: "center" });
  });
}

// -- tables --

/** Fill a table. `heads` are [name, class]; a name may be a node. */
export function table(node, heads, rows, empty) {
  const target = typeof node === "string" ? at(node) : node;
  if (!rows.length) {
    put(target, make("tbody", {}, make("tr", {}, make("td", { class: "soft" }, empty))));
    return target;
  }
  const name = head => head instanceof Node ? head.textContent : head;
  const body = rows.map(row => make("tr", {}, ...row.map((cell, i) => make("td", { class: heads[i][1], "data-name": name(heads[i][0]) || null },
    cell instanceof Node ? cell : make("span", {}, cell ?? "-")))));
  const named = heads.some(([text]) => text !== "");
  put(target, make("thead", { hidden: named ? null : "" }, make("tr", {}, ...heads.map(([text, kind]) => make("th", { class: kind === "n" ? "n" : null, scope: "col" }, text)))),
    make("tbody", {}, ...body));
  return target;
}

export async function ask(path, query) {
  const answer = await fetch(`api/${path}?${new URLSearchParams(query)}`, { signal: AbortSignal.timeout(30000) });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}
