// Trajectories: a list that is filtered and read in pages, and a group side by side with its tokens.

import { address, api, change, el, every, figure, fill } from "./app.js";

const COLOURINGS = {
  none: () => null,
  "log-prob": (row, i) => tint([217, 119, 6], -row.rollout_log_probs?.[i] / 5),
  advantage: (row, i, most) => signed(row.advantages?.[i], most.advantages),
  gap: (row, i, most) => signed(row.log_prob_gap?.[i], most.log_prob_gap),
  mask: (row, i) => (row.response_mask?.[i] ? tint([22, 163, 74], 0.4) : tint([120, 120, 120], 0.4)),
};
const KEYS = {
  none: "", "log-prob": "orange: the policy found the token unlikely (-5 or less is full)",
  advantage: "blue: above 0; red: below 0", gap: "blue: more likely in training than in rollout; red: less", mask: "green: written by the policy; grey: not trained",
};
const CALLS = /<(tool_call|search|function_call|tool|python|code)>[\s\S]*?<\/\1>/g;
const OBSERVED = /<(tool_response|information|observation|result)>[\s\S]*?<\/\1>/g;
const LONG = 400; // characters of a prompt that is shown unfolded
const MOST_WORDS = 3000; // of two answers that are compared word by word

const tint = ([r, g, b], part) => (part > 0 ? `rgba(${r}, ${g}, ${b}, ${Math.min(1, part) * 0.75})` : null);
const signed = (value, most) => tint(value > 0 ? [37, 99, 235] : [220, 38, 38], Math.abs(value) / (most || 1));

export async function samples(main, there) {
  const [run] = there.run;
  const steps = (await api("run", { run })).samples;
  const kind = there.kind ?? (steps.rollouts.length || !steps.validation.length ? "rollouts" : "validation");
  const newest = steps[kind]?.at(-1);
  if (newest == null) return fill(main, el("h1", {}, run), el("p", {}, "This run has written no trajectories."));
  const isLatest = there.first == null && there.last == null && !there.like;
  const first = there.like ? there.first ?? 0 : there.first ?? newest;
  const last = there.last ?? (there.like ? steps[kind].at(-1) : newest);
  const query = { run, kind, first, last, source: there.source, low: there.low, high: there.high, text: there.text, order: there.order, like: there.like?.split(",") };

  const set = (name) => (event) => change({ [name]: event.target.value, ...(name === "kind" ? { first: null, last: null } : {}) });
  const field = (name, label, attributes) => el("label", {}, label, el("input", { ...attributes, name, onchange: set(name) }));
  const pick = (name, label, options, chosen) => el("label", {}, label, el("select", { name, onchange: set(name) },
    Object.entries(options).map(([value, text]) => el("option", { value, selected: value === (chosen ?? "") }, text))));
  const sources = await api("sources", { run, kind, step: steps[kind].includes(+last) ? last : newest }).catch(() => []);
  const status = el("p", { class: "faint", role: "status" });
  const body = el("tbody");
  const more = el("button", { hidden: true }, "more");
  let shown = 0;
  let next = null;

  const line = (row) => el("tr", {},
    el("td", { class: "number" }, el("a", { href: address("group", { run, kind, step: row.step, row: row.row }), "data-row": true }, `${row.step} / ${row.row}`)),
    el("td", { class: "wide" }, row.data_source), el("td", { class: "number" }, figure(row.score)), el("td", { class: "number" }, figure(row.advantage)),
    el("td", { class: "number wide" }, row.tokens), el("td", { class: "wide" }, row.finish_reason),
    el("td", { class: "excerpt wide" }, row.prompt), el("td", { class: "excerpt" }, row.response));

  async function load() {
    more.hidden = true;
    do {
      const found = await api("samples", { ...query, after: next });
      next = found.next;
      shown += found.rows.length;
      body.append(...found.rows.map(line));
      status.textContent = `${shown} trajectories${next ? `, searched down to step ${next[0]}` : ""}`;
      if (found.rows.length) break;
    } while (next);
    more.hidden = !next;
  }
  more.onclick = load;
  fill(main,
    el("h1", {}, run), there.like && el("p", {}, "The same prompt over steps. ", el("a", { href: address("samples", { run }) }, "all trajectories")),
    el("div", { class: "bar filters" },
      pick("kind", "of ", Object.fromEntries(Object.keys(steps).filter((name) => steps[name].length).map((name) => [name, name])), kind),
      field("first", "steps from ", { type: "number", value: first, min: 0 }), field("last", "to ", { type: "number", value: last, min: 0 }),
      pick("source", "source ", { "": "all", ...Object.fromEntries(sources.map((one) => [one, one])) }, there.source),
      field("low", "score from ", { type: "number", step: "any", value: there.low }), field("high", "to ", { type: "number", step: "any", value: there.high }),
      field("text", "text ", { type: "search", value: there.text, "data-filter": true }),
      pick("order", "order ", { "": "as written", best: "best first", worst: "worst first" }, there.order)),
    status, el("div", { class: "scroll" }, el("table", { class: "samples" }, el("thead", {}, el("tr", {},
      ["step / row", "source", "score", "advantage", "tokens", "end", "prompt", "response"].map((head) =>
        el("th", { class: ["source", "tokens", "end", "prompt"].includes(head) ? "wide" : "" }, head)))), body)), more);
  await load();
  if (isLatest) every(5, async () => {
    const step = (await api("run", { run })).samples[kind].at(-1);
    if (step > newest) fill(status, el("a", { href: address("samples", { run, kind, first: step, last: step }) }, `step ${step} is there`));
  });
}

