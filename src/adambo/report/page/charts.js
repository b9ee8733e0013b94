"use strict";
// Elements, scales and the drawing of panels. Whatever comes from a run is set as text or as a number, never as markup.

const AXES = { epoch: "epochs", seconds: "seconds of training", oracle_calls: "oracle calls" };
const UNITS = { ...AXES, step: "steps" };
const SPLITS = ["train", "test"];

// ---- elements ----

function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child)); // strings become text
  return made;
}

function ink(made, style) {
  made.classList.add("ink");
  made.style.setProperty("--light", style.light);
  made.style.setProperty("--dark", style.dark);
  return made;
}

const dashes = (style, width) => (style.dash.length ? style.dash.map((part) => part * width).join(" ") : "none");

function marker(kind, x, y, size = 3.4) {
  if (kind === "circle") return shape("circle", { class: "mark", cx: x, cy: y, r: size });
  const corners = { square: 4, triangle: 3, diamond: 4, down: 3, star: 10 }[kind];
  const turn = { square: Math.PI / 4, down: Math.PI }[kind] || 0;
  const points = Array.from({ length: corners }, (_, i) => {
    const angle = turn + (2 * Math.PI * i) / corners;
    const radius = size * (kind === "star" ? (i % 2 ? 0.65 : 1.6) : 1.3);
    return `${(x + radius * Math.sin(angle)).toFixed(2)},${(y - radius * Math.cos(angle)).toFixed(2)}`;
  });
  return shape("polygon", { class: "mark", points: points.join(" ") });
}

function swatch(style) {
  const line = shape("line", { class: "line", x1: 1, x2: 33, y1: 7, y2: 7, "stroke-dasharray": dashes(style, 1) });
  const drawing = shape("svg", { class: "swatch", viewBox: "0 0 34 14", "aria-hidden": "true" });
  drawing.append(line, marker(style.marker, 17, 7));
  return ink(drawing, style);
}

function cross(x, y, title) {
  const d = `M${x - 5} ${y - 5}L${x + 5} ${y + 5}M${x - 5} ${y + 5}L${x + 5} ${y - 5}`;
  const [edge, lines] = ["cross-edge", "cross"].map((name) => shape("path", { class: name, d }));
  return shape("g", { class: "end" }, edge, lines, shape("title", {}, title));
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");

// ---- numbers, scales and ticks ----

function compact(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e12)) {
    const [digits, power] = value.toExponential(3).split("e").map(Number);
    const raised = [...String(power)].map((sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign])).join("");
    return `${digits === 1 ? "" : `${digits}·`}10${raised}`;
  }
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= unit) return `${Number((value / unit).toPrecision(4))}${letter}`;
  return String(Number(value.toPrecision(4)));
}

const score = (value) => (Math.abs(value) < 1000 ? value.toFixed(4) : value.toPrecision(4));

function range(values, padding = 0) {
  const known = values.filter((value) => Number.isFinite(value));
  let [low, high] = known.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  if (!known.length) [low, high] = [0, 1];
  if (low === high) high = low + (Math.abs(low) * 0.1 || 1);
  return [low - (high - low) * padding, high + (high - low) * padding];
}

function scale([low, high], from, to, log) {
  const bend = log ? Math.log10 : (value) => value;
  const [a, b] = [bend(low), bend(high)];
  const place = (value) => from + ((bend(value) - a) / (b - a)) * (to - from);
  const back = (pixel) => {
    const at = a + ((pixel - from) / (to - from)) * (b - a);
    return log ? 10 ** at : at;
  };
  return { low, high, place, back };
}

