// The console: one event stream in, a few admin calls out. No dependencies, no build step.
import { Chart } from "./chart.js";

const KEPT_MS = 600_000; // history
const OPEN_MS = 120_000; // how long what came of a decision is asked for
const LATENCIES = { ttft: "First token", tpot: "Per token", e2e: "End to end", queue: "Queue" };
const SETPOINTS = { max_batch_size: "Batch size", window_ms: "Window, ms" };
const UNDOABLE = new Set(["admin.slo", "admin.law", "admin.freeze"]);
const RANK = { missed: 3, unproven: 2, met: 1 };
const WORDS = {
  missed: ["\u2716", "The SLO is broken"],
  unproven: ["?", "Not proven either way"],
  met: ["\u2714", "The SLO is kept"],
};
const PENDING = { slo: "The SLO goes", setpoints: "The setpoints go", law: "The law goes", freeze: "The freeze goes" };
const $ = (id) => document.getElementById(id);

const state = { pool: "", shown: "", history: new Map(), detail: null, lastEvent: null, dirty: new Set(), marks: [],
  skew: 0 /* ms from the proxy's clock to ours */ };
const latencyChart = new Chart($("latency"), { count: 4, span: KEPT_MS, format: (value) => ms(value) });
const setpointsChart = new Chart($("setpoints"), { count: 2, span: KEPT_MS, format: (value) => String(Number(value.toPrecision(3))) });

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in node && key !== "list") node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

const ms = (value) =>
  value === null || value === undefined ? "–"
    : value >= 10000 ? `${Number((value / 1000).toPrecision(3))} s`
    : value >= 100 ? `${value.toFixed(0)} ms`
    : `${Number(value.toPrecision(3))} ms`;
const share = (value) => `${(100 * value).toFixed(1)}%`;
const ago = (seconds) => seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;

function say(problem) {
  $("error").textContent = problem || "";
  $("error").hidden = !problem;
}

// ---- talking to the admin API

function headers(extra = {}) {
  const token = sessionStorage.getItem("trimtab-token");
  return { "X-Trimtab-Actor": "console", ...(token ? { Authorization: `Bearer ${token}` } : {}), ...extra };
}

async function call(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }),
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.status === 401) {
    $("login").hidden = false;
    $("token").focus();
  }
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.detail || `${answer.status} ${answer.statusText}`);
  return data;
}

const base = () => `/admin/v1/pools/${encodeURIComponent(state.pool)}`;
const held = () => ($("hold").value ? `?for_s=${$("hold").value}` : "");

async function change(method, path, body) {
  try {
    const detail = await call(method, base() + path, body);
    say("");
    state.dirty.clear();
    document.querySelectorAll(".field.changed").forEach((row) => row.classList.remove("changed"));
    showDetail(detail);
  } catch (problem) {
    say(problem.message);
  }
}

// ---- the event stream, with a token where one is needed, and again when it breaks

async function listen() {
  let wait = 500;
  for (;;) {
    try {
      const answer = await fetch("/admin/v1/events?every_s=1", {
        headers: headers(state.lastEvent ? { "Last-Event-ID": state.lastEvent } : {}),
      });
      if (answer.status === 401) {
        $("login").hidden = false;
        await new Promise((resolve) => $("login").addEventListener("submit", resolve, { once: true }));
        continue;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      online(true);
      wait = 500;
      if (state.pool) seed(state.pool).catch((problem) => say(problem.message));
      await read(answer.body.getReader());
    } catch (problem) {
      // The connection broke; what follows says so and tries again.
    }
    online(false);
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, 10000);
  }
}

async function read(reader) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) dispatch(event);
  }
}

// What the proxy saw before this page was open, or while the connection was lost: told by its clock, drawn by ours.
async function seed(name) {
  const found = await call("GET", `/admin/v1/pools/${encodeURIComponent(name)}/history`);
  state.skew = Date.now() - 1000 * found.now;
  const own = state.history.get(name) || [];
  const told = found.at.map((at, index) => ({
    heard: 1000 * at + state.skew,
    slo: Object.fromEntries(Object.entries(found.target_ms).map(([latency, values]) => [`${latency}_ms`, values[index]])),
    quantiles: Object.fromEntries(Object.keys(LATENCIES).map((latency) => [latency,
      { p50: { value_ms: found.p50_ms[latency][index] }, p99: { value_ms: found.p99_ms[latency][index] } }])),
    setpoints: { max_batch_size: found.max_batch_size[index], window_ms: found.window_ms[index] },
    inflight: found.inflight[index],
  })).filter((point) => point.heard > Date.now() - KEPT_MS && (!own.length || point.heard < own[own.length - 1].heard));
  if (!told.length) return;
  const [first, last] = [told[0].heard, told[told.length - 1].heard];
  state.history.set(name, [...own.filter((one) => one.heard < first), ...told, ...own.filter((one) => one.heard > last)]);
  draw();
}

