// Trajectories: a list that is filtered and read in pages, and a group side by side with its tokens.

import { address, api, attempt, card, change, el, every, facts, figure, fill, heads } from "./app.js";

const COLOURINGS = { // name → field of a row, what the colours mean, the colour of a value
  none: { meaning: "", of: () => null },
  "log-prob": {
    field: "rollout_log_probs", meaning: "orange: the policy found the token unlikely (-5 or less is full)",
    of: (value) => tint([217, 119, 6], -value / 5),
  },
  advantage: { field: "advantages", meaning: "blue: above 0; red: below 0", of: (value, most) => signed(value, most) },
  gap: {
    field: "log_prob_gap", meaning: "blue: more likely in training than in rollout; red: less",
    of: (value, most) => signed(value, most),
  },
  mask: {
    field: "response_mask", meaning: "green: written by the policy; grey: not trained",
    of: (value) => tint(value ? [22, 163, 74] : [120, 120, 120], 0.4),
  },
};
const CALLS = /<(tool_call|search|function_call|tool|python|code)>[\s\S]*?<\/\1>/g;
const OBSERVED = /<(tool_response|information|observation|result)>[\s\S]*?<\/\1>/g;
const LONG = 400; // characters of a prompt that is shown unfolded
const MOST_WORDS = 3000; // of two answers that are compared word by word

const tint = ([r, g, b], part) => (part > 0 ? `rgba(${r}, ${g}, ${b}, ${Math.min(1, part) * 0.75})` : null);
const signed = (value, most) => tint(value > 0 ? [37, 99, 235] : [220, 38, 38], Math.abs(value) / (most || 1));
const options = (values, chosen) => Object.entries(values).map(([value, text]) =>
  el("option", { value, selected: value === String(chosen ?? "") }, text));
const same = (names) => Object.fromEntries(names.map((name) => [name, name]));

export async function samples(main, there) {
  const [run] = there.run;
  const steps = (await api("run", { run })).samples;
  const kind = there.kind ?? (steps.rollouts.length || !steps.validation.length ? "rollouts" : "validation");
  const newest = steps[kind]?.at(-1);
  if (newest == null) return fill(main, el("h1", {}, run), el("p", {}, "This run has written no trajectories."));
  const isLatest = there.first == null && there.last == null && !there.like;
  const first = there.first ?? newest;
  const last = there.last ?? newest;
  const { source, low, high, text, order } = there;
  const query = { run, kind, first, last, source, low, high, text, order, like: there.like?.split(",") };
  const sources = await api("sources", { run, kind, step: steps[kind].includes(+last) ? last : newest });

  const onchange = (event) => change({ [event.target.name]: event.target.value });
  const field = (name, label, attributes) => el("label", {}, label, el("input", { ...attributes, name, onchange }));
  const pick = (name, label, values, chosen) =>
    el("label", {}, label, el("select", { name, onchange }, options(values, chosen)));
  const number = (name, label, value) => field(name, label, { type: "number", step: "any", value });
  const status = el("p", { class: "faint", role: "status" });
  const body = el("tbody");
  const more = el("button", { hidden: true, onclick: () => attempt(load) }, "more");
  let next = null;

  function line(row) {
    const route = address("group", { run, kind, step: row.step, row: row.row });
    const cell = (value, name = "") => el("td", { class: name }, figure(value));
    return el("tr", {},
      el("td", { class: "number" }, el("a", { href: route, "data-row": true }, `${row.step} / ${row.row}`)),
      cell(row.data_source, "wide"), cell(row.score, "number"), cell(row.advantage, "number"),
      cell(row.tokens, "number wide"), cell(row.finish_reason, "wide"),
      cell(row.prompt, "excerpt wide"), cell(row.response, "excerpt"));
  }
  async function load() {
    more.hidden = true;
    const before = body.childElementCount;
    do {
      const found = await api("samples", { ...query, after: next });
      next = found.next;
      body.append(...found.rows.map(line));
      const place = next ? `, searched down to step ${next[0]}` : "";
      status.textContent = `${body.childElementCount} trajectories${place}`;
    } while (next && body.childElementCount === before);
    more.hidden = !next;
  }
  const all = el("a", { href: address("samples", { run }) }, "all trajectories");
  fill(main,
    el("h1", {}, run), there.like && el("p", {}, "The same prompt over steps. ", all),
    el("div", { class: "bar" },
      pick("kind", "of ", same(Object.keys(steps).filter((name) => steps[name].length)), kind),
      number("first", "steps from ", first), number("last", "to ", last),
      pick("source", "source ", { "": "all", ...same(sources) }, source),
      number("low", "score from ", low), number("high", "to ", high),
      field("text", "text ", { type: "search", value: text, "data-filter": true }),
      pick("order", "order ", { "": "as written", best: "best first", worst: "worst first" }, order)),
    status,
    el("div", { class: "scroll" }, el("table", { class: "samples" }, heads(
      ["step / row", "source", "score", "advantage", "tokens", "end", "prompt", "response"],
      ["source", "tokens", "end", "prompt"]), body)), more);
  await load();
  if (isLatest) every(5, async () => {
    const step = (await api("run", { run })).samples[kind].at(-1);
    const route = address("samples", { run, kind, first: step, last: step });
    if (step > newest) fill(status, el("a", { href: route }, `step ${step} is there`));
  });
}

