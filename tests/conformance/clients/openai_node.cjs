// OpenAI's client for node: `node openai_node.cjs URL`, with NODE_PATH at npm's packages.
const assert = require("node:assert");
const { OpenAI, BadRequestError } = require("openai");
const { VERSION } = require("openai/version");

const parameters = {
  type: "object", properties: { yes: { type: "boolean" } }, required: ["yes"], additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "look_up", parameters } }];

async function main(url) {
  console.log(`openai for node ${VERSION}`);
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
  const ask = { model: "default", messages: [{ role: "user", content: "hello" }], max_tokens: 8 };
  const whole = await client.chat.completions.create({ ...ask, n: 2 });
  assert.deepEqual(whole.choices.map((choice) => choice.index), [0, 1]);
  const stream = await client.chat.completions.create({
    ...ask, stream: true, stream_options: { include_usage: true },
  });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  assert(chunks.at(-1).usage.completion_tokens <= 8);
  console.log("  chat and stream passed");
  const called = await client.chat.completions.create({
    ...ask, max_tokens: 500, tools, tool_choice: "required", parallel_tool_calls: false,
  });
  assert.equal(called.choices[0].message.tool_calls[0].function.name, "look_up");
  console.log("  tools passed");
  const texts = await client.completions.create({ model: "default", prompt: ["mills", "wind"], max_tokens: 4 });
  assert.deepEqual(texts.choices.map((choice) => choice.index), [0, 1]);
  console.log("  completions passed");
  await assert.rejects(client.chat.completions.create({ ...ask, temperature: "hot" }), BadRequestError);
  console.log("  errors passed");
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
