// The page: for each experiment a legend, panels and a table; the details of a curve; what the pointer is at.

const { groups, notes } = JSON.parse(document.getElementById("data").textContent);
const details = document.getElementById("details");
const readout = document.getElementById("readout");
const MOOD = { "✓": "", "…": "waiting", "✕": "failed" };
let chosen = null; // the curve whose details are open: { view, index, opener }

// ---- one experiment ----

function experiment(group, number) {
  // What can change: which curves are hidden, which axes are logarithmic.
  const view = { group, hidden: new Set(), log: { ...group.log }, panels: [], measured: [], studies: [] };
  for (const split of SPLITS)
    for (const axis of Object.keys(AXES))
      view.panels.push({ split, axis, figure: captioned(`${split} ${group.metric}`, `against ${AXES[axis]}`) });
  for (const [name, text] of Object.entries(group.monitored))
    view.measured.push({ name, text, figure: captioned(text, "against steps") });
  for (const study of group.studies) {
    const lines = [["test", "● test"], ["train", "■ train"]].map(([split, text]) =>
      element("span", { class: `study-${split}` }, ` ${text}`));
    view.studies.push({ study, figure: captioned(`final ${group.metric}`, `against ${study.name}:`, ...lines) });
  }
  const figures = (list) => list.length > 0 && element("div", { class: "panels" }, ...list.map(({ figure }) => figure));
  const { entries, switches } = legend(view);
  const summary = element("p", { class: "summary" }, group.summary);
  view.section = element("section", { id: `experiment-${number}` },
    element("div", { class: "head" }, element("div", {}, element("h2", {}, group.experiment), summary), switches),
    ...group.notes.map((note) => element("p", { class: "note" }, note)),
    entries, figures(view.panels), figures(view.measured), figures(view.studies), table(view));
  return view;
}

function captioned(strong, rest, ...more) {
  const title = strong.charAt(0).toUpperCase() + strong.slice(1);
  return element("figure", {}, element("figcaption", {}, title, element("span", {}, ` ${rest}`), ...more));
}

function draw(view) {
  const { group } = view;
  const numbered = group.curves.map((curve, index) => ({ ...curve, index }));
  const shown = numbered.filter(({ index }) => !view.hidden.has(index));
  const heights = Object.fromEntries(SPLITS.map((split) => [split, height(shown, split, group.chance)]));
  for (const { split, axis, figure } of view.panels) {
    const curves = shown.map((curve) => ({ ...curve, data: curve.panels[`${split} ${axis}`] }));
    const panel = drawCurves(figure, curves.filter(({ data }) => data.x.length), {
      log: Boolean(view.log[axis]), name: AXES[axis], chance: group.chance,
      label: `${split} ${group.metric} against ${AXES[axis]}; the table has the numbers`,
    }, heights[split]);
    follow(view, panel, axis);
  }
  for (const { name, text, figure } of view.measured) {
    const curves = shown.map((curve) => ({ ...curve, data: curve.measured[name] })).filter(({ data }) => data.x.length);
    const edges = curves.flatMap(({ data: { mean, spread } }) =>
      mean.flatMap((value, i) => [value - (spread[i] ?? 0), value + (spread[i] ?? 0)]));
    const names = { log: false, name: UNITS.step, chance: null, label: `${text} against steps` };
    follow(view, drawCurves(figure, curves, names, range(edges, 0.04)), "step");
  }
  for (const { study, figure } of view.studies) drawStudy(figure, study, group.metric);
  focus(view, null);
}

function height(curves, split, chance) {
  // The three panels of a split share their vertical axis.
  const values = curves.flatMap(({ panels }) => Object.keys(AXES).flatMap((axis) => {
    const { mean, spread, ends } = panels[`${split} ${axis}`];
    const edges = mean.flatMap((value, i) => [value - (spread[i] ?? 0), value + (spread[i] ?? 0)]);
    return [...edges, ...ends.map(({ y }) => y)];
  }));
  return range(chance === null ? values : [...values, chance], 0.04);
}

/** Mark one curve in all panels, the legend and the table; without one, that whose details are open. */
function focus(view, index) {
  const marked = index ?? (chosen?.view === view ? chosen.index : null);
  view.section.classList.toggle("focus", marked !== null && !view.hidden.has(marked));
  for (const made of view.section.querySelectorAll("[data-curve]"))
    made.classList.toggle("on", Number(made.dataset.curve) === marked);
}

const hover = (view, index) => ({ onpointerenter: () => focus(view, index), onpointerleave: () => focus(view, null) });

// ---- what the pointer is at ----

function follow(view, panel, axis) {
  const { drawing, cursor } = panel;
  drawing.addEventListener("pointermove", (event) => {
    const found = nearest(panel, event);
    focus(view, found.index);
    fill(cursor, { x1: found.pixel, x2: found.pixel, visibility: found.rows.length ? "visible" : "hidden" }, []);
    tell(found, axis, event);
  });
  drawing.addEventListener("pointerleave", () => {
    focus(view, null);
    cursor.setAttribute("visibility", "hidden");
    readout.hidden = true;
  });
  drawing.addEventListener("click", (event) => {
    const { index, distance } = nearest(panel, event);
    if (distance < 30) open(view, index, null);
  });
}

