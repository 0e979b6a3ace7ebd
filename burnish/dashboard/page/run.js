// Views of one run, or of several next to each other: curves, times and failures, state, configuration.

import { ago, api, attempt, card, change, download, el, every, facts, figure, fill, heads } from "./app.js";
import { chartCard, colourOf, curveTraces, draw, plain, plotly } from "./charts.js";
import { finding } from "./runs.js";

const FIRST = [
  "critic/score/mean", "train/loss", "val/loss", "accuracy", "response/entropy", "actor/entropy", "actor/grad_norm",
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
  dot.style.background = colourOf(i);
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
  const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : 3.5); // validation after rewards and losses
  const preset = (pattern) => names.filter((name) => pattern.test(name)).sort((a, b) => rank(a) - rank(b));
  const known = {};
  const cards = new Map();
  let chosen = (there.m ?? "").split(",").filter((name) => names.includes(name));
  if (!chosen.length) chosen = preset(PRESETS.main).slice(0, MOST);
  let of = () => []; // the series of a metric

  const weight = el("input", {
    type: "range", min: 0, max: 0.98, step: 0.02, value: there.smooth ?? 0.6, "aria-label": "smoothing",
    oninput: () => { change({ smooth: weight.value }, true); drawAll(); },
  });
  const log = el("input", { type: "checkbox", onchange: () => drawAll() });
  const filter = el("input", { type: "search", placeholder: "filter metrics", "data-filter": true, oninput: list });
  const choices = el("div", { class: "choices" });
  const grid = el("div", { class: "grid" });

  function choose(next) {
    chosen = next.slice(0, MOST);
    change({ m: chosen.join(",") }, true);
    list();
    return refresh();
  }
  function list() {
    const wanted = filter.value.toLowerCase();
    const toggle = (name) => (event) =>
      choose(event.target.checked ? [...chosen, name] : chosen.filter((one) => one !== name));
    fill(choices, names.filter((name) => name.toLowerCase().includes(wanted)).map((name) =>
      el("label", {}, el("input", { type: "checkbox", checked: chosen.includes(name), onchange: toggle(name) }), name)));
  }
  async function drawAll() {
    for (const [name, card] of cards) {
      if (!chosen.includes(name)) {
        card.remove();
        cards.delete(name);
      }
    }
    for (const name of chosen) {
      if (!cards.has(name)) cards.set(name, chartCard(name));
      grid.append(cards.get(name));
    }
    const yaxis = log.checked ? { type: "log" } : {};
    const traces = (name) => curveTraces(of(name), +weight.value);
    await Promise.all(chosen.map((name) => draw(cards.get(name).lastChild, traces(name), { yaxis })));
  }
  async function refresh() {
    if (chosen.length) of = await grow(known, there.run, chosen);
    await drawAll();
  }

  const presets = Object.entries(PRESETS).map(([title, pattern]) => [title, preset(pattern)])
    .filter(([, some]) => some.length).map(([title, some]) => el("button", { onclick: () => choose(some) }, title));
  const chooser = el("details", { class: "chooser", open: window.innerWidth > 720 },
    el("summary", {}, "metrics"), filter, choices);
  list();
  fill(main,
    el("h1", {}, there.run.length > 1 ? `${there.run.length} runs` : there.run[0]), legend(there.run),
    el("div", { class: "bar" }, presets, el("label", {}, "smoothing ", weight), el("label", {}, log, "log scale")),
    names.length ? null : el("p", {}, "No step is logged yet."),
    el("div", { class: "split" }, chooser, grid));
  await refresh();
  every(3, async () => {
    if (!names.length && (await api("run", { run: there.run[0] })).metrics.length) return curves(main, there);
    return refresh();
  });
}

// A lane per process: its spans where they were, those inside others below them, and its waits below all.
function processLanes(processes, phases) {
  const whole = processes[0]?.spans.find(({ name }) => name === "step");
  if (!whole) return [];
  const names = [...phases];
  const percent = (seconds) => `${(100 * seconds) / whole.s}%`;
  const rem = (rows) => `${1.2 * rows + 0.2}rem`;
  return processes.map(({ name: process, spans }) => {
    const around = {}; // by thread: where the spans that are around the next one end
    let rows = 1;
    const bars = spans.filter((span) => span !== whole).sort((a, b) => a.start - b.start || b.s - a.s).map((span) => {
      const ends = span.wait ? [] : (around[span.thread] ??= []);
      while (ends.length && ends.at(-1) <= span.start) ends.pop();
      rows = Math.max(rows, ends.push(span.start + span.s));
      const name = span.wait ? span.name : span.name.split(".").at(-1);
      if (!span.wait && !names.includes(name)) names.push(name);
      const title = `${span.name} ${figure(span.s)} s${span.wait ? `: ${span.wait}, ${span.owner}` : ""}`;
      const bar = el("div", { class: span.wait ? "phase wait" : "phase", title }, span.wait ? null : name);
      const begins = Math.max(0, span.start - whole.start);
      bar.style.left = percent(begins);
      bar.style.width = percent(Math.max(0, Math.min(span.start + span.s - whole.start, whole.s) - begins));
      bar.style.top = rem(ends.length - 1);
      bar.style.background = span.wait ? "gray" : colourOf(names.indexOf(name));
      return bar;
    });
    const waits = bars.filter((bar) => bar.matches(".wait"));
    for (const bar of waits) bar.style.top = rem(rows);
    const track = el("div", { class: "track" }, bars);
    track.style.height = rem(rows + (waits.length > 0));
    return el("div", { class: "lane process" }, el("span", {}, process), track);
  });
}