function dispatch(text) {
  const fields = {};
  for (const line of text.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  const data = JSON.parse(fields.data);
  if (fields.id) state.lastEvent = fields.id;
  if (fields.event === "state") onState(data);
  else if (data.pool === state.pool) addDecision(data, true);
}

function online(yes) {
  $("link").textContent = yes ? "live" : "connection lost; trying again";
  $("link").classList.toggle("live", yes);
  $("link").classList.toggle("lost", !yes);
  document.body.classList.toggle("stale", !yes);
}

// ---- state, once a second

function onState(data) {
  const names = data.pools.map((pool) => pool.name);
  if (names.join() !== [...$("pool").options].map((option) => option.value).join()) {
    $("pool").replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    choose(names.includes(state.pool) ? state.pool : names[0]);
  }
  for (const pool of data.pools) {
    const history = state.history.get(pool.name) || [];
    history.push({ ...pool, heard: Date.now() });
    while (history[0].heard < Date.now() - KEPT_MS) history.shift();
    state.history.set(pool.name, history);
  }
  draw();
}

function choose(name) {
  state.pool = name;
  $("pool").value = name;
  state.dirty.clear();
  $("decisions").replaceChildren();
  state.marks = [];
  $("silent").hidden = false;
  call("GET", `${base()}/decisions?limit=100`)
    .then((found) => found.decisions.reverse().forEach((decision) => addDecision(decision, false)))
    .then(refresh)
    .catch((problem) => say(problem.message));
  seed(name).catch((problem) => say(problem.message));
}

async function refresh() {
  if (state.pool && !document.hidden) {
    try {
      showDetail(await call("GET", base()));
    } catch (problem) {
      // The event stream already says that the connection is gone.
    }
  }
}

// ---- the SLO, in one look

function draw() {
  const history = state.history.get(state.pool);
  if (!history || !history.length) return;
  const now = history[history.length - 1];
  showPromise(now);
  showVitals(now);
  const latencies = Object.keys(LATENCIES);
  if (!state.shown) state.shown = worst(now)?.name || "e2e";
  if (!$("tabs").children.length) {
    $("tabs").append(...latencies.map((name) => el("label", {},
      el("input", { type: "radio", name: "latency", value: name, checked: name === state.shown,
        onchange: () => { state.shown = name; draw(); } }), ` ${LATENCIES[name]}`)));
  }
  const at = history.map((pool) => pool.heard);
  const marks = state.marks.map((mark) => mark + state.skew);
  const pick = (name, label, of) => ({ name, label, values: history.map(of) });
  const quantile = (q) => (pool) => pool.quantiles?.[state.shown]?.[q]?.value_ms ?? null;
  const target = { ...pick("target", "target", (pool) => pool.slo[`${state.shown}_ms`]), step: true };
  latencyChart.show(at, [target, pick("p50", "P50", quantile("p50")), pick("p99", "P99", quantile("p99"))],
    { breach: ["p99", "target"], marks });
  const found = now.quantiles?.[state.shown];
  $("latency-text").textContent = found?.n
    ? `${LATENCIES[state.shown]}: P99 ${ms(found.p99.value_ms)}, P50 ${ms(found.p50.value_ms)}, `
      + `target ${ms(now.slo[`${state.shown}_ms`])}, over ${found.n} requests of the last minute.`
    : `${LATENCIES[state.shown]}: no requests in the last minute.`;
  const batch = { ...pick("batch", "batch size", (pool) => pool.setpoints.max_batch_size), step: true };
  setpointsChart.show(at, [pick("inflight", "in flight", (pool) => pool.inflight), batch], { marks });
  $("setpoints-text").textContent = `Batch size ${now.setpoints.max_batch_size}, window ${ms(now.setpoints.window_ms)}, `
    + `turned by ${now.law}. ${now.queued} waiting, ${now.inflight} in flight.`;
}

// Every target in force with what the evidence says, the worst first.
function judged(pool) {
  const q = `p${Math.round(100 * pool.slo.quantile)}`;
  return Object.keys(LATENCIES).filter((name) => pool.slo[`${name}_ms`] !== null).map((name) => {
    const found = pool.quantiles?.[name]?.[q] || pool.quantiles?.[name]?.p99;
    const verdict = pool.attainment?.[name] || { verdict: "unproven", n: 0, late: 0 };
    const target = pool.slo[`${name}_ms`];
    return { name, q: q.toUpperCase(), target, found, used: (found?.value_ms ?? 0) / target, ...verdict };
  });
}

const worst = (pool) => judged(pool).sort((a, b) => RANK[b.verdict] - RANK[a.verdict] || b.used - a.used)[0];

function showPromise(pool) {
  const targets = judged(pool), first = worst(pool);
  $("headline").className = `card ${first ? first.verdict : ""}`;
  const [mark, word] = first ? WORDS[first.verdict] : ["", "There is no SLO"];
  if ($("verdict-word").textContent !== word) {
    $("verdict-mark").textContent = mark;
    $("verdict-word").textContent = word;
  }
  $("verdict-why").textContent = `${why(targets, first)} ${away(pool)}`.trim();
  document.title = `${mark} ${pool.name} · Trimtab`.trim();
  $("slo-cards").replaceChildren(...targets.map((one) => {
    const interval = one.found && one.found.low_ms !== null && one.found.high_ms !== null
      ? `; between ${ms(one.found.low_ms)} and ${ms(one.found.high_ms)}` : "";
    const fill = el("i", { className: one.used > 1 ? "over" : one.used > 0.85 ? "tight" : "" });
    fill.style.width = `${Math.min(100, 100 * one.used)}%`;
    return el("li", { className: one.verdict },
      `${LATENCIES[one.name]} `, el("span", { className: "verdict" }, one.verdict),
      el("b", {}, ms(one.found?.value_ms)), el("span", { className: "meter", ariaHidden: "true" }, fill),
      el("small", {}, `target ${ms(one.target)} at ${one.q}; ${one.late} late of ${one.n}${interval}`));
  }));
}

function why(targets, first) {
  if (!first) return "Set a target below, and the controller works for it.";
  const seen = first.n ? `${first.late} of ${first.n} came late in the last minute` : "no requests in the last minute";
  if (first.verdict === "missed") {
    const also = targets.filter((one) => one.verdict === "missed" && one !== first && one.name !== first.name)
      .map((one) => LATENCIES[one.name].toLowerCase());
    return `${LATENCIES[first.name]}: ${first.q} is ${ms(first.found?.value_ms)} where ${ms(first.target)} is the target; ${seen}.`
      + (also.length ? ` So ${also.length === 1 ? "is" : "are"} ${also.join(" and ")}.` : "");
  }
  if (first.verdict === "met") return `Every target holds, with 95% certainty. The tightest, ${LATENCIES[first.name].toLowerCase()}: ${seen}.`;
  return first.n
    ? `${LATENCIES[first.name]}: ${seen}, ${first.q} ${ms(first.found?.value_ms)} of ${ms(first.target)}. Too few to be sure at ${first.q}.`
    : "There were no requests to judge by in the last minute.";
}

// How many the last minute's requests were, and how many of them got no chance or no answer.
function fates(pool) {
  const { ok = 0, refused = 0, shed = 0, failed = 0, timeout = 0 } = pool.counts || {};
  return { all: ok + refused + shed + failed + timeout, turned: refused + shed, broken: failed + timeout };
}

function away(pool) {
  const { all, turned, broken } = fates(pool);
  const words = [[turned, "turned away to keep it for the rest"], [broken, "failed upstream"]]
    .filter(([count]) => count > 0.05 * all).map(([count, word]) => `${share(count / all)} of requests were ${word}.`.replace("were failed", "failed"));
  return words.join(" ");
}

function showVitals(pool) {
  const { all, turned, broken } = fates(pool);
  const part = (count) => (count ? `${count} (${share(count / all)})` : "0");
  $("vitals").replaceChildren(...[
    ["Arriving", `${(pool.arrival_rate ?? 0).toFixed(1)}/s`], ["Waiting", pool.queued], ["In flight", pool.inflight],
    ["Batch size", pool.setpoints.max_batch_size], ["Window", ms(pool.setpoints.window_ms)],
    ["Turned away", part(turned), turned > 0], ["Failed", part(broken), broken > 0],
  ].map(([term, value, bad]) => el("div", { className: bad ? "bad" : "" }, el("dt", {}, term), el("dd", {}, String(value)))));
}

function showHolder(detail) {
  const pinned = Object.entries(detail.pins).map(([name, value]) => `${SETPOINTS[name]} is pinned at ${value}`);
  const held = detail.frozen ? ["Every setpoint is frozen", ...pinned] : pinned;
  $("holder").classList.toggle("held", held.length > 0);
  $("holder").textContent = held.length
    ? `${held.join("; ")}: the law ${detail.law} cannot react with what is held.`
    : `The setpoints are turned by the law ${detail.law}.`;
}

// ---- steering

const SCALE = 1000; // steps of a slider
const toSlide = (value, low, high) => Math.round((SCALE * Math.log(value / low)) / Math.log(high / low));
const fromSlide = (step, low, high) => Number((low * (high / low) ** (step / SCALE)).toPrecision(2));

function field(id, label, value, slider, onInput) {
  const number = el("input", { id, type: "number", step: "any", min: "0", value: value ?? "", placeholder: "none" });
  const range = el("input", { type: "range", "aria-label": `${label}, coarse`, ...slider.range, value: slider.to(value) });
  const touched = () => { state.dirty.add(id); row.classList.add("changed"); onInput?.(); };
  number.addEventListener("input", () => { range.value = slider.to(number.valueAsNumber); touched(); });
  range.addEventListener("input", () => { number.value = slider.from(range.valueAsNumber); touched(); });
  const row = el("div", { className: "field" }, el("label", { htmlFor: id }, label), range, number);
  return row;
}

function showDetail(detail) {
  state.detail = detail;
  showHolder(detail);
  if (![...state.dirty].some((id) => id.startsWith("slo-")) && !$("slo").contains(document.activeElement)) {
    const slider = { range: { min: 0, max: SCALE, step: 1 },
      to: (value) => (value > 0 ? toSlide(value, 1, 600000) : SCALE), from: (step) => fromSlide(step, 1, 600000) };
    $("targets").replaceChildren(...Object.entries(LATENCIES).map(([name, label]) =>
      field(`slo-${name}`, `${label}, ms`, detail.slo[`${name}_ms`], slider)));
  }
  if (![...state.dirty].some((id) => id.startsWith("setpoint-")) && !$("pins").contains(document.activeElement)) {
    $("setpoint-fields").replaceChildren(...Object.entries(SETPOINTS).map(([name, label]) => {
      const stem = name.replace("max_", "");
      const [low, high] = [detail.bounds[`min_${stem}`], detail.bounds[`max_${stem}`]];
      const slider = { range: { min: low, max: high, step: name === "window_ms" ? 0.5 : 1 }, to: (value) => value, from: (value) => value };
      const pinned = name in detail.pins ? " (pinned)" : "";
      return field(`setpoint-${name}`, label + pinned, detail.setpoints[name], slider, preview);
    }));
    preview();
  }
  if (document.activeElement !== $("law")) {
    $("law").replaceChildren(...detail.laws.map((name) => el("option", { value: name, selected: name === detail.law }, name)));
  }
  $("freeze").setAttribute("aria-pressed", String(detail.frozen));
  $("freeze").textContent = detail.frozen ? "Frozen: let the law go on" : "Freeze the setpoints";
  $("expiring").replaceChildren(...detail.expiring.map((one) => el("li", {}, `${PENDING[one.kind] || one.kind} back in ${ago(one.in_s)}.`)));
  $("upstreams").replaceChildren(...(detail.stats.upstreams || []).map((up) => el("tr", {},
    el("th", { scope: "row" }, up.url), el("td", { className: up.state }, up.state), el("td", {}, String(up.inflight)),
    el("td", {}, String(up.served)), el("td", {}, share(up.failure_rate)))));
  const queue = detail.stats.queue || { by_class: {} };
  $("queue").replaceChildren(...[
    ...Object.entries(queue.by_class).map(([name, count]) => [`Waiting, ${name}`, count]),
    ["Oldest", ms(1000 * (queue.oldest_age_s || 0))], ["In flight", detail.inflight],
    ["Room", queue.max_requests],
  ].flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, String(value))]));
}