function linearTicks({ low, high }, most) {
  const rough = (high - low) / Math.max(2, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks.map((value) => Number(value.toPrecision(12)));
}

function logTicks({ low, high }, most) {
  const decades = Math.log10(high / low);
  const factors = decades * 3 <= most ? [1, 2, 5] : [1];
  const skip = Math.max(1, Math.ceil(decades / Math.max(2, most)));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const factor of factors) {
      const value = Number(`${factor}e${power}`);
      if (power % skip === 0 && value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
    }
  return ticks;
}

// ---- the frame of a panel: axes, ticks, names ----

function frame(figure, xs, ys, { log, name, label, chance = null, places = null }) {
  const width = Math.max(240, figure.clientWidth || 400);
  const height = Math.round(Math.min(300, Math.max(215, width * 0.62)));
  const [left, right, top, bottom] = [46, width - 14, 10, height - 40];
  const x = scale(xs, left, right, log);
  const y = scale(ys, bottom, top, false);
  const drawing = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const line = (kind, x1, x2, y1, y2) => drawing.append(shape("line", { class: kind, x1, x2, y1, y2 }));
  const write = (at, down, anchor, text) =>
    drawing.append(shape("text", { x: at, y: down, "text-anchor": anchor }, text));
  const levels = linearTicks(y, (bottom - top) / 34);
  const step = levels.length > 1 ? levels[1] - levels[0] : 0.01;
  const decimals = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
  for (const value of levels) {
    line("grid", left, right, y.place(value), y.place(value));
    write(left - 7, y.place(value) + 4, "end", step < 1000 ? value.toFixed(decimals) : compact(value));
  }
  const room = right - left;
  const ticks = log ? logTicks(x, room / 58) : linearTicks(x, room / 72);
  for (const [value, shown] of places ?? ticks.map((tick) => [tick, tick])) {
    line("grid", x.place(value), x.place(value), top, bottom);
    write(x.place(value), bottom + 16, "middle", compact(shown));
  }
  line("axis", left, right, bottom, bottom);
  write((left + right) / 2, bottom + 34, "middle", name);
  if (chance !== null) {
    line("chance", left, right, y.place(chance), y.place(chance));
    write(right, y.place(chance) - 4, "end", `chance ${compact(chance)}`);
  }
  figure.querySelector("svg")?.remove();
  figure.append(drawing);
  return { drawing, x, y, top, bottom, width };
}

// ---- curves with their bands, seeds and ends ----

/** Draw `curves`, a list of { index, label, style, data }; returns what `nearest` needs to look things up. */
function drawCurves(figure, curves, { log, ...names }, ys) {
  const fits = (value) => !log || value > 0;
  const xs = range(curves.flatMap(({ data }) => data.x.filter(fits)));
  const made = frame(figure, log && xs[0] <= 0 ? [1, 10] : xs, ys, { log, ...names });
  const { drawing, x, y, top, bottom } = made;
  for (const curve of [...curves].reverse()) drawing.append(drawCurve(curve, x, y, fits)); // the first ends up on top
  const cursor = shape("line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" });
  drawing.append(cursor);
  return { ...made, curves, cursor, fits };
}

function drawCurve({ index, label, style, data }, x, y, fits) {
  const layer = ink(shape("g", { class: "curve", "data-curve": index }), style);
  const kept = data.x.map((_, i) => i).filter((i) => fits(data.x[i]));
  const line = (shift) => kept.map((i) => [x.place(data.x[i]), y.place(data.mean[i] + shift * (data.spread[i] ?? 0))]);
  if (data.spread.some((spread) => spread !== null))
    layer.append(shape("path", { class: "band", d: `${path(line(1))}${path(line(-1).reverse()).replace("M", "L")}Z` }));
  for (const seed of data.seeds.length > 1 ? data.seeds : []) {
    const points = seed.filter(([at]) => at >= x.low).map(([at, value]) => [x.place(at), y.place(value)]);
    layer.append(shape("path", { class: "seed", d: path(points) }));
  }
  layer.append(shape("path", { class: "line", d: path(line(0)), "stroke-dasharray": dashes(style, 1.7) }));
  for (const point of spaced(line(0), index)) layer.append(marker(style.marker, ...point));
  for (const end of data.ends.filter(({ x: at }) => fits(at)))
    layer.append(cross(x.place(end.x), y.place(end.y), `${label}: ${end.what}`));
  return layer;
}