function tell(found, axis, event) {
  const rows = found.rows.sort((a, b) => a.away - b.away).slice(0, 9).sort((a, b) => b.mean - a.mean);
  const more = found.rows.length - rows.length;
  const lines = rows.map(({ index, style, label, mean, spread, count }) => {
    const value = `${score(mean)}${spread === null ? "" : ` ± ${score(spread)}`}`;
    const cells = [swatch(style), label, value, `${count} ${count === 1 ? "seed" : "seeds"}`];
    const near = index === found.index ? "near" : "";
    return element("tr", { class: near }, ...cells.map((content) => element("td", {}, content)));
  });
  readout.hidden = !rows.length && !found.ends.length;
  readout.replaceChildren(
    element("div", {}, `at ${compact(found.at)} ${UNITS[axis]}`),
    element("table", {}, element("tbody", {}, ...lines)),
    ...found.ends.map((end) => element("div", { class: "failed" }, `✕ ${end}`)),
    more > 0 ? `and ${more} more` : "");
  const { width, height: tall } = readout.getBoundingClientRect();
  const beside = event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16;
  readout.style.left = `${Math.max(4, beside)}px`;
  readout.style.top = `${Math.min(Math.max(4, event.clientY - tall / 2), innerHeight - tall - 4)}px`;
}

// ---- legend and switches ----

function legend(view) {
  const show = (wanted) => {
    view.group.curves.forEach((_, index) => {
      if (wanted(index)) view.hidden.delete(index);
      else view.hidden.add(index);
      toggles[index].setAttribute("aria-pressed", String(wanted(index)));
    });
    draw(view);
  };
  const toggle = (index) => {
    const hidden = new Set(view.hidden);
    if (!hidden.delete(index)) hidden.add(index);
    show((other) => !hidden.has(other));
  };
  const toggles = view.group.curves.map(({ label, style, sign, failures }, index) => element("button", {
    class: "toggle", type: "button", "aria-pressed": "true", title: "Hide or show; double-click: only this one",
    onclick: () => toggle(index), ondblclick: () => show((other) => other === index),
  }, swatch(style), element("span", {}, label),
  failures && element("span", { class: MOOD[sign] }, `${sign} ${failures}`)));
  const entries = view.group.curves.map(({ label, style }, index) => {
    const opener = element("button", {
      class: "more", type: "button", "aria-label": `Configuration of ${label}`,
      onclick: () => open(view, index, opener),
    }, "config");
    return ink(element("li", { "data-curve": index, ...hover(view, index) }, toggles[index], opener), style);
  });
  const boxes = ["seconds", "oracle_calls"].map((axis) => {
    const change = (event) => {
      view.log[axis] = event.target.checked;
      draw(view);
    };
    const box = element("input", { type: "checkbox", name: axis, checked: view.log[axis], onchange: change });
    return element("label", {}, box, `log ${axis.replace("_", " ")}`);
  });
  const all = element("button", { type: "button", onclick: () => show(() => true) }, "show all");
  const none = element("button", { type: "button", onclick: () => show(() => false) }, "hide all");
  return {
    entries: element("ul", { class: "legend", "aria-label": "Curves" }, ...entries),
    switches: element("div", { class: "switches" }, all, none, ...boxes),
  };
}

// ---- table ----

function table(view) {
  const { experiment: name, curves, columns, scores } = view.group;
  const rows = curves.map((_, index) => tableRow(view, index));
  for (let column = 0; column < scores && curves.length > 1; column++) {
    const finished = curves.map(({ cells }) => (cells[column].complete ? cells[column].value : null));
    const best = range(finished.map((value) => value ?? NaN))[1];
    finished.forEach((value, index) => rows[index].rows[0].cells[column + 2].classList.toggle("best", value === best));
  }
  const heads = ["curve", "runs", ...columns].map((title, column) => {
    const button = element("button", { type: "button", onclick: () => sort(column) }, title);
    return element("th", { scope: "col", class: ["name", "state"][column] ?? "" }, button);
  });
  const whole = element("table", {}, element("thead", {}, element("tr", {}, ...heads)));
  const sort = (column) => {
    const before = heads[column].getAttribute("aria-sort");
    const down = before ? before === "ascending" : column > 1; // numbers: the largest first
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = rows.map((row) => ({ row, ...sortKey(curves[row.dataset.curve], column) }));
    order.sort((a, b) => a.rank - b.rank || (a.key < b.key ? -1 : a.key > b.key ? 1 : 0) * (down ? -1 : 1));
    whole.append(...order.map(({ row }) => row));
  };
  sort(3); // by the final test score
  const partial = rows.some((row) => row.querySelector(".partial"));
  const foot = [
    "Mean ± standard deviation over the runs that finished.",
    "Best: the highest of all evaluations of a run, chosen with hindsight.",
    partial ? "† No run finished: the last values before they stopped." : "",
  ];
  const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-label": `Results of ${name}` };
  return element("div", {}, element("div", scroll, whole), element("p", { class: "foot" }, foot.join(" ")));
}

