// The page: asks for the state of the namespace every two seconds, and draws it.

import { age, ask, at, clock, count, explainAll, make, put, span, switchZone, table, term, time, zoneName } from "./parts.js";
import { bar, chart } from "./chart.js";
import * as inside from "./rows.js";

const PHASES = ["stage", "manifest", "decide", "apply", "publish"];
const EVERY_MS = 2000, STEP = 10;
let space = new URLSearchParams(location.hash.slice(1)).get("namespace") || "", shown = STEP, last = null, lastAt = 0;

const parts = version => version.phases ? PHASES.map((name, i) => [name, version.phases[name] || 0, i]) : [["decided to visible", version.took_s, 3]];
const took = version => parts(version).reduce((sum, [, s]) => sum + s, 0);
const whatChanged = version => { inside.differences(version.version - 1, version.version); inside.job(version.version); };

function tile(name, value, kind, note) {
  return make("div", { class: "tile" }, make("span", { class: "soft" }, name), make("b", { class: kind || null }, value), make("small", {}, note || " "));
}

/** The usual time between two versions, in seconds. */
function usual(versions) {
  const apart = versions.slice(1, 51).map((version, i) => versions[i].decided_at - version.decided_at).sort((a, b) => a - b);
  return apart[Math.floor(apart.length / 2)] || 0;
}

function ageTile(facts) {
  const newest = (facts.versions || [])[0], name = term("age", "age of the newest version");
  if (!newest) return tile(name, facts.versions ? "no version yet" : "not known", "", facts.versions ? "the first batch makes version 1" : "the store does not answer");
  const seconds = facts.at - newest.published_at + (Date.now() - lastAt) / 1000;
  const fresh = facts.writer_state === "running" && seconds < Math.max(60, 5 * usual(facts.versions));
  const kind = facts.writer_state === "silent" ? "warn" : fresh ? "good" : "";
  return tile(name, age(seconds), kind, make("span", {}, "visible since ", time(newest.published_at)));
}

function writerTile(facts) {
  const beat = facts.heartbeat_age_s === null || facts.heartbeat_age_s === undefined ? "" : `heartbeat ${age(facts.heartbeat_age_s + (Date.now() - lastAt) / 1000)} ago`;
  const told = { none: ["none yet", "", ""], closed: ["closed", "", "it ended in order"], running: ["running", "good", beat], silent: ["silent", "warn", beat] };
  const [word, kind, note] = told[facts.writer_state] || ["not known", "", ""];
  return tile(term("writer"), word, kind, note);
}

function drawTiles(facts) {
  const lag = facts.lag, running = facts.writer_state === "running", number = n => n === undefined ? "not known" : n ? count(n) : "none yet";
  put(at("tiles"),
    ageTile(facts),
    writerTile(facts),
    tile(term("visible version"), number(facts.visible), "", facts.decided === undefined ? "" : facts.decided ? `decided: ${count(facts.decided)}` : "none decided"),
    tile(term("lag"), lag === undefined || lag === null ? "not known" : count(lag), lag ? "warn" : lag === 0 && running ? "good" : "",
      lag ? "versions not visible yet" : lag === 0 ? "all decided are visible" : facts.decided === undefined ? "known with --wal" : ""),
    tile(term("horizon", "oldest readable"), facts.horizon ? count(facts.horizon) : facts.visible ? "1" : "-", "",
      facts.void_records ? make("span", {}, term("void", "void records"), ": ", count(facts.void_records)) : facts.epoch ? make("span", {}, term("epoch"), ": ", count(facts.epoch)) : ""));
}

function legend(facts, versions) {
  if (!versions.length) return [];
  const { url, namespaces } = facts.metrics, phased = versions.some(version => version.phases);
  const swatch = (name, colour) => make("span", {}, make("i", { class: `p${colour}` }), name);
  if (phased) return [...PHASES.map((name, i) => swatch(term(name), i)), make("span", {}, `from the driver's metrics, ${url}`)];
  const others = namespaces && namespaces.length ? `the metrics of ${url} are of ${namespaces.join(", ")}` : namespaces ? `the metrics of ${url} have no version yet` : "no driver's metrics in reach";
  return [swatch("decided to visible", 3), make("span", { title: "Start the query with metrics_port=9464, or this page with --metrics URL." }, `phases: ${others}; a query with metrics_port has them`)];
}

function drawVersions(facts) {
  const versions = facts.versions || [], most = Math.max(...versions.slice(0, shown).map(took), 0);
  put(at("legend"), ...legend(facts, versions));
  chart(at("chart"), versions, parts, whatChanged);
  table("versions", [["version", "t"], ["decided", "t"], ["from", "t"], ["took", "n"], ["", "b"], [term("change", "changes"), ""]],
    versions.slice(0, shown).map(v => [make("button", { class: "link", type: "button", title: "Show what this version changed", click: () => { whatChanged(v); at("inside").scrollIntoView(); } }, count(v.version)),
      time(v.decided_at), v.origin, span(took(v)), bar(parts(v), most), Object.entries(v.changes).map(([name, n]) => `${name} ${count(n)}`).join(", ") || "none"]),
    facts.versions ? "no version yet: the first batch makes version 1" : "the store does not answer");
  at("more").hidden = versions.length <= shown;
}

