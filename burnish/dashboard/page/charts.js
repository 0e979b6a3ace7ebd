// Curves over steps with plotly's own script, which is loaded when the first chart is drawn.

import { el } from "./app.js";

const COLOURS = ["#2563a8", "#d97706", "#15803d", "#b91c1c", "#7c3aed", "#0e7490", "#be185d", "#4d7c0f"];
const OPTIONS = { displayModeBar: false, responsive: true }; // dragging zooms, a double click shows all
let script;

export const colourOf = (i) => COLOURS[i % COLOURS.length];

export const chartCard = (name) =>
  el("section", { class: "card", "data-metric": name }, el("h3", {}, name), el("div", { class: "chart" }));

export function plotly() {
  script ??= new Promise((resolve, reject) => {
    document.head.append(el("script", { src: "page/plotly.min.js", onload: () => resolve(window.Plotly), onerror: reject }));
  });
  return script;
}

// Plotly reads a name as a kind of HTML; so this one has none.
export const plain = (name) => name.replace(/[<>&%]/g, (found) => ({ "<": "‹", ">": "›", "&": "＆", "%": "％" })[found]);

function colours() {
  const style = getComputedStyle(document.documentElement);
  const [ink, line, paper] = ["--ink", "--line", "--paper"].map((name) => style.getPropertyValue(name).trim());
  return { ink, line, paper };
}

export function layout(more = {}) {
  const { ink, line, paper } = colours();
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line };
  return {
    height: 230, margin: { l: 52, r: 12, t: 6, b: 32 }, paper_bgcolor: paper, plot_bgcolor: paper, showlegend: false,
    font: { color: ink, size: 11, family: "system-ui, sans-serif" }, hovermode: "x unified",
    hoverlabel: { bgcolor: paper, font: { color: ink } }, uirevision: "kept",
    ...more, xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis },
  };
}

export async function draw(place, traces, more) {
  const Plotly = await plotly();
  await Plotly.react(place, traces, layout(more), OPTIONS);
}

// An exponential mean whose first values count as much as later ones; gaps stay gaps.
export function smooth(values, weight) {
  let sum = 0;
  let count = 0;
  return values.map((value) => {
    if (value == null) return null;
    sum = weight * sum + (1 - weight) * value;
    count = weight * count + (1 - weight);
    return sum / count;
  });
}

// The traces of one metric of several runs: each value, and over it the smoothed curve.
export function curveTraces(series, weight) {
  return series.flatMap(({ run, steps, values }, i) => {
    const common = { x: steps, type: "scatter", mode: steps.length > 1 ? "lines" : "markers" };
    const color = colourOf(i);
    const raw = { ...common, y: values, opacity: 0.3, hoverinfo: "skip", line: { color, width: 1 } };
    const main = {
      ...common, y: weight ? smooth(values, weight) : values, name: plain(run), line: { color, width: 2 }, marker: { color },
    };
    return weight ? [raw, main] : [main];
  });
}
