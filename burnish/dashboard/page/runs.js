// The list of runs: state, a small curve, findings; some can be selected and compared.

import { address, ago, api, el, every, figure, fill, heads, redraw } from "./app.js";

const SVG = "http://www.w3.org/2000/svg";
const selected = new Set();

export function spark(values, width = 120, height = 26) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("class", "spark");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", `from ${figure(values[0])} to ${figure(values.at(-1))}`);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (i) => (i / Math.max(1, values.length - 1)) * (width - 2) + 1;
  const y = (value) => height - 2 - ((value - low) / (high - low || 1)) * (height - 4);
  const points = values.map((value, i) => `${x(i)},${y(value)}`);
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", points.join(" "));
  picture.append(line);
  return picture;
}

export function finding(one) {
  const title = `step ${one.step}: ${one.evidence}. Try: ${one.remedy}`;
  return el("span", { class: `badge ${one.severity}`, title }, one.rule);
}

export async function runs(main) {
  let shown = [];
  let total = 0;
  const filter = el("input", { type: "search", placeholder: "filter runs", "data-filter": true, oninput: draw });
  const compare = el("a", { class: "button" }, "compare");
  const body = el("tbody");
  const more = el("button", { onclick: () => load(shown.length + 1) }, "more");

  function row(run) {
    const box = el("input", {
      type: "checkbox", "aria-label": `select ${run.run}`, checked: selected.has(run.run),
      onchange: () => { box.checked ? selected.add(run.run) : selected.delete(run.run); count(); },
    });
    const values = run.spark?.values ?? [];
    return el("tr", {},
      el("td", {}, box),
      el("td", {}, el("a", { href: address("curves", { run: run.run }), "data-row": true }, run.run)),
      el("td", {}, el("span", { class: `badge ${run.state}` }, run.state), run.problem && ` ${run.problem}`),
      el("td", { class: "number" }, run.step == null ? "" : `${run.step}${run.steps ? ` / ${run.steps}` : ""}`),
      el("td", { title: run.spark?.name }, values.length > 1 && spark(values)),
      el("td", { class: "number" }, values.length ? figure(values.at(-1)) : ""),
      el("td", {}, run.findings.map(finding)),
      el("td", { class: "wide faint" }, ago(Date.now() / 1000 - run.changed)));
  }

  function count() {
    compare.textContent = selected.size > 1 ? `compare ${selected.size} runs` : "compare";
    compare.toggleAttribute("aria-disabled", selected.size < 2);
    if (selected.size > 1) compare.href = address("curves", { run: [...selected] });
    else compare.removeAttribute("href");
  }

  function draw() {
    const wanted = filter.value.toLowerCase();
    redraw(body, shown.filter((run) => run.run.toLowerCase().includes(wanted)).map(row));
    more.hidden = shown.length >= total;
    count();
  }

  async function load(atLeast) {
    const found = [];
    do {
      const part = await api("runs", { start: found.length });
      found.push(...part.runs);
      total = part.total;
      if (!part.runs.length) break;
    } while (found.length < Math.min(atLeast, total));
    shown = found;
    draw();
  }

  await load(1);
  fill(main,
    el("div", { class: "bar" }, filter, compare),
    el("table", { class: "runs" }, heads(["", "run", "state", "step", "reward", "", "findings", "changed"], ["changed"]), body),
    total ? null : el("p", {}, "There is no run in these folders yet."),
    more);
  every(4, () => load(shown.length));
}