function tableRow(view, index) {
  const { label, style, sign, state, reasons, cells } = view.group.curves[index];
  const name = element("button", { type: "button" }, swatch(style), element("span", {}, label));
  const mark = element("span", { class: MOOD[sign] }, `${sign} ${state}`);
  const numbers = cells.map(({ text, complete }) =>
    element("td", { class: complete ? "" : "partial" }, complete ? text : `${text} †`));
  const row = element("tr", {}, element("th", { class: "name", scope: "row" }, name),
    element("td", { class: "state" }, mark), ...numbers);
  const why = reasons.map((reason) => element("div", { class: "reason" }, reason));
  const below = why.length > 0 && element("tr", {}, element("td", { class: "why", colspan: cells.length + 2 }, ...why));
  // A click on the button is a click on the row.
  const attributes = { "data-curve": index, onclick: () => open(view, index, name), ...hover(view, index) };
  return element("tbody", attributes, row, below);
}

function sortKey({ label, runs, cells }, column) {
  if (column === 0) return { rank: 0, key: label.toLowerCase() };
  if (column === 1) return { rank: 0, key: runs.filter(({ state }) => state !== "finished").length };
  const { value, complete } = cells[column - 2];
  return { rank: value === null ? 2 : complete ? 0 : 1, key: value }; // what did not finish comes last, either way
}

// ---- the details of a curve ----

function open(view, index, opener) {
  chosen = { view, index, opener };
  const { label, style, state, reasons, warnings, config, runs, manifest } = view.group.curves[index];
  const { experiment: name, metric } = view.group;
  const cell = (text, kind = "") => element("td", { class: kind }, text);
  const row = (...cells) => element("tr", {}, ...cells);
  const keyed = ({ key, value }, ...more) =>
    row(element("th", { scope: "row" }, ...breakable(key)), cell(value, "value"), ...more);
  const part = (title, kind, heads, rows) => {
    const head = element("thead", {}, row(...heads.map((text) => element("th", { scope: "col" }, text))));
    return [element("h3", {}, title), element("table", { class: kind }, head, element("tbody", {}, ...rows))];
  };
  const run = ({ seed, state: how, scores, folder }) => row(cell(seed),
    cell(how, { finished: "", running: "waiting" }[how] ?? "failed"),
    cell(scores.map((value) => (value === null ? "–" : score(value))).join(" / "), "value"), cell(folder));
  details.replaceChildren(
    element("button", { class: "close", type: "button", "aria-label": "Close", onclick: shut }, "×"),
    element("h2", { id: "details-title", tabindex: "-1" }, swatch(style), element("span", {}, label)),
    element("p", { class: "summary" }, `${name} · ${state}`),
    ...[...reasons, ...warnings].map((reason) => element("p", { class: "note" }, reason)),
    ...part("Configuration", "config", ["setting", "value", "source"], config.map((line) => keyed(line, source(line)))),
    ...part("Runs", "runs", ["seed", "state", `last train / test ${metric}`, "folder"], runs.map(run)),
    ...part("Versions, hardware and data", "manifest", ["what", "value"], manifest.map((line) => keyed(line))));
  details.hidden = false;
  details.scrollTop = 0;
  document.body.classList.add("open");
  readout.hidden = true;
  for (const other of views) focus(other, null);
  details.querySelector("h2").focus({ preventScroll: true });
}

/** A dotted key that may be broken after its dots. */
const breakable = (key) => key.split(".").flatMap((part, i) => (i ? [".", element("wbr"), part] : [part]));

function source({ source: text }) {
  const [kind, ...rest] = text.split(":");
  const chip = element("span", { class: "chip", "data-kind": kind.toLowerCase() }, kind);
  return element("td", { class: "from" }, text && chip, rest.join(":"));
}

function shut() {
  const opener = chosen?.opener;
  chosen = null;
  details.hidden = true;
  document.body.classList.remove("open");
  for (const view of views) focus(view, null);
  opener?.focus({ preventScroll: true });
}

// ---- all of it ----

const views = groups.map(experiment);
const sections = views.map(({ section }) => section);
document.getElementById("groups").append(...notes.map((note) => element("p", { class: "note" }, note)), ...sections);
if (groups.length > 1) {
  const links = groups.map((group, number) => element("a", { href: `#experiment-${number}` }, group.experiment));
  document.getElementById("contents").append(...links);
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") shut();
});
for (const view of views) {
  let drawn = 0;
  const fit = ([{ contentRect: { width } }]) => {
    if (Math.abs(width - drawn) > 1) draw(view);
    drawn = width;
  };
  new ResizeObserver(fit).observe(view.section);
}
