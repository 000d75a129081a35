// The live figures: polls /status once a second while the page is visible.

import { bytes, count, element, seconds, sparkline, stageBar, waterfall } from "./draw.js";
import { headers, onKeysChange } from "./chat.js";

const POLL_MS = 1000;
const PAUSES = 4;
const ROWS = 8;
const byId = (id) => document.getElementById(id);
const open = new Set();
let latest = null;
let allRows = false;

async function poll() {
  if (!document.hidden) {
    try {
      const answer = await fetch(statusPath(), { headers: headers("metrics-key"), cache: "no-store" });
      if (answer.ok) show(await answer.json());
      else refused(answer.status);
    } catch {
      connection("no connection", "bad");
    }
  }
  setTimeout(poll, POLL_MS);
}

function statusPath() {
  const model = byId("models").value;
  return model ? `status?model=${encodeURIComponent(model)}` : "status";
}

/** A choice of models, if there are several. */
function offer(models, shown) {
  const select = byId("models");
  select.hidden = models.length < 2;
  if (select.hidden || select.options.length === models.length) return;
  select.replaceChildren(...models.map((name) => new Option(name, name, false, name === shown)));
}

function connection(text, kind) {
  const badge = byId("connection");
  badge.textContent = text;
  badge.className = `badge ${kind}`;
}

function refused(status) {
  const locked = status === 401 || status === 403;
  connection(locked ? "figures locked" : `error ${status}`, "bad");
  byId("notice").hidden = !locked;
  byId("notice").textContent =
    "The figures take a key of --metrics-key-file: see Keys above. The chat takes an API key.";
}

function show(status) {
  latest = status;
  byId("notice").hidden = true;
  const { model, models, workers } = status;
  offer(models, model.name);
  document.title = `${model.name} · Baton`;
  byId("model").textContent = model.name;
  const device = workers.find((worker) => worker.device);
  byId("about").textContent = [
    model.mode,
    device ? `${device.device}, ${device.dtype}` : null,
    `context ${model.max_model_len.toLocaleString("en")}`,
    `up ${uptime(status.uptime_s)}`,
  ].filter(Boolean).join(" · ");
  const ready = workers.filter((worker) => worker.state === "ready").length;
  const failed = workers.some((worker) => worker.state !== "ready" && worker.state !== "stopped");
  const kind = failed ? "bad" : ready < workers.length ? "" : "good";
  connection(ready < workers.length ? `${ready} of ${workers.length} workers` : "live", kind);
  showFigures(status);
  showWorkers(status);
  showPauses(status.pauses);
  showRequests(status.ended);
}

