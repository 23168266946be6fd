"use strict";
const charts = JSON.parse(document.getElementById("charts").textContent);
const pages = JSON.parse(document.getElementById("texts").textContent);
const isDark = matchMedia("(prefers-color-scheme: dark)");
// Both sets have a contrast of at least 3:1 to their background.
const COLORS = {
  light: ["#1f5fa8", "#c0392b", "#1e7d32", "#7d3c98", "#b35900", "#00808a", "#c2187a", "#6b5b00", "#5d4037", "#1a237e"],
  dark: ["#6cb0f5", "#ff8a7a", "#6fcf80", "#cf9bea", "#f5a04d", "#4cc9d4", "#ff86c3", "#d9c44a", "#c9a28f", "#a3adff"],
};
// Smallest distance between two labels of an axis, and the largest width of a narrow chart, in pixels.
const MIN_TICK_GAP = 44, NARROW = 500;
const color = (line) => COLORS[isDark.matches ? "dark" : "light"][line % 10];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const plot = (number) => document.getElementById("chart-" + number);
const controls = (number, kind) => document.querySelectorAll(`input[data-chart="${number}"][data-${kind}]`);

function switches(number) {
  return Object.fromEntries([...controls(number, "switch")].map((box) => [box.dataset.switch, box.checked]));
}

function withTheme(trace, number) {
  // Beside a heat map, the color bar would leave no room for the map on a phone.
  const above = plot(number).clientWidth < NARROW
    ? { orientation: "h", x: 1, xanchor: "right", lenmode: "pixels", len: 180, y: 1, yanchor: "bottom" } : {};
  if (trace.type === "heatmap") {
    const bar = { ...trace.colorbar, ...above };
    return { ...trace, colorbar: { ...bar, title: { ...bar.title, side: "top" } } };
  }
  const box = [...controls(number, "line")][trace.meta], isHidden = trace.name === "seeds" && !switches(number).seeds;
  const paint = { color: trace.line.dash === "dot" ? style("--faint") : color(trace.meta) };
  return { ...trace, visible: box.checked && !isHidden, line: { ...trace.line, ...paint },
    marker: { ...trace.marker, ...paint }, error_y: trace.error_y && { ...trace.error_y, ...paint } };
}

function draw(number) {
  const { data, layout } = charts[number], states = switches(number);
  const theme = { gridcolor: style("--line"), zerolinecolor: style("--line"), automargin: true,
    exponentformat: "power" };
  const scaled = (axis, name) => {
    const type = name in states ? (states[name] ? "log" : "linear") : axis.type;
    const text = type === "log" ? axis.title.text : axis.title.text.replace(" (log scale)", "");
    const ticks = name === "log x" && axis.tickvals
      ? { tickvals: spacedTicks(axis.tickvals, type, plot(number).clientWidth), tickformat: ",d" } : {};
    return { ...theme, ...axis, ...ticks, type, title: { text } };
  };
  return Plotly.react(plot(number), data.map((trace) => withTheme(trace, number)), {
    height: 360, margin: { l: 56, r: 16, t: 12, b: 48 }, showlegend: false, hovermode: "closest",
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: style("--ink"), family: "system-ui, sans-serif" },
    ...layout, xaxis: scaled(layout.xaxis, "log x"), yaxis: scaled(layout.yaxis, "log y"),
    shapes: (layout.shapes || []).map((shape) => ({ ...shape, fillcolor: style("--area"), line: { width: 0 } })),
  }, { displayModeBar: false, responsive: true });
}

// The first and the last value, and those between them whose labels fit into the width.
function spacedTicks(values, type, width) {
  const place = type === "log" ? Math.log : Number, last = values[values.length - 1];
  const gap = (place(last) - place(values[0])) * MIN_TICK_GAP / Math.max(width, 2 * MIN_TICK_GAP);
  const kept = [];
  for (const value of values.slice(0, -1)) {
    const isFar = !kept.length || place(value) - place(kept[kept.length - 1]) >= gap;
    if (isFar && (!kept.length || place(last) - place(value) >= gap)) kept.push(value);
  }
  return [...kept, last];
}

// Cut labels have their full text as a tooltip. Screen readers read the points and the table, not the drawing.
function nameParts(number) {
  const names = charts[number].ticks;
  for (const label of plot(number).querySelectorAll(".ytick text")) {
    const name = names[label.textContent];
    if (name === undefined || label.querySelector("title")) continue;
    label.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "title")).textContent = name;
  }
  plot(number).style.minHeight = "auto";
  for (const part of plot(number).children) part.setAttribute("aria-hidden", "true");
}

function paintSwatches() {
  for (const swatch of document.querySelectorAll(".swatch")) {
    swatch.style.color = "color" in swatch.dataset ? color(Number(swatch.dataset.color)) : style("--faint");
  }
}

// All visible points of a chart, in the order of its traces.
function points(number) {
  return plot(number).data.flatMap((trace, curveNumber) => trace.visible === false ? []
    : trace.type === "heatmap" ? trace.text.flatMap((row, y) => row.map((text, x) => ({ curveNumber, pointNumber: [y, x], text })))
    : trace.text.map((text, pointNumber) => ({ curveNumber, pointNumber, text })));
}

const plain = (text) => new DOMParser().parseFromString(text.replaceAll("<br />", " ").replaceAll("<br>", "; "), "text/html").body.textContent;
const positions = new Map();

function readPoint(event, number) {
  const all = points(number), at = positions.get(number) ?? -1;
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
  if (next === undefined || !all[next]) return;
  event.preventDefault();
  positions.set(number, next);
  const { text, ...point } = all[next];
  Plotly.Fx.hover(plot(number), [point]);
  document.getElementById("point-" + number).textContent = plain(text);
}

document.addEventListener("change", ({ target }) => {
  if (!target.dataset.chart) return;
  positions.delete(Number(target.dataset.chart));
  draw(Number(target.dataset.chart));
});
isDark.addEventListener("change", () => { paintSwatches(); charts.forEach((chart, number) => draw(number)); });
for (const details of document.querySelectorAll("details.texts")) {
  details.addEventListener("toggle", () => {
    if (details.querySelector("iframe")) return;
    const frame = document.createElement("iframe");
    frame.title = "texts with their influential tokens";
    frame.setAttribute("sandbox", "allow-scripts");
    frame.srcdoc = pages[Number(details.dataset.text)];
    details.append(frame);
  });
}

// One chart per task of the browser, so that the page answers between charts.
async function drawAll() {
  paintSwatches();
  for (let number = 0; number < charts.length; number += 1) {
    try {
      await draw(number);
      plot(number).on("plotly_afterplot", () => nameParts(number));
      nameParts(number);
      plot(number).addEventListener("keydown", (event) => readPoint(event, number));
    } catch (error) {
      // The other charts are drawn.
      console.error(error);
      document.getElementById("point-" + number).textContent = "This chart cannot be drawn; the table has its numbers.";
    }
    await new Promise((resolve) => setTimeout(resolve));
  }
  document.body.dataset.ready = charts.length;
}
drawAll();
