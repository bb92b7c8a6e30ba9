// Vercel's AI SDK, steps of tools: `node vercel_ai_loop.cjs URL`, with NODE_PATH at npm's packages.
const assert = require("node:assert");
const { generateText, NoObjectGeneratedError, NoOutputGeneratedError, Output, stepCountIs, streamText, tool } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { version } = require("ai/package.json");
const { Mill, OWN, QUESTION, TOKENS, TURNS, Words, tried } = require("./tries.cjs");

const isCut = (error) => NoObjectGeneratedError.isInstance(error) || NoOutputGeneratedError.isInstance(error);

async function main(url) {
  console.log(`ai ${version}`);
  const provider = createOpenAICompatible({
    name: "millstream", baseURL: `${url}/v1`, apiKey: "none", supportsStructuredOutputs: true,
  });
  for (const typed of [false, true])
    for (const run of [whole, streamed]) {
      const named = `${run === whole ? "generateText" : "streamText"} with tools${typed ? " and Output.object" : ""}`;
      await tried(named, (calls) => run(asked(provider("default"), typed, calls), typed), isCut);
    }
}

function asked(model, typed, calls) {
  const lookUp = tool({
    description: "Looks a mill up.", inputSchema: Words,
    execute: async (words) => { calls.push(words); return "it is by the water"; },
  });
  const ask = {
    model, prompt: QUESTION, maxOutputTokens: TOKENS, maxRetries: 0, providerOptions: { millstream: OWN },
    tools: { look_up: lookUp }, stopWhen: stepCountIs(TURNS),
  };
  return typed ? { ...ask, output: Output.object({ schema: Mill }) } : ask;
}

async function whole(ask, typed) {
  const answer = await generateText(ask);
  if (typed) Mill.parse(answer.output);
  assert(answer.steps.length <= TURNS);
}

async function streamed(ask, typed) {
  let failure;
  const answer = streamText({ ...ask, onError: ({ error }) => { failure ??= error; } });
  const seen = [];
  if (typed) for await (const part of answer.partialOutputStream) seen.push(part);
  else for await (const part of answer.fullStream) seen.push(part);
  if (failure) throw failure;
  if (typed) Mill.parse(await answer.output);
  assert(seen.length);
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