export async function group(main, there) {
  const [run] = there.run;
  const { kind, step, row } = there;
  const { rows } = await api("group", { run, kind, step, row });
  const most = {};
  for (const name of ["advantages", "log_prob_gap"]) most[name] = Math.max(...rows.flatMap((one) => (one[name] ?? []).map(Math.abs)), 0);
  const colourings = el("select", { "data-cycle": true, "aria-label": "colour of tokens", onchange: draw },
    Object.keys(COLOURINGS).map((name) => el("option", { selected: name === there.colour }, name)));
  colourings.addEventListener("cycle", () => { colourings.selectedIndex = (colourings.selectedIndex + 1) % colourings.length; draw(); });
  const meaning = el("span", { class: "faint" });
  const columns = el("div", { class: "columns" });
  const difference = el("section", { class: "card", hidden: true });
  const name = (one) => `sample ${one.sample ?? one.row}`;
  const choice = (label, chosen) => el("select", { "aria-label": label, onchange: compare },
    el("option", { value: "" }, "choose"), rows.map((one, i) => el("option", { value: i, selected: i === chosen }, `${name(one)} (${figure(one.score)})`)));
  const [left, right] = [choice("first answer"), choice("second answer")];

  function compare() {
    difference.hidden = left.value === "" || right.value === "";
    if (!difference.hidden) fill(difference, el("h3", {}, "difference of the two answers"), el("p", { class: "text" }, ...marked(rows[left.value].response, rows[right.value].response)));
  }
  function draw() {
    const colouring = colourings.value;
    change({ colour: colouring === "none" ? null : colouring }, true);
    const field = { "log-prob": "rollout_log_probs", advantage: "advantages", gap: "log_prob_gap", mask: "response_mask" }[colouring];
    const missing = field && !rows.some((one) => one[field] && one.tokens);
    meaning.textContent = missing ? `this run did not write ${field === "log_prob_gap" ? "a gap: rollout and training agree, or it was not computed" : "it"}` : KEYS[colouring];
    fill(columns, ...rows.map((one) => column(one, (i) => COLOURINGS[colouring](one, i, most), +row === one.row)));
  }
  const prompt = String(rows[0].prompt ?? "");
  const like = address("samples", { run, kind, like: `${step},${row}`, first: 0 });
  fill(main,
    el("h1", {}, `${run}, ${kind === "validation" ? "validation at " : ""}step ${step}`),
    el("details", { open: prompt.length < LONG }, el("summary", {}, "prompt"), el("pre", { class: "text prompt" }, prompt)),
    el("dl", { class: "facts" }, el("dt", {}, "ground truth"), el("dd", {}, value(rows[0].ground_truth)), el("dt", {}, "source"), el("dd", {}, value(rows[0].data_source))),
    el("div", { class: "bar" }, el("label", {}, "colour ", colourings), meaning, el("label", {}, "difference of ", left), el("label", {}, "and ", right), el("a", { href: like }, "the same prompt over steps")),
    difference, columns);
  draw();
  columns.querySelector(".chosen")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

const value = (one) => (one == null ? "" : typeof one === "object" ? JSON.stringify(one) : typeof one === "number" ? figure(one) : String(one));

function column(row, colour, isChosen) {
  const own = (row.advantages ?? []).filter((_, i) => row.response_mask?.[i]);
  const mean = own.length ? own.reduce((sum, one) => sum + one, 0) / own.length : null;
  const facts = { score: row.score, advantage: mean, ...(row.reward_info ?? {}), tokens: row.response_mask?.length, turns: row.turns, end: row.finish_reason, weights: row.policy_version };
  return el("article", { class: isChosen ? "card chosen" : "card", "data-row": true, tabindex: 0 },
    el("h3", {}, `sample ${row.sample ?? row.row}`),
    el("dl", { class: "facts" }, Object.entries(facts).filter(([, one]) => one != null).map(([name, one]) => [el("dt", {}, name), el("dd", {}, value(one))])),
    el("div", { class: "text" }, ...pieces(row, colour)));
}

// The response in parts: text of the policy, its calls, and what it did not write; the last two are folded.
function pieces(row, colour) {
  const text = String(row.response ?? "");
  const ranges = [[CALLS, "call"], [OBSERVED, "observation"]].flatMap(([pattern, kind]) => [...text.matchAll(pattern)].map((found) => [found.index, found.index + found[0].length, kind]));
  const kindAt = (start, i) => (row.tokens && row.response_mask && !row.response_mask[i] ? "observation" : ranges.find(([from, to]) => from <= start && start < to)?.[2] ?? "");
  const edges = ranges.flatMap(([from, to]) => [from, to]).sort((a, b) => a - b);
  const units = row.tokens ?? [0, ...edges].map((from, i) => text.slice(from, edges[i] ?? text.length));
  const found = [];
  let start = 0;
  units.forEach((unit, i) => {
    const kind = kindAt(start, i);
    if (!found.length || found.at(-1).kind !== kind) found.push({ kind, nodes: [], text: "" });
    found.at(-1).text += unit;
    const tinted = row.tokens && unit && colour(i);
    if (tinted) {
      const numbers = [["log-prob", row.rollout_log_probs], ["advantage", row.advantages], ["gap", row.log_prob_gap]].filter(([, all]) => all);
      const node = el("span", { title: numbers.map(([name, all]) => `${name} ${all[i]}`).join(", ") }, unit);
      node.style.background = tinted;
      found.at(-1).nodes.push(node);
    } else found.at(-1).nodes.push(unit);
    start += unit.length;
  });
  return found.filter((one) => one.text).map(({ kind, nodes, text }) => (kind
    ? el("details", { class: kind }, el("summary", {}, `${kind === "call" ? "call" : "not by the policy"}: ${text.trim().slice(0, 60)}`), ...nodes)
    : el("span", {}, ...nodes)));
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
      best[i * width + j] = x[i] === y[j] ? best[(i + 1) * width + j + 1] + 1 : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
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
