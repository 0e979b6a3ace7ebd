// Routes (in the fragment of the address), the keyboard, and what all views share. Texts are set as text nodes only.

import { runs } from "./runs.js";
import { config, curves, state, time } from "./run.js";
import { group, samples } from "./samples.js";

const VIEWS = { runs, curves, time, samples, state, config, group };
const TABS = ["curves", "time", "samples", "state", "config"];
const main = document.getElementById("main");
let timers = [];
let generation = 0; // of the page: an answer to an earlier one is dropped

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  return fill(node, ...children);
}

// Its children from now on: nodes, and texts; null and false are none.
export function fill(node, ...children) {
  const kept = children.flat(3).filter((child) => child != null && child !== false);
  node.replaceChildren(...kept.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

export const heads = (names, wide = []) =>
  el("thead", {}, el("tr", {}, names.map((name) => el("th", { class: wide.includes(name) && "wide" }, name))));

export const card = (title, ...content) => el("section", { class: "card" }, el("h3", {}, title), content);

export const facts = (values) => el("dl", { class: "facts" }, Object.entries(values)
  .filter(([, value]) => value != null && value !== "" && value !== false)
  .map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

class Left extends Error {} // the view was left while it waited

function ask(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) if (one !== "" && one != null) query.append(name, one);
  }
  const key = sessionStorage.getItem("key");
  return fetch(`api/${path}?${query}`, { headers: key ? { Authorization: `Bearer ${key}` } : {} });
}

// A button that saves what the path answers; a plain link could not send the key.
export const download = (title, file, path, parameters) => el("button", { onclick: () => attempt(async () => {
  const answer = await ask(path, parameters);
  if (!answer.ok) throw new Error((await answer.json()).detail);
  const link = el("a", { href: URL.createObjectURL(await answer.blob()), download: file });
  link.click();
  URL.revokeObjectURL(link.href);
}) }, title);

export async function api(path, parameters = {}) {
  const mine = generation;
  const answer = await ask(path, parameters);
  if (mine !== generation) throw new Left();
  if (answer.status === 401) {
    askForKey();
    throw new Left();
  }
  const found = await answer.json();
  if (mine !== generation) throw new Left();
  if (!answer.ok) throw new Error(found.detail);
  return found;
}

function askForKey() {
  const field = el("input", { type: "password", "aria-label": "key", autofocus: true });
  const save = (event) => {
    event.preventDefault();
    sessionStorage.setItem("key", field.value.trim());
    show();
  };
  fill(main, el("form", { class: "key", onsubmit: save },
    el("p", {}, "This dashboard needs the key that `burnish dashboard` printed."), field, el("button", {}, "Open")));
}

// What the address says: {view, run: [names], and the parameters of the view}.
export function place() {
  const [view, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parameters = new URLSearchParams(query);
  return { ...Object.fromEntries(parameters), view: view || "runs", run: parameters.getAll("run") };
}

export function address(view, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) if (name !== "view" && one !== "" && one != null) query.append(name, one);
  }
  return `#/${view}?${query}`;
}

// The same view with other parameters. `quietly`: nothing is drawn again.
export function change(parameters, quietly = false) {
  const there = place();
  const next = address(there.view, { ...there, ...parameters });
  if (quietly) history.replaceState(null, "", next);
  else location.hash = next;
}

export function every(seconds, work) {
  const timer = setInterval(() => document.hidden || attempt(work), seconds * 1000);
  timers.push(timer);
}

// Runs it; what goes wrong is shown in the head of the page.
export async function attempt(work) {
  try {
    await work();
    note("");
  } catch (error) {
    if (!(error instanceof Left)) note(error instanceof TypeError ? "the dashboard does not answer" : error.message);
  }
}

export function note(text) {
  document.getElementById("note").textContent = text;
}

function show() {
  generation += 1;
  timers.forEach(clearInterval);
  timers = [];
  const there = place();
  const view = Object.hasOwn(VIEWS, there.view) ? there.view : "runs";
  const isRun = there.run.length > 0;
  document.title = isRun ? `${there.run.join(", ")} · burnish` : "burnish";
  fill(document.getElementById("tabs"), isRun && TABS.map((tab) => el("a", {
    href: address(tab, { run: there.run }),
    "aria-current": tab === view || (tab === "samples" && view === "group") ? "page" : null,
  }, tab)));
  fill(main, el("p", { class: "faint" }, "loading"));
  main.dataset.view = view;
  attempt(() => VIEWS[isRun || view === "runs" ? view : "runs"](main, there));
}

// Rows are links with data-row; they keep their place while a list is drawn again.
export function redraw(list, children) {
  const rows = [...list.querySelectorAll("[data-row]")];
  const focused = rows.indexOf(document.activeElement);
  fill(list, children);
  if (focused >= 0) list.querySelectorAll("[data-row]")[focused]?.focus();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("help").open) return;
  const typing = event.target.matches("input:not([type=checkbox]):not([type=range]), select, textarea");
  if (event.key === "Escape" && typing) return event.target.blur();
  if (typing) return;
  const rows = [...document.querySelectorAll("[data-row]")];
  const at = rows.indexOf(document.activeElement);
  const there = place();
  const actions = {
    "/": () => document.querySelector("[data-filter]")?.focus(),
    "?": () => document.getElementById("help").showModal(),
    j: () => rows[Math.min(at + 1, rows.length - 1)]?.focus(),
    k: () => rows[Math.max(at - 1, 0)]?.focus(),
    x: () => document.activeElement.closest("tr")?.querySelector("input[type=checkbox]")?.click(),
    c: () => document.querySelector("[data-cycle]")?.dispatchEvent(new Event("cycle")),
    Escape: () => {
      const samples = { run: there.run, kind: there.kind, first: there.step, last: there.step };
      location.hash = there.view === "group" ? address("samples", samples) : "#/";
    },
  };
  TABS.forEach((tab, i) => {
    if (there.run.length) actions[i + 1] = () => { location.hash = address(tab, { run: there.run }); };
  });
  if (Object.hasOwn(actions, event.key)) {
    event.preventDefault();
    actions[event.key]();
  }
}

export function ago(seconds) {
  if (seconds == null) return "";
  const units = [[86400, "days"], [3600, "h"], [60, "min"]];
  const [size, unit] = units.find(([size]) => seconds >= 2 * size) ?? [1, "s"];
  return `${Math.round(Math.max(0, seconds) / size)} ${unit} ago`;
}

export function figure(value) {
  if (typeof value !== "number") return value == null ? "" : String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  return Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(4));
}

if (location.hash.startsWith("#key=")) {
  sessionStorage.setItem("key", decodeURIComponent(location.hash.slice(5)));
  history.replaceState(null, "", "#/");
}
document.getElementById("help-button").addEventListener("click", () => document.getElementById("help").showModal());
document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", show);
show();
