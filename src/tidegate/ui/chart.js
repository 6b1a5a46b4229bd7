// The newest versions as bars: how long each took, from left to right in the order of time.

import { clock, make, put, span } from "./parts.js";

const HEIGHT = 170, LEFT = 52, RIGHT = 10, TOP = 14, BOTTOM = 36, MOST = 300;

function draw(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** The largest of 1, 2, 5 times a power of ten that divides `most` into at least three. */
function step(most) {
  const power = 10 ** Math.floor(Math.log10(most / 3));
  return [5, 2, 1].map(n => n * power).find(n => most / n >= 3) || power;
}

/** The top of the scale. A few versions that took far longer are cut off, and have their time on the bar. */
function top(seconds) {
  const sorted = [...seconds].sort((a, b) => a - b), most = sorted[sorted.length - 1] || 0.001;
  const usual = sorted[Math.floor(0.9 * (sorted.length - 1))] || most;
  return most > 4 * usual ? 2 * usual : most * 1.04;
}

/** `parts(version)` are [[name, seconds, colour]]; `chosen(version)` is called when a bar is clicked. */
export function chart(box, versions, parts, chosen) {
  const width = Math.max(280, box.clientWidth), plot = width - LEFT - RIGHT;
  const few = versions.slice(0, Math.min(MOST, Math.floor(plot / 3))).reverse();
  if (few.length < 2) { box.replaceChildren(); return; }
  const sum = version => parts(version).reduce((all, [, s]) => all + s, 0), took = few.map(sum);
  const most = top(took), high = HEIGHT - TOP - BOTTOM, slot = plot / Math.max(few.length, 12);
  const bar = Math.min(slot * 0.76, 34), x = i => LEFT + slot * (i + 0.5), y = s => TOP + high * (1 - Math.min(s, most) / most);
  const [unit, factor] = most < 1 ? ["ms", 1000] : most < 180 ? ["s", 1] : ["min", 1 / 60];
  const svg = draw("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img",
    "aria-label": `times of versions ${few[0].version} to ${few[few.length - 1].version}: ${span(Math.max(...took))} at most` });
  const text = (at, attributes) => { const node = draw("text", attributes); node.textContent = at; return node; };
  const each = step(most * factor);
  for (let n = 0; n * each <= most * factor; n++) {
    const at = y(n * each / factor);
    svg.append(draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }),
      text(`${Number((n * each).toPrecision(6))} ${unit}`, { x: LEFT - 8, y: at + 4, "text-anchor": "end" }));
  }
  pauses(few).forEach(([i, s]) => {
    const line = draw("line", { class: "pause", x1: x(i) - slot / 2, x2: x(i) - slot / 2, y1: TOP, y2: TOP + high });
    line.append(text(`${span(s)} without a version`, {}));
    svg.append(line);
  });
  few.forEach((version, i) => {
    const group = draw("g", { class: "v" }, draw("rect", { class: "hit", x: x(i) - slot / 2, width: slot, y: TOP, height: high }));
    let from = 0;
    for (const [, s, colour] of parts(version)) {
      const height = y(from) - y(from + s);
      group.append(draw("rect", { class: `p${colour}`, x: x(i) - bar / 2, width: bar, y: y(from + s), height }));
      from += s;
    }
    if (took[i] > most) {
      group.append(draw("rect", { class: "cut", x: x(i) - bar / 2, width: bar, y: TOP + 7, height: 3 }),
        text(span(took[i]), { x: Math.min(x(i), width - 24), y: TOP - 3, "text-anchor": "middle" }));
    }
    const told = parts(version).map(([name, s]) => `${name} ${span(s)}`).join("\n");
    const title = draw("title", {});
    title.textContent = `version ${version.version}, ${version.origin}\ndecided ${clock(version.decided_at, true)}\n${told}`;
    group.append(title);
    group.addEventListener("click", () => chosen(version));
    svg.append(group);
  });
  ticks(few, slot).forEach((i, n, all) => {
    const anchor = x(i) + 30 > width ? "end" : "middle";
    const day = n > 0 && clock(few[i].decided_at, true).slice(0, 10) !== clock(few[all[n - 1]].decided_at, true).slice(0, 10);
    const moment = clock(few[i].decided_at, false), whole = clock(few[i].decided_at, true);
    svg.append(text(moment, { x: x(i), y: HEIGHT - 20, "text-anchor": anchor }),
      text(day ? whole.slice(5, 10) : `v${few[i].version}`, { x: x(i), y: HEIGHT - 5, "text-anchor": anchor }));
  });
  put(box, svg);
}

/** The bars that get a time: at most one in 96 pixels, the newest among them. */
function ticks(few, slot) {
  const every = Math.max(1, Math.ceil(96 / slot)), found = [];
  for (let i = few.length - 1; i >= 0; i -= every) found.unshift(i);
  return found;
}

/** The bars before which no version was decided for far longer than usual: [index, seconds]. */
function pauses(few) {
  const apart = few.slice(1).map((version, i) => version.decided_at - few[i].decided_at);
  const usual = [...apart].sort((a, b) => a - b)[Math.floor(apart.length / 2)];
  return apart.map((s, i) => [i + 1, s]).filter(([, s]) => s > Math.max(60, 10 * usual));
}

export function bar(parts, most) {
  const told = parts.map(([name, s]) => `${name} ${span(s)}`).join(", ");
  return make("div", { class: "bar", role: "img", title: told, "aria-label": told }, ...parts.map(([, s, colour]) =>
    make("i", { class: `p${colour}`, style: { width: 100 * s / (most || 1) + "%" } })));
}
