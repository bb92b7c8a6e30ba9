// Vercel's AI SDK: `node vercel_ai.cjs URL`, with NODE_PATH at npm's packages.
const assert = require("node:assert");
const { generateObject, generateText, Output, streamText, tool } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { version } = require("ai/package.json");
const { z } = require("zod");

const right = z.enum(["read", "write"]);
const Mill = z.object({ kind: z.literal(["wind", "water"]), rights: z.record(right, z.boolean()) });
// The model would think, or call, until it is cut.
const own = { parallel_tool_calls: false, chat_template_kwargs: { enable_thinking: false } };
const ask = { prompt: "which mill?", maxOutputTokens: 500, maxRetries: 0, providerOptions: { millstream: own } };

async function main(url) {
  console.log(`ai ${version}`);
  const provider = createOpenAICompatible({
    name: "millstream", baseURL: `${url}/v1`, apiKey: "none", supportsStructuredOutputs: true,
  });
  const model = provider("default");
  const stream = streamText({ ...ask, model, maxOutputTokens: 8 });
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert(["stop", "length"].includes(await stream.finishReason));
  console.log("  stream passed");
  const { object } = await generateObject({ ...ask, model, schema: Mill });
  Mill.parse(object);
  const { output } = await generateText({ ...ask, model, output: Output.object({ schema: Mill }) });
  Mill.parse(output);
  console.log("  objects passed");
  const given = [];
  const allow = tool({
    description: "Allows.", inputSchema: Mill, execute: async (input) => { given.push(input); return "done"; },
  });
  const called = await generateText({ ...ask, model, tools: { allow }, toolChoice: "required" });
  assert.equal(called.toolCalls[0].toolName, "allow");
  assert.equal(given.length, 1);
  console.log("  tools passed");
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