export async function group(main, there) {
  const [run] = there.run;
  const { kind, step, row } = there;
  const { rows } = await api("group", { run, kind, step, row });
  const names = Object.keys(COLOURINGS);
  const colouring = el("select", { "data-cycle": true, "aria-label": "colour of tokens", onchange: draw },
    options(same(names), there.colour));
  colouring.addEventListener("cycle", () => {
    colouring.selectedIndex = (colouring.selectedIndex + 1) % names.length;
    draw();
  });
  const meaning = el("span", { class: "faint" });
  const columns = el("div", { class: "columns" });
  const difference = el("div");
  const answers = Object.fromEntries(rows.map((one, i) => [i, `${title(one)} (${figure(one.score)})`]));
  const [left, right] = ["first answer", "second answer"].map((label) =>
    el("select", { "aria-label": label, onchange: compare }, options({ "": "choose", ...answers })));

  function compare() {
    const [a, b] = [left, right].map((one) => rows[one.value]?.response);
    fill(difference, left.value && right.value &&
      card("difference of the two answers", el("p", { class: "text" }, marked(a, b))));
  }
  function draw() {
    const { field, meaning: said, of } = COLOURINGS[colouring.value];
    change({ colour: field ? colouring.value : null }, true);
    const most = Math.max(0, ...rows.map((one) => Math.max(0, ...(one[field] ?? []).map(Math.abs))));
    const isThere = !field || rows.some((one) => one[field] && one.tokens);
    meaning.textContent = isThere ? said : `not in these samples: ${field} with token_lengths`;
    fill(columns, rows.map((one) => column(one, (i) => (one[field] ? of(one[field][i], most) : null), +row === one.row)));
  }
  const prompt = String(rows[0].prompt ?? "");
  const like = address("samples", { run, kind, like: `${step},${row}`, first: 0 });
  fill(main,
    el("h1", {}, `${run}, ${kind === "validation" ? "validation at " : ""}step ${step}`),
    el("details", { open: prompt.length < LONG }, el("summary", {}, "prompt"), el("pre", { class: "text prompt" }, prompt)),
    facts({ "ground truth": shown(rows[0].ground_truth), source: shown(rows[0].data_source) }),
    el("div", { class: "bar" }, el("label", {}, "colour ", colouring), meaning, el("label", {}, "difference of ", left),
      el("label", {}, "and ", right), el("a", { href: like }, "the same prompt over steps")),
    difference, columns);
  draw();
  columns.querySelector(".chosen")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

const title = (row) => `sample ${row.sample ?? row.row}`;
const shown = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : figure(value));

