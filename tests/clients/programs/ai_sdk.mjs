// Vercel's ai-sdk: generateText with tools, generateObject, streams, over both of OpenAI's APIs.
// Arguments: base URL, "real" or "scripted", model.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, kind, name] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "-" });
const compatible = createOpenAICompatible({ name: "baton", baseURL, supportsStructuredOutputs: true });
const City = z.object({ city: z.enum(["Bern", "Basel"]) });
const weather = tool({
  description: "Forecast for a city.",
  inputSchema: City,
  execute: async ({ city }) => `${city}: sunny`,
});

for (const model of [openai.chat(name), openai.responses(name), compatible(name)]) {
  const providerOptions = { openai: { store: false } };
  const common = { model, maxRetries: 0, prompt: "Bern or Basel?", providerOptions };
  const { object } = await generateObject({ ...common, schema: City });
  assert.ok(["Bern", "Basel"].includes(object.city));
  const forced = await generateText({ ...common, tools: { weather }, toolChoice: "required" });
  assert.equal(forced.toolCalls[0].toolName, "weather");
  assert.ok(["Bern", "Basel"].includes(forced.toolCalls[0].input.city));
  const streamed = streamText({ ...common, maxOutputTokens: 8 });
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  assert.ok(text.length > 0);
  if (kind !== "real") {
    const agent = await generateText({ ...common, tools: { weather }, stopWhen: stepCountIs(3) });
    assert.equal(agent.steps.length, 2);
    assert.equal(agent.text, "Sunny.");
  }
}