function uptime(s) {
  if (s < 120) return `${Math.floor(s)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}

function showFigures({ requests, tokens, ttft_s, read_s, itl_s, e2e_s }) {
  const spread = (q) => (q ? `p90 ${seconds(q.p90)} · p99 ${seconds(q.p99)}` : "no request in the last minute");
  const waiting = requests.waiting + requests.held_back;
  const wait = requests.predicted_wait_s > 0 ? ` · wait about ${seconds(requests.predicted_wait_s)}` : "";
  byId("figures").replaceChildren(
    tile("Output", count(tokens.output_per_s), "tokens/s", null, sparkline(tokens.output_history, "var(--first_decode)")),
    tile("Prompts", count(tokens.prompt_per_s), "tokens/s", null, sparkline(tokens.prompt_history, "var(--prefill)")),
    tile("Running", count(requests.running), requests.running === 1 ? "request" : "requests", `${count(requests.ended_per_s)} ended/s`),
    tile("Waiting", count(waiting), waiting === 1 ? "request" : "requests", `${count(requests.queued_tokens)} prompt tokens ahead${wait}`),
    tile("TTFT p50", seconds(ttft_s?.p50), "", spread(ttft_s)),
    ...(read_s ? [tile("Read p50", seconds(read_s.p50), "", spread(read_s))] : []),
    tile("ITL p50", seconds(itl_s?.p50), "", spread(itl_s)),
    tile("Request p50", seconds(e2e_s?.p50), "", spread(e2e_s)),
  );
}

function tile(name, value, unit, more, drawing) {
  return element("div", "tile", element("div", "name", name),
    element("div", "value", value, " ", element("small", "", unit)),
    more ? element("div", "more", more) : null, drawing);
}

function showWorkers({ model, workers, links }) {
  const split = model.mode !== "mixed";
  byId("graph").classList.toggle("mixed", !split);
  const cards = new Map(workers.map((worker) => [worker.id, card(worker)]));
  const column = (...roles) => workers.filter((w) => !split || roles.includes(w.role)).map((w) => cards.get(w.id));
  byId("prefill-column").replaceChildren(...(split ? column("encode", "prefill") : []));
  byId("decode-column").replaceChildren(...column("decode"));
  drawLinks(split ? pairs(model.mode, workers, links) : [], cards);
}

/** Every link there may be, with what went over it; in adaptive mode only those that were used. */
function pairs(mode, workers, links) {
  if (mode !== "disagg") return links;
  const used = new Map(links.map((link) => [`${link.from} ${link.to}`, link]));
  const of = (role) => workers.filter((worker) => worker.role === role);
  return of("prefill").flatMap((from) => of("decode").map((to) =>
    used.get(`${from.id} ${to.id}`) ?? { from: from.id, to: to.id, bytes: 0, bytes_per_s: 0, handoffs: 0 }));
}

function card(worker) {
  const kind = { ready: "", late: "warn", suspect: "warn", draining: "warn", stopped: "off" }[worker.state] ?? "bad";
  const made = element("div", `worker ${kind}`);
  const state = worker.state === "stopped" ? "stopped (drained)" : worker.state;
  made.append(element("span", "state", state), element("h3", "", worker.id));
  if (!worker.pages) return made;
  const total = Object.values(worker.pages).reduce((sum, pages) => sum + pages, 0);
  const bar = element("div", "bar");
  for (const [state, pages] of Object.entries(worker.pages)) {
    const part = element("i", state);
    part.style.width = `${(100 * pages) / total}%`;
    part.title = `${state.replace("_", " ")}: ${pages} pages`;
    bar.append(part);
  }
  const percent = (pages) => `${Math.round((100 * pages) / total)}%`;
  const { held, cached, in_flight: inFlight, quarantined } = worker.pages;
  const kv = [`${percent(held)} held`, inFlight ? `${percent(inFlight)} in flight` : null,
    quarantined ? `${percent(quarantined)} quarantined` : null, `${percent(cached)} cached`];
  const shares = element("p", "kv", `KV ${kv.filter(Boolean).join(", ")}`);
  shares.title = `of ${count(total)} pages`;
  const figure = (value, text) => element("span", "", element("b", "", count(value)), ` ${text} `);
  const rates = { prompt: worker.prompt_tokens_per_s, out: worker.output_tokens_per_s };
  made.append(bar,
    shares,
    ...worker.tiers.flatMap(tier),
    ...adapters(worker),
    worker.weight_version === "default" ? "" : element("p", "", `weights ${worker.weight_version}`),
    element("p", "", figure(worker.running, "running"), figure(worker.waiting, "waiting")),
    element("p", "", figure(rates.prompt, "in/s"), figure(rates.out, "out/s")));
  return made;
}

/** KV below the pool, and how much of it came back. */
function tier({ name, bytes: used, capacity_bytes: capacity, promoted_bytes: promoted }) {
  const bar = element("div", "bar tier");
  const part = element("i", "cached");
  part.style.width = `${(100 * used) / capacity}%`;
  bar.append(part);
  const came = promoted ? element("span", "wide", `, ${bytes(promoted)} came back`) : null;
  return [bar, element("p", "", `${name} ${bytes(used)} of ${bytes(capacity)}`, came)];
}

/** Adapters that a step can compute with, and those in host memory. */
function adapters({ adapters: loaded, max_loras: slots }) {
  if (!slots) return [];
  const used = loaded.filter((adapter) => adapter.on_device);
  const line = element("p", "", `adapters ${used.length} of ${slots} slots`,
    element("span", "wide", `, ${count(loaded.length)} loaded`));
  line.title = loaded.map(({ name, running, waiting }) => `${name}: ${running} running, ${waiting} waiting`).join("\n");
  return [line];
}

function drawLinks(links, cards) {
  const svg = byId("links");
  const frame = svg.getBoundingClientRect();
  const drawn = links.flatMap((link, index) => {
    const [from, to] = [cards.get(link.from), cards.get(link.to)];
    if (!from || !to || from === to) return [];
    const [a, b] = [from.getBoundingClientRect(), to.getBoundingClientRect()];
    const reversed = a.left > b.left;
    const isLevel = a.left === b.left; // within one column: bend towards the middle of the graph
    const isRight = a.left - frame.left > frame.width / 2;
    const x1 = (reversed || (isLevel && isRight) ? a.left : a.right) - frame.left;
    const x2 = isLevel ? x1 : (reversed ? b.right : b.left) - frame.left;
    const y1 = a.top + a.height / 2 - frame.top, y2 = b.top + b.height / 2 - frame.top;
    const bend = isLevel ? x1 + (isRight ? -45 : 45) : (x1 + x2) / 2;
    const path = svgElement("path", { d: `M${x1},${y1} C${bend},${y1} ${bend},${y2} ${x2},${y2}` });
    const flowing = link.bytes_per_s > 0;
    path.setAttribute("class", flowing ? "flow" : "");
    path.setAttribute("stroke-width", flowing ? Math.min(2 + Math.log10(1 + link.bytes_per_s / 1e5), 8) : 1.5);
    if (!link.bytes) return [path];
    // Labels of links that cross lie at different heights of their curves.
    const isWide = Math.abs(x2 - x1) > 120;
    const at = links.length > 1 && isWide ? 0.3 + 0.4 * ((index % 3) / 2) : 0.5;
    const mean = isLevel ? (x1 + bend) / 2 : x1 + (x2 - x1) * at;
    const height = y1 + (y2 - y1) * (3 * at * at - 2 * at * at * at);
    const label = svgElement("text", { x: mean, y: height - 6 });
    label.textContent = flowing ? `${bytes(link.bytes_per_s)}/s` : bytes(link.bytes);
    const title = svgElement("title", {});
    title.textContent = `${link.handoffs} handoffs, ${bytes(link.bytes)} since the start`;
    label.append(title);
    return [path, label];
  });
  svg.replaceChildren(...drawn);
}

function svgElement(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** How an answer ended that did not fail, by finish reason. */
const ENDS = { stop: "ended by itself (stop)", length: "ended at its limit of tokens (length)" };

/** Gaps between tokens that readers notice, the latest first. */
function showPauses(pauses) {
  const line = byId("pauses");
  line.hidden = !pauses.length;
  line.textContent = `Last pauses: ${pauses.slice(0, PAUSES).map(pause).join(" · ")}`;
}

function pause({ seconds: length, worker, cause, answers, ended_s_ago: ago }) {
  return `${seconds(length)} on ${worker}, ${cause} (${count(answers)} ${answers === 1 ? "answer" : "answers"}, ${uptime(ago)} ago)`;
}

function showRequests(ended) {
  if (!ended.length) return;
  const longest = Math.max(...ended.map((request) => request.timings.e2e_s));
  const more = byId("more");
  more.hidden = ended.length <= ROWS;
  more.textContent = allRows ? `Show ${ROWS}` : `Show all ${ended.length}`;
  byId("requests").replaceChildren(...ended.slice(0, allRows ? ended.length : ROWS).map((request) => {
    const row = element("details", "request");
    const isGood = request.outcome in ENDS;
    const ago = `${uptime(request.ended_s_ago)} ago`;
    row.open = open.has(request.id);
    row.addEventListener("toggle", () => (row.open ? open.add(request.id) : open.delete(request.id)));
    row.append(
      element("summary", "",
        element("span", isGood ? "muted" : "failed", isGood ? ago : `${ago} · ${request.outcome.replaceAll("_", " ")}`),
        element("span", "", `${count(request.prompt_tokens)} → ${result(request)}`),
        element("span", "muted", seconds(request.timings.e2e_s)),
        stageBar(request.timings, longest)),
      waterfall(request.timings),
      element("p", "muted", [`request ${request.id}`, ending(request)].filter(Boolean).join(" · ")));
    return row;
  }));
}

function result({ timings, output_tokens: tokens }) {
  return timings.read_s ? "numbers" : `${count(tokens)} tokens`;
}

function ending({ timings, outcome }) {
  return timings.read_s ? "ended with its numbers (read)" : ENDS[outcome];
}

byId("more").addEventListener("click", () => {
  allRows = !allRows;
  showRequests(latest.ended);
});
addEventListener("resize", () => latest && showWorkers(latest));
onKeysChange(() => latest === null && connection("…", ""));
poll();
