// Views of one run, or of several next to each other: curves, times and failures, state, configuration.

import { ago, api, change, el, every, figure, fill } from "./app.js";
import { COLOURS, curveTraces, draw, plain, plotly } from "./charts.js";
import { finding } from "./runs.js";

const FIRST = [
  "critic/score/mean", "train/loss", "val/loss", "accuracy", "rollout/entropy", "actor/entropy", "actor/grad_norm",
  "response_length/mean", "actor/ppo_kl", "actor/pg_clipfrac", "groups/useful_ratio",
];
const PRESETS = {
  main: { test: (name) => FIRST.includes(name) || name.startsWith("val-core/") },
  rewards: /^(critic\/(score|rewards|advantages)|accuracy|reward)/,
  update: /^(actor|critic)\/(?!score|rewards|advantages|returns|values)/,
  lengths: /length|turns|tool_call/,
  rollout: /^(rollout|training\/rollout|rollout_corr)/,
  speed: /^perf\//,
  failures: /^(failures|val-failures)\//,
};
const PHASES = [
  "gen", "reward", "old_log_prob", "ref", "values", "process_reward", "adv", "describe", "update_critic", "update_actor",
  "update_weights", "testing", "save_checkpoint",
];
const MOST = 24; // charts at a time

const legend = (runs) => runs.length > 1 && el("p", { class: "legend" }, runs.map((run, i) => {
  const dot = el("span", { class: "dot" });
  dot.style.background = COLOURS[i % COLOURS.length];
  return el("span", {}, dot, run);
}));

// Series of several runs that grow: {name: [{run, steps, values}]}.
async function grow(known, runs, names) {
  for (const run of runs) {
    let mine = (known[run] ??= { file: null, series: {} });
    const isNew = names.some((name) => !mine.series[name]);
    const last = Math.max(-1, ...names.map((name) => mine.series[name]?.steps.at(-1) ?? -1));
    let found = await api("metrics", { run, name: names, after: isNew ? null : last });
    const wasReplaced = mine.file !== null && mine.file !== found.file; // as by a run that resumes
    if (wasReplaced) {
      mine = known[run] = { series: {} };
      found = await api("metrics", { run, name: names });
    }
    for (const [name, part] of Object.entries(found.series)) {
      const before = isNew || wasReplaced ? { steps: [], values: [] } : mine.series[name];
      mine.series[name] = { steps: before.steps.concat(part.steps), values: before.values.concat(part.values) };
    }
    mine.file = found.file;
  }
  return (name) => runs.map((run) => ({ run, ...(known[run].series[name] ?? { steps: [], values: [] }) }))
    .filter((one) => one.steps.length);
}

export async function curves(main, there) {
  plotly(); // loads while the data does
  const abouts = await Promise.all(there.run.map((run) => api("run", { run })));
  const names = [...new Set(abouts.flatMap((about) => about.metrics))].sort();
  const known = {};
  const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : 3.5); // validation after rewards and losses
  const preset = (pattern) => names.filter((name) => pattern.test(name)).sort((a, b) => rank(a) - rank(b));
  let chosen = (there.m ?? "").split(",").filter((name) => names.includes(name));
  if (!chosen.length) chosen = preset(PRESETS.main).slice(0, MOST);

  const weight = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: there.smooth ?? 0.6, "aria-label": "smoothing", oninput: () => {
    change({ smooth: weight.value }, true);
    drawAll();
  } });
  const log = el("input", { type: "checkbox", onchange: () => drawAll() });
  const filter = el("input", { type: "search", placeholder: "filter metrics", "data-filter": true, oninput: list });
  const choices = el("div", { class: "choices" });
  const grid = el("div", { class: "grid" });
  const cards = new Map();

  function choose(next) {
    chosen = next.slice(0, MOST);
    change({ m: chosen.join(",") }, true);
    list();
    return refresh();
  }
  function list() {
    const wanted = filter.value.toLowerCase();
    fill(choices, ...names.filter((name) => name.toLowerCase().includes(wanted)).map((name) => el("label", {},
      el("input", { type: "checkbox", checked: chosen.includes(name), onchange: (event) =>
        choose(event.target.checked ? [...chosen, name] : chosen.filter((one) => one !== name)) }), name)));
  }
  let of = () => []; // the series of a metric
  async function drawAll() {
    for (const [name, card] of cards) if (!chosen.includes(name)) { card.remove(); cards.delete(name); }
    for (const name of chosen) {
      if (!cards.has(name)) cards.set(name, el("section", { class: "card", "data-metric": name }, el("h3", {}, name), el("div", { class: "chart" })));
      grid.append(cards.get(name));
    }
    const yaxis = log.checked ? { type: "log" } : {};
    await Promise.all(chosen.map((name) => draw(cards.get(name).lastChild, curveTraces(of(name), +weight.value), { yaxis })));
  }
  async function refresh() {
    if (!chosen.length) return drawAll();
    of = await grow(known, there.run, chosen);
    await drawAll();
  }

  const presets = Object.entries(PRESETS).map(([title, pattern]) => [title, preset(pattern)])
    .filter(([, some]) => some.length).map(([title, some]) => el("button", { onclick: () => choose(some) }, title));
  list();
  fill(main,
    el("h1", {}, there.run.length > 1 ? `${there.run.length} runs` : there.run[0]), legend(there.run),
    el("div", { class: "bar" }, presets, el("label", {}, "smoothing ", weight), el("label", {}, log, "log scale")),
    names.length ? null : el("p", {}, "No step is logged yet."),
    el("div", { class: "split" }, el("details", { class: "chooser", open: window.innerWidth > 720 }, el("summary", {}, "metrics"), filter, choices), grid));
  await refresh();
  every(3, async () => {
    if (!names.length && (await api("run", { run: there.run[0] })).metrics.length) return curves(main, there);
    return refresh();
  });
}

