// openai's npm package: tools, structured output, responses. Arguments: base URL, "real" or "scripted", model.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [url, kind, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "-", maxRetries: 0 });
const City = z.object({ city: z.enum(["Bern", "Basel"]) });
const messages = [{ role: "user", content: "Bern or Basel?" }];
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Bern", "Basel"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters, strict: true } }];

const parsed = await client.chat.completions.parse({
  model, messages, response_format: zodResponseFormat(City, "city"),
});
assert.ok(["Bern", "Basel"].includes(parsed.choices[0].message.parsed.city));

const runner = client.chat.completions.stream({ model, messages, tools, tool_choice: "required" });
const final = await runner.finalChatCompletion();
assert.ok(JSON.parse(final.choices[0].message.tool_calls[0].function.arguments).city);

const response = await client.responses.parse({
  model, input: "Bern or Basel?", text: { format: zodTextFormat(City, "city") },
});
assert.ok(["Bern", "Basel"].includes(response.output_parsed.city));

const stream = client.responses.stream({
  model, input: "Bern?", tools: [{ type: "function", name: "weather", parameters, strict: true }],
  tool_choice: "required",
});
const whole = await stream.finalResponse();
assert.equal(whole.output[0].type, "function_call");

if (kind !== "real") {
  const run = client.chat.completions.runTools({
    model, messages,
    tools: [{
      type: "function",
      function: { name: "weather", parameters, parse: JSON.parse, function: ({ city }) => `${city}: sunny` },
    }],
  });
  assert.equal(await run.finalContent(), "Sunny.");
}
