"use strict";
// Draws the panels of `DATA` at a moment of their common clock. A panel is redrawn from its first
// step each time: a few hundred steps, and seeking backwards needs nothing more.
const SVG = "http://www.w3.org/2000/svg";
const node = (parent, name, attributes, text) => {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.appendChild(made);
  return made;
};
const bytes = (n) => n.toLocaleString("en-US") + " B";

class Panel {
  constructor(data, root) {
    this.data = data;
    this.end = data.steps[data.steps.length - 1][9];
    const svg = node(root, "svg", { viewBox: `0 0 ${DATA.width} ${DATA.height}`, role: "img" });
    node(svg, "title", {}, `${data.title}: tensors in HBM above, one thread block below`);
    node(svg, "text", { x: 16, y: 24, class: "title" }, data.title);
    this.where = node(svg, "text", { x: DATA.width - 16, y: 24, class: "note", "text-anchor": "end" });
    node(svg, "rect", { x: 6, y: 36, width: DATA.width - 12, height: 214, class: "hbm" });
    node(svg, "text", { x: 16, y: 52, class: "place" }, "HBM");
    node(svg, "rect", { x: 6, y: 270, width: DATA.width - 12, height: 142, class: "chip" });
    node(svg, "text", { x: 16, y: 288, class: "place" }, "on the chip (one thread block)");
    node(svg, "text", { x: 16, y: 326, class: "note" }, "shared memory");
    node(svg, "text", { x: 16, y: 388, class: "note" }, "registers");
    this.tensors = new Map(data.tensors.map((box) => [box.number, box]));
    for (const box of data.tensors) {
      node(svg, "rect", { x: box.x, y: box.y, width: box.w, height: box.h, class: "tensor" });
      node(svg, "text", { x: box.x, y: box.y - 5, class: "name" }, box.name);
      box.often = [11, 20].map((down) =>
        node(svg, "text", { x: box.x, y: box.y + box.h + down, class: "often" }));
    }
    this.touched = node(svg, "g", {});
    this.tiles = new Map();
    for (const box of data.tiles) {
      const group = node(svg, "g", {});
      const rect = node(group, "rect", { x: box.x, y: box.y, width: box.w, height: box.h, class: "tile" });
      node(group, "text", { x: box.x, y: box.y - 4, class: "name" }, box.name);
      this.tiles.set(box.number, { group, rect, phase: box.phase });
    }
    const scale = (DATA.width - 32) / DATA.most, total = data.steps.reduce((sum, s) => sum + s[6], 0);
    node(svg, "rect", { x: 16, y: 424, width: total * scale, height: 12, class: "whole" });
    this.bar = node(svg, "rect", { x: 16, y: 424, width: 0, height: 12, class: "read" });
    this.bar2 = node(svg, "rect", { x: 16, y: 424, width: 0, height: 12, class: "written" });
    const least = 16 + data.compulsory * scale;
    node(svg, "line", { x1: least, x2: least, y1: 418, y2: 442, class: "least" });
    this.count = node(svg, "text", { x: 16, y: 450, class: "count" });
    this.words = node(svg, "text", { x: 16, y: 466, class: "words" });
    this.text = node(svg, "text", { x: 16, y: 480, class: "note" });
    this.numbers = node(svg, "text", { x: 16, y: 494, class: "note" });
  }