export async function time(main, there) {
  plotly();
  const [run] = there.run;
  const about = await api("run", { run });
  const phases = about.metrics.filter((name) => name.startsWith("timing_s/")).map((name) => name.slice(9));
  const own = PHASES.filter((phase) => phases.includes(phase));
  const others = about.metrics.filter((name) => /^failures\/|^perf\/max_memory|memory/.test(name)).slice(0, 12);
  const parts = phases.filter((phase) => ["engine", "reward_model"].includes(phase));
  const names = [...phases.map((phase) => `timing_s/${phase}`), ...others];
  const known = {};
  const bars = el("div", { class: "chart" });
  const line = el("div", { class: "timeline" });
  const number = el("input", { type: "number", value: there.step ?? "", "aria-label": "step", "data-filter": true, onchange: () => {
    change({ step: number.value }, true);
    timeline();
  } });
  const cards = others.map((name) => el("section", { class: "card", "data-metric": name }, el("h3", {}, name), el("div", { class: "chart" })));
  let of = () => [];

  const at = (phase, step) => {
    const found = of(`timing_s/${phase}`)[0];
    return found ? found.values[found.steps.indexOf(step)] : undefined;
  };
  function timeline() {
    const steps = of("timing_s/step")[0]?.steps ?? [];
    const step = number.value === "" ? steps.at(-1) : +number.value;
    const total = at("step", step);
    if (!total) return fill(line, el("p", { class: "faint" }, "This step is not logged."));
    let start = 0;
    const taken = own.map((phase) => [phase, at(phase, step) ?? 0]).filter(([phase, seconds]) => seconds > 0 && phase !== "save_checkpoint");
    const sum = taken.reduce((all, [, seconds]) => all + seconds, 0);
    const end = Math.max(total, sum); // where roles run at the same time, phases are longer than the step
    const rows = taken.map(([phase, seconds]) => {
      const bar = el("div", { class: "phase", title: `${Math.round((100 * seconds) / total)}% of the step` });
      bar.style.left = `${(100 * start) / end}%`;
      bar.style.width = `${(100 * seconds) / end}%`;
      bar.style.background = COLOURS[own.indexOf(phase) % COLOURS.length];
      start += seconds;
      return el("div", { class: "lane" }, el("span", {}, `${phase} ${figure(seconds)} s`), el("div", { class: "track" }, bar));
    });
    fill(line,
      el("p", {}, `step ${step}: ${figure(total)} s in all`, parts.map((part) => at(part, step) && `, ${part} ${figure(at(part, step))} s`),
        total > sum && `, ${figure(total - sum)} s in no phase`), ...rows);
  }
  async function refresh() {
    of = await grow(known, [run], names);
    const traces = own.map((phase, i) => ({ type: "bar", name: plain(phase), x: of(`timing_s/${phase}`)[0]?.steps, y: of(`timing_s/${phase}`)[0]?.values, marker: { color: COLOURS[i % COLOURS.length] } }));
    await draw(bars, traces, { barmode: "stack", height: 280, showlegend: true, yaxis: { title: { text: "seconds" } } });
    if (!bars.dataset.clicks) {
      bars.dataset.clicks = "heard";
      bars.on("plotly_click", (event) => { number.value = event.points[0].x; number.dispatchEvent(new Event("change")); });
    }
    timeline();
    await Promise.all(others.map((name, i) => draw(cards[i].lastChild, curveTraces(of(name), 0))));
  }
  fill(main,
    el("h1", {}, run), there.run.length > 1 && el("p", { class: "faint" }, "This view shows the first of the runs."),
    el("section", { class: "card" }, el("h3", {}, "phases of each step"), bars),
    el("section", { class: "card" }, el("h3", {}, "one step ", number), line),
    el("h2", {}, "failures and memory"), others.length ? el("div", { class: "grid" }, cards) : el("p", { class: "faint" }, "No failures are logged."));
  if (!phases.length) return main.append(el("p", {}, "No times are logged yet."));
  await refresh();
  every(3, refresh);
}