function column(row, colour, isChosen) {
  const own = (row.advantages ?? []).filter((_, i) => row.response_mask?.[i]);
  const values = {
    score: row.score, advantage: own.length ? own.reduce((sum, one) => sum + one, 0) / own.length : null,
    ...(row.reward_info ?? {}), tokens: row.response_mask?.length, turns: row.turns, end: row.finish_reason,
    weights: row.policy_version,
  };
  const said = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, shown(value)]));
  return el("article", { class: isChosen ? "card chosen" : "card", "data-row": true, tabindex: 0 },
    el("h3", {}, title(row)), facts(said), el("div", { class: "text" }, pieces(row, colour)));
}

// The response in parts: text of the policy, its calls, and what it did not write; the last two are folded.
function pieces(row, colour) {
  const text = String(row.response ?? "");
  const ranges = [[CALLS, "call"], [OBSERVED, "observation"]].flatMap(([pattern, kind]) =>
    [...text.matchAll(pattern)].map((found) => ({ from: found.index, to: found.index + found[0].length, kind })));
  const edges = ranges.flatMap(({ from, to }) => [from, to]).sort((a, b) => a - b);
  const units = row.tokens ?? [0, ...edges].map((from, i) => text.slice(from, edges[i] ?? text.length));
  const numbers = ["rollout_log_probs", "advantages", "log_prob_gap"].filter((name) => row[name]);
  const found = [];
  let start = 0;
  units.forEach((unit, i) => {
    const isOwn = !row.tokens || !row.response_mask || row.response_mask[i];
    const kind = isOwn ? ranges.find(({ from, to }) => from <= start && start < to)?.kind ?? "" : "observation";
    if (found.at(-1)?.kind !== kind) found.push({ kind, nodes: [], text: "" });
    const tinted = row.tokens && unit && colour(i);
    const node = tinted && el("span", { title: numbers.map((name) => `${name} ${row[name][i]}`).join(", ") }, unit);
    if (tinted) node.style.background = tinted;
    found.at(-1).nodes.push(node || unit);
    found.at(-1).text += unit;
    start += unit.length;
  });
  const summary = ({ kind, text }) => `${kind === "call" ? "call" : "not by the policy"}: ${text.trim().slice(0, 60)}`;
  return found.filter((one) => one.text).map((one) => (one.kind
    ? el("details", { class: one.kind }, el("summary", {}, summary(one)), one.nodes) : el("span", {}, one.nodes)));
}

// The words of two texts as nodes: those of the first only, of the second only, and of both.
export function marked(left, right) {
  const [a, b] = [left, right].map((text) => String(text ?? "").match(/\s+|[^\s]+/g) ?? []);
  const mark = (tag, words) => words.length && el(tag, {}, words.join(""));
  let head = 0;
  while (head < Math.min(a.length, b.length) && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < Math.min(a.length, b.length) - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const [x, y] = [a.slice(head, a.length - tail), b.slice(head, b.length - tail)];
  const nodes = [a.slice(0, head).join("")];
  if (Math.max(x.length, y.length) > MOST_WORDS) nodes.push(mark("del", x), mark("ins", y));
  else nodes.push(...aligned(x, y).map(([kind, words]) => (kind === "both" ? words.join("") : mark(kind, words))));
  return [...nodes, a.slice(a.length - tail).join("")].filter(Boolean);
}

// The longest common subsequence, as runs of [del | ins | both, words].
function aligned(x, y) {
  const width = y.length + 1;
  const best = new Uint16Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i -= 1) {
    for (let j = y.length - 1; j >= 0; j -= 1) {
      const without = Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
      best[i * width + j] = x[i] === y[j] ? best[(i + 1) * width + j + 1] + 1 : without;
    }
  }
  const runs = [];
  const add = (kind, word) => (runs.at(-1)?.[0] === kind ? runs.at(-1)[1].push(word) : runs.push([kind, [word]]));
  let [i, j] = [0, 0];
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) { add("both", x[i]); i += 1; j += 1; }
    else if (j === y.length || (i < x.length && best[(i + 1) * width + j] >= best[i * width + j + 1])) add("del", x[i++]);
    else add("ins", y[j++]);
  }
  return runs;
}
