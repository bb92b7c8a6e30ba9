// OpenAI's client for node, its runner of tools: `node openai_node_loop.cjs URL`, with NODE_PATH at npm's packages.
const assert = require("node:assert");
const { OpenAI } = require("openai");
const { LengthFinishReasonError } = require("openai/core/error");
const { zodFunction, zodResponseFormat } = require("openai/helpers/zod");
const { VERSION } = require("openai/version");
const { Mill, OWN, QUESTION, TOKENS, TURNS, Words, tried } = require("./tries.cjs");

async function main(url) {
  console.log(`openai for node ${VERSION}`);
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const isCut = (error) =>
    error instanceof LengthFinishReasonError || /could not parse|finish_reason/i.test(error.message);
  for (const stream of [false, true])
    for (const format of [undefined, zodResponseFormat(Mill, "mill")]) {
      const named = `runTools${format ? " with response_format" : ""}${stream ? ", streamed" : ""}`;
      await tried(named, (calls) => run(client, stream, format, calls), isCut);
    }
}

async function run(client, stream, format, calls) {
  const lookUp = zodFunction({
    name: "look_up", description: "Looks a mill up.", parameters: Words,
    function: (words) => { calls.push(Words.parse(words)); return "it is by the water"; },
  });
  const messages = [{ role: "user", content: QUESTION }];
  const ask = { ...OWN, model: "default", messages, max_tokens: TOKENS, tools: [lookUp], stream };
  const runner = client.chat.completions.runTools(
    format ? { ...ask, response_format: format } : ask, { maxChatCompletions: TURNS },
  );
  const last = (await runner.allChatCompletions()).at(-1)?.choices[0] ?? (await runner.finalChatCompletion()).choices[0];
  await runner.done();
  if (format && !last.message.tool_calls?.length) Mill.parse(JSON.parse(await runner.finalContent()));
  assert(last.finish_reason);
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