function preview() {
  const predicted = state.detail?.live?.model?.whole?.predicted_ms || state.detail?.live?.model?.predicted_ms;
  const size = $("setpoint-max_batch_size")?.valueAsNumber;
  if (!predicted || !Object.keys(predicted).length || !(size > 0)) { $("preview").textContent = ""; return; }
  const at = (wanted) => {
    const points = Object.entries(predicted).map(([key, value]) => [Number(key), value]).sort((a, b) => a[0] - b[0]);
    const above = points.find(([key]) => key >= wanted);
    const below = points.filter(([key]) => key <= wanted).pop();
    if (!above || !below) return (above || below)[1];
    if (above[0] === below[0]) return above[1];
    return below[1] + ((above[1] - below[1]) * (wanted - below[0])) / (above[0] - below[0]);
  };
  const now = state.detail.setpoints.max_batch_size;
  $("preview").textContent = `At batch size ${size} the model expects a service time of ${ms(at(size))}`
    + (size === now ? "." : `; now, at ${now}, ${ms(at(now))}.`);
}

$("slo").addEventListener("submit", (event) => {
  event.preventDefault();
  const body = {};
  for (const name of Object.keys(LATENCIES)) {
    if (!state.dirty.has(`slo-${name}`)) continue;
    const value = $(`slo-${name}`).value;
    body[`${name}_ms`] = value === "" ? null : Number(value);
  }
  if (Object.keys(body).length) change("PATCH", `/slo${held()}`, body);
});
$("pins").addEventListener("submit", (event) => {
  event.preventDefault();
  const body = {};
  for (const name of Object.keys(SETPOINTS)) body[name] = Number($(`setpoint-${name}`).value);
  change("PATCH", `/setpoints${held()}`, body);
});
$("try").addEventListener("click", async () => {
  const setpoints = {};
  for (const name of Object.keys(SETPOINTS)) setpoints[name] = Number($(`setpoint-${name}`).value);
  $("paper").textContent = "Playing the last minutes' requests...";
  try {
    const found = await call("POST", `${base()}/what-if`, { setpoints });
    const words = (one) => `${one.goodput.toFixed(2)} on time a second, P99 ${ms(one.p99_s === null ? null : 1000 * one.p99_s)}, `
      + `${share(one.late_share)} late, ${share(one.refused_share + one.shed_share)} turned away`;
    $("paper").textContent = `Simulated on ${found.requests} requests. As it is: ${words(found.now)}. With these values: ${words(found.then)}.`;
  } catch (problem) {
    $("paper").textContent = problem.message;
  }
});
$("unpin").addEventListener("click", () => change("DELETE", "/pins"));
$("law-form").addEventListener("submit", (event) => {
  event.preventDefault();
  change("PUT", `/law${held()}`, { law: $("law").value });
});
$("freeze").addEventListener("click", () => change("PUT", `/freeze${held()}`, { frozen: !state.detail.frozen }));
$("pool").addEventListener("change", () => choose($("pool").value));
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("trimtab-token", $("token").value);
  $("token").value = "";
  $("login").hidden = true;
});

