// The console: one event stream in, a few admin calls out. No dependencies, no build step.
"use strict";

const KEPT = 600; // seconds of history
const LATENCIES = { ttft: "First token", tpot: "Per token", e2e: "End to end", queue: "Queue" };
const KNOBS = { max_batch_size: "Batch size", window_ms: "Window, ms" };
const UNDOABLE = new Set(["admin.slo", "admin.law", "admin.freeze"]);
const $ = (id) => document.getElementById(id);

const state = { pool: "", shown: "", history: new Map(), detail: null, lastEvent: null, dirty: new Set() };

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
    : value >= 10000 ? `${(value / 1000).toFixed(1)} s`
    : value >= 100 ? `${value.toFixed(0)} ms`
    : `${Number(value.toPrecision(3))} ms`;

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
  $("link").classList.toggle("lost", !yes);
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
    history.push(pool);
    if (history.length > KEPT) history.shift();
    state.history.set(pool.name, history);
  }
  draw();
}

function choose(name) {
  state.pool = name;
  $("pool").value = name;
  state.dirty.clear();
  $("decisions").replaceChildren();
  call("GET", `${base()}/decisions?limit=100`)
    .then((found) => found.decisions.reverse().forEach((decision) => addDecision(decision, false)))
    .then(refresh)
    .catch((problem) => say(problem.message));
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

// ---- pictures

function draw() {
  const history = state.history.get(state.pool);
  if (!history || !history.length) return;
  const now = history[history.length - 1];
  showPromise(now);
  const latencies = Object.keys(LATENCIES);
  if (!state.shown) state.shown = latencies.find((name) => now.slo[`${name}_ms`]) || "e2e";
  if (!$("tabs").children.length) {
    $("tabs").append(...latencies.map((name) => el("label", {},
      el("input", { type: "radio", name: "latency", value: name, checked: name === state.shown,
        onchange: () => { state.shown = name; draw(); } }), ` ${LATENCIES[name]}`)));
  }
  const at = (quantile) => history.map((pool) => pool.quantiles?.[state.shown]?.[quantile]?.value_ms ?? null);
  const target = history.map((pool) => pool.slo[`${state.shown}_ms`]);
  const scale = plot($("latency"), 220, [["target", target], ["p50", at("p50")], ["p99", at("p99")]]);
  const found = now.quantiles?.[state.shown];
  $("latency-text").textContent = found?.n
    ? `${LATENCIES[state.shown]}: P99 ${ms(found.p99.value_ms)} (blue), P50 ${ms(found.p50.value_ms)} (grey), `
      + `target ${ms(now.slo[`${state.shown}_ms`])} (dashed), over ${found.n} requests of the last minute. ${scale.replace(/\.$/, " ms.")}`
    : `${LATENCIES[state.shown]}: no requests in the last minute.`;
  const knobs = plot($("knobs"), 110, [["batch", history.map((pool) => pool.setpoints.max_batch_size)],
    ["window", history.map((pool) => pool.setpoints.window_ms)]]);
  $("knobs-text").textContent = `Batch size ${now.setpoints.max_batch_size} (violet), window ${ms(now.setpoints.window_ms)} `
    + `(amber), turned by ${now.law}. ${now.queued} waiting, ${now.inflight} in flight. ${knobs}`;
}

function plot(svg, height, lines) {
  const top = Math.max(1e-9, ...lines.flatMap(([, values]) => values.map((value) => value ?? 0))) * 1.1;
  const span = Math.min(KEPT, Math.max(60, lines[0][1].length));
  const x = (index) => (800 * (span - lines[0][1].length + index)) / (span - 1);
  const y = (value) => height - 4 - ((height - 8) * value) / top;
  const paths = lines.map(([name, values]) => {
    let path = "", pen = "M";
    values.forEach((value, index) => {
      if (value === null || value === undefined) { pen = "M"; return; }
      path += `${pen}${x(index).toFixed(1)},${y(value).toFixed(1)}`;
      pen = "L";
    });
    return [name, path];
  });
  paths.unshift(["grid", `M0,${y(0)}L800,${y(0)}M0,${y(top / 2)}L800,${y(top / 2)}`]);
  svg.replaceChildren(...paths.map(([name, path]) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", "path");
    node.setAttribute("class", name);
    node.setAttribute("d", path);
    return node;
  }));
  return `Last ${span >= 120 ? `${Math.round(span / 60)} minutes` : `${span} s`}, the line in the middle is `
    + `${Number((top / 2).toPrecision(3))}.`;
}

function showPromise(pool) {
  const targets = Object.keys(LATENCIES).filter((name) => pool.slo[`${name}_ms`] !== null);
  if (!targets.length) {
    $("promise").replaceChildren(el("li", {}, "Nothing is promised. Set a target below, and the controller works for it."));
    return;
  }
  $("promise").replaceChildren(...targets.map((name) => {
    const judged = pool.attainment?.[name] || { verdict: "unproven", n: 0, late: 0 };
    const q = `p${Math.round(100 * pool.slo.quantile)}`;
    const found = pool.quantiles?.[name]?.[q] || pool.quantiles?.[name]?.p99;
    const interval = found && found.low_ms !== null && found.high_ms !== null ? ` (${ms(found.low_ms)} to ${ms(found.high_ms)})` : "";
    return el("li", { className: judged.verdict },
      `${LATENCIES[name]} `, el("span", { className: "verdict" }, judged.verdict),
      el("b", {}, ms(found?.value_ms)),
      el("small", {}, `target ${ms(pool.slo[`${name}_ms`])} at ${q.toUpperCase()}; ${judged.late} late of ${judged.n}${interval}`));
  }));
}