function eventRow(event) {
  const until = event.before_at ? `\nbefore the next version, ${clock(event.before_at, true)}` : "\nno version was decided since";
  const place = event.after_version ? `\nafter version ${event.after_version}` : "\nbefore version 1";
  const kind = { fault: "warn", takeover: "warn" }[event.kind] || null;
  return [time(event.after_at, "after ", place + until), make("span", { class: kind }, event.kind), event.what];
}

function drawEvents(facts) {
  const events = facts.events || [], starts = events.filter(event => event.kind === "start");
  const heads = [["when", "t"], ["kind", "t"], ["what", ""]];
  table("events", heads, events.filter(event => event.kind !== "start").map(eventRow), facts.events ? "none" : "not known without --wal");
  at("starts-box").hidden = !starts.length;
  at("starts-sum").textContent = `${count(starts.length)} plain ${starts.length === 1 ? "start" : "starts"} of a writer`;
  table("starts", [["when", "t"], ["what", ""]], starts.map(event => { const [when, , what] = eventRow(event); return [when, what]; }), "none");
}

function draw(facts) {
  last = facts;
  document.title = `${facts.namespace}: ${facts.visible ?? "?"}`;
  at("name").textContent = facts.namespace;
  at("zone").textContent = `times: ${zoneName()}`;
  const several = facts.namespaces.length > 1;
  at("space").hidden = !several; at("name").hidden = several;
  const names = facts.namespaces.join("\n");
  if ([...at("space").options].map(option => option.value).join("\n") !== names) at("space").replaceChildren(...facts.namespaces.map(name => make("option", { value: name }, name)));
  at("space").value = facts.namespace;
  at("problems").hidden = !facts.problems.length;
  put(at("problems"), ...facts.problems.map(text => make("p", { class: "bad" }, text)));
  drawTiles(facts);
  drawVersions(facts);
  drawEvents(facts);
  table("stores", [["store", ""], ["visible", "n"], [term("lag"), "n"], ["state", ""]], (facts.stores || []).map(s =>
    [s.name, s.visible === null ? "-" : count(s.visible), count(s.lag), make("span", { class: s.error ? "bad" : s.lag ? "warn" : null }, s.stands)]), "not known");
  table("tables", [["table", ""], ["key", ""], ["value", ""]], (facts.tables || []).map(t =>
    [make("button", { class: "link", type: "button", title: "Show rows of this table", click: () => { inside.rows(t.name); at("inside").scrollIntoView(); } }, t.name), t.key, t.value]), facts.tables ? "none yet" : "not known");
  table("leases", [["version", "n"], ["held for", "n"], ["expires in", "n"]],
    (facts.leases || []).map(l => [count(l.version), span(l.age_s), span(l.expires_in_s)]), facts.leases ? "no reader holds a version" : "not known");
  const size = [...Object.entries(facts.log || {}), ...(facts.key_groups ? [[term("key group", "key groups"), count(facts.key_groups)]] : [])];
  table("log", [["", ""], ["", ""]], facts.log ? size : [], "not known without --wal");
  inside.setTables(facts.tables || [], facts.visible || 0);
}

let polling = 0;
async function look(mine) {
  try {
    const facts = await ask("namespace", [["namespace", space]]);
    if (mine !== polling) return;
    lastAt = Date.now();
    if (facts.namespace !== space) { space = facts.namespace; inside.inSpace(space); }
    draw(facts);
    at("live").replaceChildren("as of ", time(facts.at)); at("live").className = "soft";
    document.querySelector("main").className = "";
  } catch (error) {
    if (mine !== polling) return;
    at("live").textContent = `no answer from tidegate ui: ${error.message}`; at("live").className = "bad";
    document.querySelector("main").className = "stale";
  }
  setTimeout(() => mine === polling && look(mine), document.hidden ? 5 * EVERY_MS : EVERY_MS);
}

at("more").addEventListener("click", () => { shown += 10 * STEP; drawVersions(last); });
at("zone").addEventListener("click", () => { switchZone(); if (last) draw(last); });
at("space").addEventListener("change", () => { space = at("space").value; shown = STEP; inside.inSpace(space); window.history.replaceState(null, "", "#" + new URLSearchParams({ namespace: space })); look(++polling); });
window.addEventListener("resize", () => { if (last) drawVersions(last); });
setInterval(() => { if (last) drawTiles(last); }, 1000);
explainAll();
inside.listen();
inside.inSpace(space); // an address names it: the first answer is of this one
const wanted = new URLSearchParams(location.hash.slice(1));
look(++polling).then(() => inside.fromAddress(wanted));
