// The chat, over the same API as any other client; and the keys that both halves of the page send.

import { element, seconds, waterfall } from "./draw.js";
import { attachImages, contentOf, picture } from "./images.js";

const byId = (id) => document.getElementById(id);
const listeners = [];
const history = [];
let running = null;

export function headers(key) {
  const value = sessionStorage.getItem(key);
  return value ? { authorization: `Bearer ${value}` } : {};
}

export function onKeysChange(listener) {
  listeners.push(listener);
}

function manageKeys() {
  const dialog = byId("keys");
  byId("open-keys").addEventListener("click", () => {
    for (const name of ["api-key", "metrics-key"]) byId(name).value = sessionStorage.getItem(name) ?? "";
    dialog.returnValue = "";
    dialog.showModal();
  });
  dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "use") return;
    for (const name of ["api-key", "metrics-key"]) sessionStorage.setItem(name, byId(name).value.trim());
    listeners.forEach((listener) => listener());
  });
}

function add(role, text) {
  const body = element("div", "text", text);
  const message = element("div", `message ${role}`, body);
  byId("messages").append(message);
  message.scrollIntoView({ block: "nearest" });
  return { message, body };
}

async function send(text, images) {
  if (!history.length) byId("messages").replaceChildren();
  history.push({ role: "user", content: contentOf(text, images) });
  add("user", text).body.append(...images.map(picture));
  const { message, body } = add("assistant", "…");
  running = new AbortController();
  byId("send").textContent = "Stop";
  try {
    const answer = await stream(body, running.signal);
    history.push({ role: "assistant", content: answer.text });
    message.append(...below(answer));
  } catch (error) {
    history.pop();
    if (error.name === "AbortError") {
      message.append(element("p", "rate", "stopped"));
    } else {
      message.classList.add("error");
      body.textContent = error.message;
    }
  } finally {
    running = null;
    byId("send").textContent = "Send";
    byId("messages").scrollTop = byId("messages").scrollHeight;
  }
}

async function stream(body, signal) {
  const system = byId("system").value.trim();
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "content-type": "application/json", ...headers("api-key") },
    body: JSON.stringify({
      model: await modelName(),
      messages: [...(system ? [{ role: "system", content: system }] : []), ...history],
      temperature: Number(byId("temperature").value),
      max_tokens: Number(byId("max-tokens").value),
      stream: true,
      stream_options: { include_usage: true },
      timings: true,
    }),
  });
  if (!response.ok) throw new Error((await problem(response)).message);
  const answer = { text: "", timings: null, usage: null };
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message);
    const piece = event.choices?.[0]?.delta?.content;
    if (piece) body.textContent = answer.text += piece;
    answer.timings = event.timings ?? answer.timings;
    answer.usage = event.usage ?? answer.usage;
    byId("messages").scrollTop = byId("messages").scrollHeight;
  }
  if (!answer.text) body.textContent = "";
  return answer;
}

async function modelName() {
  return byId("models").value || (await modelCard()).id;
}

async function modelCard() {
  const response = await fetch("v1/models", { headers: headers("api-key") });
  if (!response.ok) throw new Error((await problem(response)).message);
  const cards = (await response.json()).data;
  return cards.find((card) => card.id === byId("models").value) ?? cards[0];
}

async function problem(response) {
  const needsKey = response.status === 401 || response.status === 403;
  if (needsKey) return { message: "The chat takes an API key: see Keys above." };
  return (await response.json()).error;
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

function below({ timings, usage }) {
  if (!timings || !usage) return [];
  const decode = timings.e2e_s - timings.ttft_s;
  const rate = decode > 0 ? (usage.completion_tokens - 1) / decode : 0;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const text = [
    `${usage.completion_tokens} tokens`,
    `${rate.toFixed(1)} tokens/s`,
    `first token ${seconds(timings.ttft_s)}`,
    `prompt ${usage.prompt_tokens} tokens` + (cached ? `, ${cached} cached` : ""),
  ].join(" · ");
  return [element("p", "rate", text), waterfall(timings)];
}

const attached = attachImages(byId("chat"), byId("attached"), async () => (await modelCard()).no_images);
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) {
    running.abort();
    return;
  }
  const text = byId("prompt").value.trim();
  const images = attached.taken();
  if (!text && !images.length) return;
  byId("prompt").value = "";
  send(text, images);
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("ask").requestSubmit();
  }
});
byId("clear").addEventListener("click", () => {
  history.length = 0;
  byId("messages").replaceChildren();
  attached.taken();
});
manageKeys();