// ---- steering

const SCALE = 1000; // steps of a slider
const toSlide = (value, low, high) => Math.round((SCALE * Math.log(value / low)) / Math.log(high / low));
const fromSlide = (step, low, high) => Number((low * (high / low) ** (step / SCALE)).toPrecision(2));

function field(id, label, value, slider, onInput) {
  const number = el("input", { id, type: "number", step: "any", min: "0", value: value ?? "", placeholder: "none" });
  const range = el("input", { type: "range", "aria-label": `${label}, coarse`, ...slider.range, value: slider.to(value) });
  const touched = () => { state.dirty.add(id); onInput?.(); };
  number.addEventListener("input", () => { range.value = slider.to(number.valueAsNumber); touched(); });
  range.addEventListener("input", () => { number.value = slider.from(range.valueAsNumber); touched(); });
  return el("div", { className: "field" }, el("label", { htmlFor: id }, label), range, number);
}

function showDetail(detail) {
  state.detail = detail;
  if (![...state.dirty].some((id) => id.startsWith("slo-")) && !$("slo").contains(document.activeElement)) {
    const slider = { range: { min: 0, max: SCALE, step: 1 },
      to: (value) => (value > 0 ? toSlide(value, 1, 600000) : SCALE), from: (step) => fromSlide(step, 1, 600000) };
    $("targets").replaceChildren(...Object.entries(LATENCIES).map(([name, label]) =>
      field(`slo-${name}`, `${label}, ms`, detail.slo[`${name}_ms`], slider)));
  }
  if (![...state.dirty].some((id) => id.startsWith("knob-")) && !$("pins").contains(document.activeElement)) {
    $("knob-fields").replaceChildren(...Object.entries(KNOBS).map(([name, label]) => {
      const stem = name.replace("max_", "");
      const [low, high] = [detail.bounds[`min_${stem}`], detail.bounds[`max_${stem}`]];
      const slider = { range: { min: low, max: high, step: name === "window_ms" ? 0.5 : 1 }, to: (value) => value, from: (value) => value };
      const pinned = name in detail.pins ? " (pinned)" : "";
      return field(`knob-${name}`, label + pinned, detail.setpoints[name], slider, preview);
    }));
    preview();
  }
  if (document.activeElement !== $("law")) {
    $("law").replaceChildren(...detail.laws.map((name) => el("option", { value: name, selected: name === detail.law }, name)));
  }
  $("freeze").setAttribute("aria-pressed", String(detail.frozen));
  $("freeze").textContent = detail.frozen ? "Frozen: let the law go on" : "Freeze the knobs";
  $("expiring").replaceChildren(...detail.expiring.map((one) => el("li", {}, `${one.kind} goes back in ${Math.round(one.in_s)} s`)));
  $("upstreams").replaceChildren(...(detail.stats.upstreams || []).map((up) => el("tr", {},
    el("th", { scope: "row" }, up.url), el("td", {}, up.state), el("td", {}, String(up.inflight)),
    el("td", {}, String(up.served)), el("td", {}, `${(100 * up.failure_rate).toFixed(1)}%`))));
  const queue = detail.stats.queue || { by_class: {} };
  $("queue").replaceChildren(...[
    ...Object.entries(queue.by_class).map(([name, count]) => [`Waiting, ${name}`, count]),
    ["Oldest", ms(1000 * (queue.oldest_age_s || 0))], ["In flight", detail.inflight],
    ["Room", queue.max_requests],
  ].flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, String(value))]));
}

function preview() {
  const predicted = state.detail?.live?.model?.whole?.predicted_ms || state.detail?.live?.model?.predicted_ms;
  const size = $("knob-max_batch_size")?.valueAsNumber;
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
  for (const name of Object.keys(KNOBS)) body[name] = Number($(`knob-${name}`).value);
  change("PATCH", `/setpoints${held()}`, body);
});
$("try").addEventListener("click", async () => {
  const setpoints = {};
  for (const name of Object.keys(KNOBS)) setpoints[name] = Number($(`knob-${name}`).value);
  $("paper").textContent = "Playing the last minutes' requests...";
  try {
    const found = await call("POST", `${base()}/what-if`, { setpoints });
    const share = (value) => `${(100 * value).toFixed(1)}%`;
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
  const item = el("li", { id },
    el("small", {}, `${new Date(1000 * decision.wall).toLocaleTimeString()} · #${decision.id} ${decision.rule} · ${decision.actor}`),
    el("div", {}, decision.text));
  if (decision.outcome) item.append(el("small", {}, decision.outcome));
  if (undoable) {
    item.append(el("div", {}, el("button", { type: "button", "aria-label": `Undo decision ${decision.id}`,
      onclick: () => change("POST", "/rollback", { decision: decision.id }) }, "Undo")));
  }
  $("decisions").prepend(item);
  while ($("decisions").children.length > 200) $("decisions").lastChild.remove();
  if (live) refresh();
}

setInterval(refresh, 2000);
listen();
