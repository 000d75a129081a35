// Numbers as text, and pieces of the page. Text reaches the page through textContent only.

export function element(name, classes = "", ...children) {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 100) return `${Math.round(value)} s`;
  if (value >= 10) return `${value.toFixed(1)} s`;
  if (value >= 1) return `${value.toFixed(2)} s`;
  return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  if (value > 0 && value < 10 && !Number.isInteger(value)) return value.toFixed(1);
  return Math.round(value).toLocaleString("en");
}

export function bytes(value) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${(value / size).toFixed(value >= 100 * size ? 0 : 1)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

const STAGES = ["queue", "prefill", "reserve", "transfer", "first_decode"];

function stagesOf(timings) {
  const stages = STAGES.map((name) => [name, timings[`${name}_s`]]);
  const known = stages.reduce((sum, [, length]) => sum + length, 0);
  return [...stages, ["decode", Math.max(timings.e2e_s - known, 0)]];
}

/** One bar: how the time of a request is shared among its stages. `longest_s` is the width of the bar. */
export function stageBar(timings, longest_s) {
  const bar = element("div", "bar");
  for (const [name, length] of stagesOf(timings)) {
    const part = element("i", name);
    part.style.width = `${(100 * length) / (longest_s || 1)}%`;
    part.title = `${name.replace("_", " ")} ${seconds(length)}`;
    bar.append(part);
  }
  return bar;
}

/** The stages below each other up to the second token, with the spans of chunks and KV pushes. */
export function waterfall(timings) {
  const stages = stagesOf(timings).slice(0, STAGES.length);
  const total = stages.reduce((sum, [, length]) => sum + length, 0) || 1;
  const chart = element("div", "waterfall");
  const row = (name, spans, length, sub) => {
    const track = element("div", "track");
    for (const [begin, end, kind, odd] of spans) {
      const part = element("i", kind);
      part.style.left = `${Math.min((100 * begin) / total, 99.5)}%`;
      part.style.width = `${(100 * Math.max(Math.min(end, total) - begin, 0)) / total}%`;
      if (odd) part.style.opacity = "0.6";
      track.append(part);
    }
    chart.append(element("div", "stage", element("span", sub ? "sub" : "", name), track, element("span", "", length)));
  };
  let begin = 0;
  for (const [name, length] of stages) {
    if (name !== "prefill" && length === 0) continue;
    row(name.replace("_", " "), [[begin, begin + length, name, false]], seconds(length), false);
    begin += length;
    if (name !== "prefill") continue;
    const spans = (list, kind) => list.map((span, i) => [span.begin_s, span.end_s, kind, i % 2 === 1]);
    if (timings.chunks.length) row("chunks", spans(timings.chunks, "prefill"), `${timings.chunks.length}`, true);
    if (timings.encodes.length) row("encode", spans(timings.encodes, "encode"), seconds(timings.encode_s), true);
    if (timings.row_transfers.length) row("image rows", spans(timings.row_transfers, "transfer"), "", true);
    if (timings.pushes.length) {
      const sent = timings.pushes.reduce((sum, push) => sum + push.bytes, 0);
      row("KV pushes", spans(timings.pushes, "transfer"), bytes(sent), true);
    }
  }
  const place = timings.prefill_worker === timings.decode_worker || !timings.decode_worker
    ? timings.prefill_worker
    : `${timings.prefill_worker} → ${timings.decode_worker}`;
  chart.append(element("p", "summary",
    [place, timings.placement, arrived(timings), `all ${seconds(timings.e2e_s)}`, drafts(timings)]
      .filter(Boolean).join(" · ")));
  return chart;
}

function arrived({ read_s, ttft_s }) {
  return read_s ? `numbers ${seconds(read_s)}` : `first token ${seconds(ttft_s)}`;
}

/** How many drafted tokens were right; empty if none were drafted. */
function drafts({ drafted_tokens, accepted_tokens }) {
  return drafted_tokens ? `${accepted_tokens} of ${drafted_tokens} drafted tokens right` : "";
}

/** A line of the last minute, for a tile. */
export function sparkline(values, color) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${values.length - 1} 30`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const top = Math.max(...values, 1);
  const points = values.map((value, x) => `${x},${29 - (26 * value) / top}`).join(" ");
  const area = document.createElementNS("http://www.w3.org/2000/svg", "polygon");
  area.setAttribute("points", `0,30 ${points} ${values.length - 1},30`);
  area.setAttribute("fill", color);
  svg.append(area);
  return svg;
}