function spaced(points, index) {
  // A marker about every 60 pixels, each curve with its own start, so that curves that run together stay readable.
  const kept = [];
  let due = points.length ? points[0][0] + (index % 4) * 15 : 0;
  for (const point of points)
    if (point[0] >= due) {
      kept.push(point);
      due = point[0] + 60;
    }
  return kept;
}

/** What every curve says at the pointer, and which one is nearest; a cross under the pointer is nearest of all. */
function nearest({ drawing, width, curves, x, y, fits }, event) {
  const bounds = drawing.getBoundingClientRect();
  const zoom = width / bounds.width;
  const [px, py] = [(event.clientX - bounds.left) * zoom, (event.clientY - bounds.top) * zoom];
  const at = x.back(px);
  const found = { at, pixel: px, index: null, distance: Infinity, rows: [], ends: [] };
  for (const { index, label, style, data } of curves) {
    const ends = data.ends.filter((end) => fits(end.x) && Math.hypot(x.place(end.x) - px, y.place(end.y) - py) < 9);
    found.ends.push(...ends.map((end) => `${label}: ${end.what}`));
    const value = valueAt(data, at);
    const away = ends.length ? 0 : value ? Math.abs(y.place(value.mean) - py) : Infinity;
    if (away < found.distance) Object.assign(found, { index, distance: away });
    if (value) found.rows.push({ index, label, style, away, ...value });
  }
  return found;
}

function valueAt({ x, mean, spread, count }, at) {
  const i = x.findIndex((value) => value >= at);
  if (i < 0 || (i === 0 && x[0] > at)) return null; // the curve has ended, or has not begun
  const share = i === 0 ? 1 : (at - x[i - 1]) / (x[i] - x[i - 1]);
  const mix = (list) => {
    const [before, after] = [i === 0 ? null : list[i - 1], list[i]];
    return before === null || after === null ? after : before + (after - before) * share;
  };
  return { mean: mix(mean), spread: mix(spread), count: count[i] };
}

// ---- the final score against one setting ----

function drawStudy(figure, study, metric) {
  const spots = study.values.map((value, i) => (study.log ? value : i));
  const finals = SPLITS.flatMap((split) => study.splits[split].filter(Boolean));
  const ys = range(finals.flatMap(([mean, spread]) => [mean - spread, mean + spread]), 0.12);
  const [low, high] = range(spots);
  const { drawing, x, y, bottom } = frame(figure, study.log ? [low / 1.6, high * 1.6] : [low - 0.3, high + 0.3], ys, {
    log: study.log,
    name: study.name,
    label: `final ${metric} against ${study.name}`,
    places: study.log ? null : spots.map((spot, i) => [spot, study.values[i]]),
  });
  for (const [split, kind] of [["train", "square"], ["test", "circle"]]) {
    const layer = shape("g", { class: `study-${split}` });
    const known = study.splits[split].map((final, i) => final && [x.place(spots[i]), ...final, i]).filter(Boolean);
    const line = path(known.map(([at, mean]) => [at, y.place(mean)]));
    layer.append(shape("path", { class: "line", d: line, "stroke-dasharray": split === "train" ? "6 4" : "none" }));
    for (const [at, mean, spread, i] of known) {
      layer.append(shape("path", { class: "line", d: `M${at} ${y.place(mean - spread)}V${y.place(mean + spread)}` }));
      const said = shape("title", {}, `${study.labels[i]}: ${split} ${score(mean)} ± ${score(spread)}`);
      layer.append(fill(marker(kind, at, y.place(mean), 4), {}, [said]));
    }
    drawing.append(layer);
  }
  study.splits.test.forEach((final, i) => {
    const none = `${study.labels[i]}: no run finished`;
    if (!final) drawing.append(shape("g", { class: "study-none" }, cross(x.place(spots[i]), bottom - 9, none)));
  });
}
