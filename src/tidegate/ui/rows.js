// Reading rows: a page of a table, one key's history, the differences of two versions.

import { ask, at, count, make, span, table, time } from "./parts.js";

const PANES = ["rows", "key", "diff"];
let space = "", tables = [], newest = 0, asked = 0, jobAsked = 0;

export function inSpace(name) { space = name; tables = []; at("answer").replaceChildren(); fillTables(); }

export function setTables(found, visible) {
  if (!at("pane-diff").after.value && visible > 1) { at("pane-diff").before.value = visible - 1; at("pane-diff").after.value = visible; }
  newest = visible;
  if (JSON.stringify(found) === JSON.stringify(tables)) return;
  tables = found; fillTables();
}

function fillTables() {
  for (const select of document.querySelectorAll("select.tables")) {
    const chosen = select.value, all = select.dataset.all;
    select.replaceChildren(...(all ? [make("option", { value: "" }, all)] : []), ...tables.map(t => make("option", { value: t.name }, t.name)));
    if (tables.some(t => t.name === chosen)) select.value = chosen;
  }
  keyInputs();
}

function keyInputs() {
  const spec = tables.find(t => t.name === at("pane-key").table.value);
  const old = [...at("key-parts").querySelectorAll("input")].map(input => input.value);
  at("key-parts").replaceChildren(...(spec ? spec.key_columns : []).map(([name, type], i) =>
    make("label", {}, name, make("input", { name: "key", placeholder: type, autocomplete: "off", value: old[i] || "" }))));
}

export function show(pane) {
  jobAsked++; at("job").replaceChildren();
  for (const name of PANES) {
    at(`pane-${name}`).hidden = name !== pane;
    at(`tab-${name}`).setAttribute("aria-selected", String(name === pane));
  }
}

/** Ask, and show the answer unless a later question was asked meanwhile. */
async function answer(path, query, drawn) {
  const mine = ++asked;
  at("answer").replaceChildren(make("p", { class: "soft" }, "reading ..."));
  let nodes;
  try { nodes = drawn(await ask(path, [["namespace", space], ...query])); } catch (error) { nodes = [make("p", { class: "bad" }, error.message)]; }
  if (mine === asked) at("answer").replaceChildren(...nodes);
}

const LONG = 160; // characters, about three lines: a longer value has a button for the rest

function text(value) {
  if (value === null || value === undefined) return make("span", { class: "null" }, "null");
  if (value.length <= LONG) return make("span", {}, value);
  const whole = make("span", { class: "clipped" }, value);
  const more = make("button", { class: "link", type: "button", "aria-expanded": "false", click: () => {
    const isClipped = whole.classList.toggle("clipped");
    more.textContent = isClipped ? "more" : "less"; more.setAttribute("aria-expanded", String(!isClipped));
  } }, "more");
  return make("span", {}, whole, more);
}
const keyLink = (name, key) => make("button", { class: "link", type: "button", title: "Show the history of this key", click: () => history(name, key) }, key.join(" · "));

// -- a page of a table --

export function rows(name, from = { group: 0, skip: 0 }, version = "", before = []) {
  show("rows"); at("pane-rows").table.value = name;
  remember({ view: "rows", table: name });
  return answer("rows", [["table", name], ["version", version], ["group", from.group], ["skip", from.skip]], found => {
    const heads = [[found.key_columns.join(" · "), ""], ...found.value_columns.map(column => [column, ""])];
    const list = table(make("table", { class: "cards" }), heads, found.rows.map(row =>
      [keyLink(name, row.key), ...found.value_columns.map(column => text(row.columns[column]))]), "no rows");
    const number = before.reduce((all, page) => all + page.rows, 0);
    const earlier = before[before.length - 1];
    const shown = found.rows.length ? `rows ${count(number + 1)} to ${count(number + found.rows.length)}` : "no rows here";
    return [list, make("p", { class: "pages" },
      ...(earlier ? [make("button", { type: "button", click: () => rows(name, earlier.from, found.version, before.slice(0, -1)) }, "Previous")] : []),
      ...(found.next ? [make("button", { type: "button", click: () => rows(name, { group: found.next[0], skip: found.next[1] }, found.version, [...before, { from, rows: found.rows.length }]) }, "Next")] : []),
      make("span", { class: "soft" }, `${shown}${found.next ? "" : ", the last"}, at version ${count(found.version)}, decided `, time(found.decided_at), ", by key group"))];
  });
}

// -- one key --

/** A value's columns on one line each; those that differ from `older` are marked. */
function fields(columns, older) {
  return make("div", { class: "fields" }, ...Object.entries(columns).map(([name, value]) => {
    const differs = older !== undefined && (older === null || older[name] !== value);
    return make("span", {}, make("span", { class: "name" }, name), differs ? make("mark", {}, text(value)) : text(value));
  }));
}