  at(time) { // the last step that has begun
    const steps = this.data.steps;
    let low = 0, high = steps.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle][9] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  draw(time) {
    const last = this.at(time), steps = this.data.steps;
    const often = new Map(), moves = { load: [0, "read"], store: [1, "written"] };
    let read = 0, written = 0, held = new Set(), was = "";
    const marks = new Map();
    for (let i = 0; i <= last; i++) {
      const [kind, phase, block, tile, , region, moved] = steps[i];
      const here = phase + ":" + block;
      if (here !== was) { held = new Set(); was = here; }
      if (kind !== "store") held.add(tile);
      if (kind in moves) {
        const sums = often.get(region[0]) || [0, 0];
        sums[moves[kind][0]] += moved;
        often.set(region[0], sums);
      }
      if (kind === "load") { read += moved; marks.set(region.join(), [region, "read"]); }
      if (kind === "store") { written += moved; marks.set(region.join(), [region, "written"]); }
    }
    this.touched.replaceChildren();
    for (const [region, how] of marks.values()) this.mark(region, how + " old");
    for (const [number, box] of this.tensors) {
      const [ins, outs] = often.get(number) || [0, 0], whole = this.data.tensorBytes[number];
      const texts = [["read", ins], ["written", outs]].filter(([, moved]) => moved)
        .map(([verb, moved]) => `${verb} ${+(moved / whole).toFixed(1)}×`);
      box.often.forEach((line, i) => { line.textContent = texts[i] || ""; });
    }
    const [kind, phase, , tile, operands, region, , text, words, , statistics, where] = steps[last];
    if (kind === "load") this.mark(region, "read");
    if (kind === "store") this.mark(region, "written");
    for (const [number, box] of this.tiles) {
      box.group.style.display = box.phase === phase ? "" : "none";
      box.rect.setAttribute("class", "tile" + (held.has(number) ? " held" : "")
        + (operands.includes(number) || (kind === "store" && number === tile) ? " used" : "")
        + (number === tile && kind !== "store" ? " made" : ""));
    }
    const scale = (DATA.width - 32) / DATA.most;
    this.bar.setAttribute("width", read * scale);
    this.bar2.setAttribute("x", 16 + read * scale);
    this.bar2.setAttribute("width", written * scale);
    this.count.textContent = `crossed so far: ${bytes(read)} read, ${bytes(written)} written`
      + (last === steps.length - 1 && time >= this.end ? " – done" : "");
    this.words.textContent = words;
    this.where.textContent = where;
    const values = Object.entries(statistics).map(([name, value]) => `${name} ${value}`);
    this.text.textContent = text;
    this.numbers.textContent = values.length ? "first row: " + values.join(", ") : "";
  }

  mark([tensor, row, rows, col, cols], how) {
    const box = this.tensors.get(tensor), sx = box.w / box.cols, sy = box.h / box.rows;
    node(this.touched, "rect", { x: box.x + col * sx, y: box.y + row * sy,
      width: cols * sx, height: rows * sy, class: how });
  }
}

const panels = DATA.panels.map((data) => new Panel(data, document.getElementById("panels")));
const end = Math.max(...panels.map((panel) => panel.end));
const slider = document.getElementById("time"), play = document.getElementById("play");
const speed = document.getElementById("speed");
let time = 0, running = false, before = 0;
slider.max = end;
const draw = () => { slider.value = time; panels.forEach((panel) => panel.draw(time)); };
const pause = () => { running = false; play.textContent = "Play"; };
const frame = (now) => {
  if (!running) return;
  time = Math.min(end, time + (now - before) / 1000 * speed.value);
  before = now;
  draw();
  if (time >= end) pause(); else requestAnimationFrame(frame);
};
const start = () => {
  if (time >= end) time = 0;
  running = true;
  play.textContent = "Pause";
  before = performance.now();
  requestAnimationFrame(frame);
};
const step = (way) => {
  pause();
  const moments = panels.flatMap((panel) => [0, ...panel.data.steps.map((one) => one[9])]);
  const next = way > 0 ? moments.filter((m) => m > time + 1e-6) : moments.filter((m) => m < time - 1e-6);
  time = next.length ? (way > 0 ? Math.min(...next) : Math.max(...next)) : (way > 0 ? end : 0);
  draw();
};
play.onclick = () => (running ? pause() : start());
document.getElementById("back").onclick = () => step(-1);
document.getElementById("forward").onclick = () => step(1);
slider.oninput = () => { pause(); time = +slider.value; draw(); };
document.addEventListener("keydown", (event) => {
  if (event.target.tagName === "INPUT") return;
  if (event.key === "ArrowRight") step(1);
  if (event.key === "ArrowLeft") step(-1);
  if (event.key === " " && event.target.tagName !== "BUTTON") { event.preventDefault(); play.onclick(); }
});
draw();