export async function time(main, there) {
  plotly();
  const [run] = there.run;
  const { metrics, profiles } = await api("run", { run });
  const phases = metrics.filter((name) => name.startsWith("timing_s/")).map((name) => name.slice(9));
  const own = PHASES.filter((phase) => phases.includes(phase));
  const parts = phases.filter((phase) => ["engine", "reward_model"].includes(phase)); // of other phases
  const others = metrics.filter((name) => /^failures\/|memory/.test(name)).slice(0, 12);
  const names = [...phases.map((phase) => `timing_s/${phase}`), ...others];
  const known = {};
  let of = () => [];

  const bars = el("div", { class: "chart" });
  const line = el("div", { class: "timeline" });
  const number = el("input", {
    type: "number", value: there.step ?? "", "aria-label": "step", "data-filter": true,
    onchange: () => { change({ step: number.value }, true); attempt(timeline); },
  });
  let traced = {}; // the lanes of the step that is shown, where the run has a trace of it
  const cards = others.map(chartCard);
  const saves = (step) => el("div", { class: "bar" },
    download("save the trace of this step", `trace-${step}.json`, "trace.json", { run, step }),
    download("of the whole run", "trace.json", "trace.json", { run }));
  const series = (phase) => of(`timing_s/${phase}`)[0] ?? { steps: [], values: [] };
  const at = (phase, step) => series(phase).values[series(phase).steps.indexOf(step)];

  async function timeline() {
    const step = number.value === "" ? series("step").steps.at(-1) : +number.value;
    const total = at("step", step);
    if (!total) return fill(line, el("p", { class: "faint" }, "This step is not logged."));
    if (traced.step !== step) traced = { step, lanes: processLanes((await api("trace", { run, step })).processes, own) };
    const taken = own.map((phase) => [phase, at(phase, step)])
      .filter(([phase, seconds]) => seconds > 0 && phase !== "save_checkpoint"); // that is before the step
    const sum = taken.reduce((all, [, seconds]) => all + seconds, 0);
    const end = Math.max(total, sum); // where roles run at the same time, phases are longer than the step
    let start = 0;
    const lanes = taken.map(([phase, seconds]) => {
      const bar = el("div", { class: "phase", title: `${Math.round((100 * seconds) / total)}% of the step` });
      bar.style.left = `${(100 * start) / end}%`;
      bar.style.width = `${(100 * seconds) / end}%`;
      bar.style.background = colourOf(own.indexOf(phase));
      start += seconds;
      return el("div", { class: "lane" },
        el("span", {}, `${phase} ${figure(seconds)} s`), el("div", { class: "track" }, bar));
    });
    const within = parts.filter((part) => at(part, step)).map((part) => `, ${part} ${figure(at(part, step))} s`);
    const rest = total > sum && `, ${figure(total - sum)} s in no phase`;
    return fill(line, el("p", {}, `step ${step}: ${figure(total)} s in all`, within, rest),
      traced.lanes?.length ? [traced.lanes, saves(step)] : lanes);
  }
  async function refresh() {
    of = await grow(known, [run], names);
    const traces = own.map((phase, i) => ({
      type: "bar", name: plain(phase), x: series(phase).steps, y: series(phase).values, marker: { color: colourOf(i) },
    }));
    const yaxis = { title: { text: "seconds" } };
    if (own.length) await draw(bars, traces, { barmode: "stack", height: 280, showlegend: true, yaxis });
    await timeline();
    await Promise.all(others.map((name, i) => draw(cards[i].lastChild, curveTraces(of(name), 0))));
  }
  fill(main,
    el("h1", {}, run), there.run.length > 1 && el("p", { class: "faint" }, "This view shows the first of the runs."),
    phases.length ? [card("phases of each step", bars), card(["one step ", number], line)]
      : el("p", {}, "No times are logged yet."),
    profiles.length ? [el("h2", {}, "profiles"), el("div", { class: "bar" }, profiles.map((name) =>
      download(name, name.replaceAll("/", "-"), "profile", { run, name })))] : null,
    el("h2", {}, "failures and memory"),
    others.length ? el("div", { class: "grid" }, cards) : el("p", { class: "faint" }, "none is logged"));
  if (!names.length) return;
  await refresh();
  bars.on?.("plotly_click", ({ points }) => {
    number.value = points[0].x;
    number.dispatchEvent(new Event("change"));
  });
  every(3, refresh);
}