export function history(name, key) {
  show("key"); at("pane-key").table.value = name; keyInputs();
  [...at("key-parts").querySelectorAll("input")].forEach((input, i) => { input.value = key[i] ?? ""; });
  remember({ view: "key", table: name, key });
  return answer("key", [["table", name], ...key.map(part => ["key", part])], found => {
    const list = table(make("table", { class: "cards", id: "history" }), [["since version", "t"], ["decided", "t"], ["value", ""]], found.values.map((v, i) => {
      const older = found.values[i + 1];
      return [count(v.version), time(v.decided_at), v.columns === null ? make("span", { class: "null" }, "absent") : fields(v.columns, older && older.columns)];
    }), "absent");
    const told = `looked back to version ${count(found.oldest)}${found.cut ? "; there is more before" : ""}; changes are marked`;
    return [list, make("p", { class: "pages soft" }, told)];
  });
}

// -- two versions --

function changed(change) {
  if (!change.before || !change.after) return fields(change.after || change.before);
  const names = [...new Set([...Object.keys(change.before), ...Object.keys(change.after)])];
  return make("div", { class: "fields" }, ...names.filter(name => change.before[name] !== change.after[name]).map(name =>
    make("span", {}, make("span", { class: "name" }, name), text(change.before[name]), " → ", make("mark", {}, text(change.after[name])))));
}
const KINDS = { added: "good", removed: "bad", changed: "" };

export function differences(before, after, name = "") {
  const form = at("pane-diff");
  show("diff"); form.before.value = before; form.after.value = after; form.table.value = name;
  remember({ view: "diff", before, after, table: name });
  return answer("diff", [["before", before], ["after", after], ["table", name]], found => {
    const list = table(make("table", { class: "cards" }), [["kind", "t"], ["table", "t"], ["key", ""], ["columns", ""]], found.changes.map(change => {
      const kind = !change.before ? "added" : !change.after ? "removed" : "changed";
      return [make("span", { class: KINDS[kind] }, kind), change.table, keyLink(change.table, change.key), changed(change)];
    }), found.cut ? "nothing found in the time" : "no row differs");
    const told = `${count(found.changes.length)} rows differ between versions ${count(found.before)} and ${count(found.after)}`;
    return [list, make("p", { class: "pages soft" }, told + (found.cut ? "; there are more: tidegate diff" : ""))];
  });
}

// -- the job of one version --

/** The calls that made a version, each with the tables that it writes; nothing where the log does not have them. */
export async function job(version) {
  const mine = ++jobAsked;
  let found;
  try { found = await ask("job", [["namespace", space], ["version", version]]); } catch { return; }
  if (mine !== jobAsked || !found.steps || !found.steps.length) return;
  const heads = [["step", "t"], ["writes", ""], ["tasks", "n"], ["rows", "n"], ["bytes", "n"], ["time", "n"], ["frames", "n"]];
  const list = table(make("table", { class: "cards" }), heads, found.steps.map(step =>
    [step.name, `→ ${step.tables.join(", ")}`, step.parallelism ? count(step.parallelism) : "driver", count(step.rows), count(step.bytes), step.seconds ? span(step.seconds) : "-", count(step.frames)]), "");
  const told = `the calls that made version ${count(version)}; time: of all tasks, in the merge with its state`;
  at("job").replaceChildren(list, make("p", { class: "pages soft" }, told));
}

// -- the forms, and the address --

function remember(state) {
  const query = new URLSearchParams({ namespace: space });
  for (const [name, value] of Object.entries(state)) for (const one of [value].flat()) query.append(name, one);
  history_(query);
}
const history_ = query => window.history.replaceState(null, "", "#" + query);

export function fromAddress(wanted) {
  const name = wanted.get("table") || "", key = wanted.getAll("key"), view = wanted.get("view") || (key.length ? "key" : "");
  if (view === "key") return history(name, key);
  if (view === "diff") {
    differences(wanted.get("before"), wanted.get("after"), name);
    return wanted.get("after") - wanted.get("before") === 1 ? job(Number(wanted.get("after"))) : null;
  }
  return view === "rows" ? rows(name) : null;
}

export function listen() {
  for (const name of PANES) at(`tab-${name}`).addEventListener("click", () => { show(name); at("answer").replaceChildren(); asked++; });
  at("pane-key").table.addEventListener("change", keyInputs);
  const submitted = (pane, run) => at(pane).addEventListener("submit", event => { event.preventDefault(); run(event.target); });
  submitted("pane-rows", form => rows(form.table.value));
  submitted("pane-key", form => history(form.table.value, [...at("key-parts").querySelectorAll("input")].map(input => input.value)));
  submitted("pane-diff", form => differences(form.before.value, form.after.value || newest, form.table.value));
}
