"use strict";
const study = JSON.parse(document.getElementById("study").textContent);
const panel = document.getElementById("panel"), groupMenu = document.getElementById("group");
const kindMenu = document.getElementById("kind"), texts = document.getElementById("texts");
const targets = new Map();
let active = null, highlighted = [];

function append(parent, name, text, classes) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (classes) element.className = classes;
  parent.append(element);
  return element;
}

function appendTable(title, header, rows) {
  const table = append(panel, "table");
  append(table, "caption", title);
  const headerRow = append(table, "tr");
  for (const name of header) append(headerRow, "th", name).scope = "col";
  for (const row of rows) {
    const line = append(table, "tr");
    row.forEach((cell, column) => append(line, "td", cell, header[column] === "text" ? "text" : ""));
  }
}

const matches = (target) => kindMenu.value === "" || target.kinds.includes(Number(kindMenu.value));
const source = () => study.groups[groupMenu.value][2];
const nats = (loss) => loss.toFixed(3);

function describe(target) {
  panel.replaceChildren();
  const gap = target.loss_short - target.loss_long, selection = target.selections[groupMenu.value];
  append(panel, "h2", "Target " + JSON.stringify(target.spans[target.index].textContent));
  append(panel, "p", "token " + target.place + " of the document; " +
    (target.clear ? "clear gain" : "no clear gain") + "; " + target.kinds.map((kind) => study.kinds[kind]).join(", "));
  appendTable("loss, nats", ["near", "near + far", "gain", "gain, other text"],
    [[target.loss_short, target.loss_long, gap, target.loss_short - target.loss_other].map(nats)]);
  if (!selection) {
    append(panel, "p", "The study did not measure this selection for this target.");
    return;
  }
  const total = target.divergence_short, tokens = selection.chosen;
  appendTable("with k far " + study.units, ["k", "loss", "prediction"], study.ks.map((k, index) => [k,
    nats(selection.losses[index]), total > 1e-5 ? (1 - selection.divergences[index] / total).toFixed(2) : "no change"]));
  if (!tokens.length) append(panel, "p", "The losses are means over random selections, so there is no list.");
  else appendTable("selected " + study.units + ", in order", ["text", "distance", "gain"],
    tokens.map(([distance, gain, text]) => [JSON.stringify(text), distance, nats(gain)]));
  const outside = tokens.filter(([distance]) => target.index - distance < 0).length;
  if (source() !== "own") append(panel, "p", "These are from another context, so the page does not highlight them.");
  else if (outside) append(panel, "p", "Number of them before this excerpt: " + outside + ".");
}

function highlight(target) {
  for (const span of highlighted) span.classList.remove("near", "border", "selected", "active");
  highlighted = [];
  if (!target) return;
  const mark = (index, name) => {
    if (index >= 0) highlighted.push(target.spans[index]);
    target.spans[index]?.classList.add(name);
    return target.spans[index];
  };
  mark(target.index, "active");
  for (let distance = 1; distance <= study.near; distance += 1) mark(target.index - distance, "near");
  mark(target.index - study.near, "border");
  const selection = target.selections[groupMenu.value];
  if (!selection || source() !== "own") return;
  const largest = Math.max(...selection.chosen.map(([, gain]) => gain), 1e-9);
  for (const [distance, gain, , length] of selection.chosen) {
    for (let offset = 0; offset < length; offset += 1) {
      const span = mark(target.index - distance - offset, "selected");
      span?.style.setProperty("--gain-share", Math.max(0, gain / largest).toFixed(3));
    }
  }
}

function activate(span) {
  const target = targets.get(span);
  if (!target || !matches(target)) return;
  if (active) active.tabIndex = -1;
  active = span;
  active.tabIndex = 0;
  describe(target);
  highlight(target);
}

function refresh() {
  const visibleSpans = [];
  for (const [span, target] of targets) {
    span.classList.toggle("filtered", !matches(target));
    span.tabIndex = -1;
    if (matches(target)) visibleSpans.push(span);
  }
  document.getElementById("count").textContent = visibleSpans.length + " of " + targets.size + " targets are displayed.";
  const next = visibleSpans.includes(active) ? active : visibleSpans[0];
  active = null;
  panel.replaceChildren();
  highlight(null);
  if (next) activate(next);
  else append(panel, "p", "The page has no target of this kind.");
}

function move(event) {
  const visibleSpans = [...targets.keys()].filter((span) => matches(targets.get(span)));
  const index = visibleSpans.indexOf(active);
  const next = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1, Home: 0,
    End: visibleSpans.length - 1 }[event.key];
  if (next === undefined || !targets.has(event.target)) return;
  event.preventDefault();
  if (visibleSpans[next]) visibleSpans[next].focus();
}

for (const text of study.documents) {
  const section = append(texts, "section");
  append(section, "h2", text.name + ", from token " + text.start);
  const body = append(section, "div", undefined, "text");
  body.dir = "auto";
  const spans = text.tokens.map((token) => append(body, "span", token, token === "" ? "empty"
    : /^[\r\n]/.test(token) ? "line" : /[\u202a-\u202e\u2066-\u2069]/.test(token) ? "bidirectional" : ""));
  for (const target of text.targets) {
    const index = target.place - text.start, span = spans[index], gap = target.loss_short - target.loss_long;
    targets.set(span, Object.assign(target, { spans, index }));
    span.classList.add("target");
    span.classList.toggle("unclear", !target.clear);
    span.setAttribute("role", "button");
    span.setAttribute("aria-label", "target " + JSON.stringify(span.textContent));
    span.style.setProperty("--gap-share", Math.min(1, Math.max(0, gap / 4)).toFixed(3));
  }
}
study.groups.forEach((group, index) => { append(groupMenu, "option", group.join(", ")).value = index; });
study.kinds.forEach((kind, index) => { append(kindMenu, "option", kind).value = index; });
groupMenu.value = study.first;
document.getElementById("title").textContent = document.title = "Influence of far tokens in " + study.model;
for (const line of study.notes) append(document.getElementById("notes"), "p", line);
texts.addEventListener("mouseover", (event) => activate(event.target));
texts.addEventListener("focusin", (event) => activate(event.target));
texts.addEventListener("keydown", move);
groupMenu.addEventListener("change", refresh);
kindMenu.addEventListener("change", refresh);
refresh();