const text = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));

export async function state(main, there) {
  const [run] = there.run;
  const verdict = el("pre", { class: "text" });
  const area = el("div");
  const none = el("p", { class: "faint" }, "none");

  function waits({ name, where, silent_s, waits }, isOver) {
    const seconds = (wait) => (wait.age == null ? "no waits" : figure(wait.age + (isOver ? 0 : silent_s)));
    return (waits.length ? waits : [{}]).map((wait, i) => el("tr", {},
      el("td", { title: where }, i ? "" : name), el("td", { class: "number" }, seconds(wait)), el("td", {}, wait.kind),
      el("td", {}, wait.owner), el("td", {}, wait.subject), el("td", { class: "number" }, wait.limit)));
  }
  function event({ time, kind, ...rest }) {
    const when = typeof time === "number" ? new Date(time * 1000).toLocaleString() : "";
    const said = Object.entries(rest).map(([name, value]) => `${name}=${text(value)}`).join(", ");
    return el("tr", { class: /bad|late|restart|fail|lost/.test(kind) && "failure" },
      el("td", { class: "faint" }, when), el("td", {}, kind), el("td", {}, said));
  }
  async function refresh() {
    const { status, events, state, step, steps } = await api("run", { run });
    const isOver = !["starting", "running", "silent"].includes(state);
    const stacks = el("pre", { class: "text", hidden: true });
    const showStacks = async () => {
      stacks.textContent = (await api("stacks", { run, name: status.stacks })).text;
      stacks.hidden = false;
    };
    const said = status.findings.map((one) =>
      el("p", {}, finding(one), ` step ${one.step}: ${one.evidence}. Try: ${one.remedy}`));
    fill(area,
      facts({
        state: el("span", { class: `badge ${state}` }, state),
        step: step != null && `${step}${steps ? ` of ${steps}` : ""}`,
        logged: ago(status.logged_s), "held by": status.held_by, error: status.error && text(status.error),
      }),
      el("h2", {}, "findings"), said.length ? said : none,
      el("h2", {}, "processes and their longest waits"),
      el("table", {}, heads(["process", "seconds", "kind", "owner", "waits for", "limit"]),
        el("tbody", {}, status.processes.map((one) => waits(one, isOver)))),
      status.stacks && el("p", {}, el("button", { onclick: showStacks }, `show ${status.stacks}`)), stacks,
      el("h2", {}, "events"), el("table", { class: "events" }, el("tbody", {}, [...events].reverse().map(event))));
  }
  const check = async () => {
    verdict.textContent = "reading all metrics";
    verdict.textContent = (await api("health", { run })).verdict;
  };
  fill(main, el("h1", {}, run), area,
    el("h2", {}, "verdict"), el("button", { onclick: () => attempt(check) }, "check the whole run"), verdict);
  await refresh();
  every(4, () => area.querySelector("pre:not([hidden])") || refresh());
}

export async function config(main, there) {
  const whole = el("input", { type: "checkbox", onchange: () => attempt(load) });
  const filter = el("input", { type: "search", placeholder: "filter keys", "data-filter": true, oninput: list });
  const body = el("tbody");
  let keys = [];

  function list() {
    const wanted = filter.value.toLowerCase();
    fill(body, keys.filter(({ key }) => key.toLowerCase().includes(wanted)).map((one) =>
      el("tr", { class: one.values.some((value) => value !== one.values[0]) && "differs" },
        el("td", { title: one.meaning }, one.key),
        one.values.map((value, i) => el("td", { class: one.set[i] && "set" }, value)),
        el("td", { class: "faint" }, one.default))));
  }
  async function load() {
    keys = (await api("config", { run: there.run, every: whole.checked })).keys;
    list();
  }
  fill(main, el("h1", {}, "configuration"),
    el("p", { class: "faint" }, "Bold: set by the command line or a recipe. Shaded: the runs differ."),
    el("div", { class: "bar" }, filter, el("label", {}, whole, "all keys")),
    el("div", { class: "scroll" }, el("table", {}, heads(["key", ...there.run, "default"]), body)));
  await load();
}