// ---- decisions

function addDecision(decision, live) {
  const id = `decision-${decision.id}`;
  if ($(id)) return;
  const undoable = UNDOABLE.has(decision.rule) || "max_batch_size" in decision.old;
  const when = new Date(1000 * decision.wall);
  const kind = decision.rule.startsWith("shadow.") ? "shadow" : decision.actor === "controller" ? "law" : "operator";
  const who = decision.actor.replace(/^admin:/, "");
  const item = el("li", { id, className: kind },
    el("small", {}, el("time", { dateTime: when.toISOString() }, when.toLocaleTimeString([], { hour12: false })),
      ` · #${decision.id} · ${decision.rule} · ${who}`),
    el("div", {}, decision.text));
  item.heard = Date.now();
  if (kind !== "shadow") state.marks.push(1000 * decision.wall);
  $("silent").hidden = true;
  if (undoable) {
    item.append(el("div", {}, el("button", { type: "button", "aria-label": `Undo decision ${decision.id}`,
      onclick: () => change("POST", "/rollback", { decision: decision.id }) }, "Undo")));
  }
  $("decisions").prepend(item);
  showOutcome(decision);
  while ($("decisions").children.length > 200) $("decisions").lastChild.remove();
  if (live) refresh();
}

function showOutcome(decision) {
  const item = $(`decision-${decision.id}`);
  if (!decision.outcome || !item || item.querySelector(".came")) return;
  item.querySelector("div").after(el("small", { className: "came" }, decision.outcome));
}

// What came of a decision is known seconds after it, and no event says so.
async function followUp() {
  const pool = state.pool;
  const open = [...$("decisions").children].some(
    (item) => !item.querySelector(".came") && item.heard > Date.now() - OPEN_MS);
  if (!open || document.hidden) return;
  try {
    const found = await call("GET", `${base()}/decisions?limit=20`);
    if (state.pool === pool) found.decisions.forEach(showOutcome);
  } catch (problem) {
    // The event stream already says that the connection is gone.
  }
}

setInterval(refresh, 2000);
setInterval(followUp, 2000);
listen();