export async function state(main, there) {
  const [run] = there.run;
  const verdict = el("pre", { class: "text" });
  const area = el("div");
  const fact = (name, value) => value != null && value !== "" && [el("dt", {}, name), el("dd", {}, value)];
  const when = (time) => (typeof time === "number" ? new Date(time * 1000).toLocaleString() : "");

  async function refresh() {
    const { status, events, state, step, steps } = await api("run", { run });
    const stacks = el("pre", { class: "text", hidden: true });
    const showStacks = async () => { stacks.textContent = (await api("stacks", { run, name: status.stacks })).text; stacks.hidden = false; };
    fill(area,
      el("dl", { class: "facts" }, fact("state", el("span", { class: `badge ${state}` }, state)), fact("step", step != null && `${step}${steps ? ` of ${steps}` : ""}`),
        fact("logged", ago(status.logged_s)), fact("held by", status.held_by), fact("error", status.error && JSON.stringify(status.error))),
      el("h2", {}, "findings"), status.findings.length ? status.findings.map((one) => el("p", {}, finding(one), ` step ${one.step}: ${one.evidence}. Try: ${one.remedy}`)) : el("p", { class: "faint" }, "none"),
      el("h2", {}, "processes and their longest waits"),
      status.processes.length ? el("table", {}, el("thead", {}, el("tr", {}, ["process", "seconds", "kind", "owner", "waits for", "limit"].map((head) => el("th", {}, head)))),
        el("tbody", {}, status.processes.map((one) => (one.waits.length ? one.waits : [{}]).map((wait, i) => el("tr", {},
          el("td", { title: one.where }, i ? "" : one.name), el("td", { class: "number" }, wait.age == null ? "no waits" : figure(wait.age + (["starting", "running", "silent"].includes(state) ? one.silent_s : 0))),
          el("td", {}, wait.kind), el("td", {}, wait.owner), el("td", {}, wait.subject), el("td", { class: "number" }, wait.limit)))))) : el("p", { class: "faint" }, "none is known"),
      status.stacks && el("p", {}, el("button", { onclick: showStacks }, `show ${status.stacks}`)), stacks,
      el("h2", {}, "events"),
      el("table", { class: "events" }, el("tbody", {}, [...events].reverse().map(({ time, kind, ...rest }) => el("tr", { class: /bad|late|restart|fail|lost/.test(kind) ? "failure" : "" },
        el("td", { class: "faint" }, when(time)), el("td", {}, kind), el("td", {}, Object.entries(rest).map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ")))))));
  }
  const check = async () => {
    verdict.textContent = "reading all metrics";
    verdict.textContent = (await api("health", { run })).verdict;
  };
  fill(main, el("h1", {}, run), area, el("h2", {}, "verdict"), el("button", { onclick: check }, "check the whole run"), verdict);
  await refresh();
  every(4, () => area.querySelector("pre:not([hidden])") || refresh());
}

export async function config(main, there) {
  const whole = el("input", { type: "checkbox", onchange: load });
  const filter = el("input", { type: "search", placeholder: "filter keys", "data-filter": true, oninput: draw });
  const body = el("tbody");
  let rows = [];
  function draw() {
    const wanted = filter.value.toLowerCase();
    const kept = rows.filter((row) => row.key.toLowerCase().includes(wanted));
    fill(body, ...kept.map((row) => el("tr", { class: row.values.some((one) => one !== row.values[0]) ? "differs" : "" },
      el("td", { title: row.meaning }, row.key),
      row.values.map((value, i) => el("td", { class: row.set[i] ? "set" : "" }, value)),
      el("td", { class: "faint" }, row.default))));
  }
  async function load() {
    rows = (await api("config", { run: there.run, every: whole.checked })).keys;
    draw();
  }
  fill(main, el("h1", {}, "configuration"),
    el("p", { class: "faint" }, "Bold: set by the command line or a recipe; the others follow from it. Shaded: the runs differ."),
    el("div", { class: "bar" }, filter, el("label", {}, whole, "all keys")),
    el("div", { class: "scroll" }, el("table", { class: "config" }, el("thead", {}, el("tr", {}, el("th", {}, "key"), there.run.map((run) => el("th", {}, run)), el("th", {}, "default"))), body)));
  await load();
}
