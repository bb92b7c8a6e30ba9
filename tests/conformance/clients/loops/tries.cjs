// Loops of calls with a model that calls by chance: each is run until it has ended twice and called once.
const assert = require("node:assert");
const { z } = require("zod");

const MOST_RUNS = 30;
const TURNS = 6; // of a run
const TOKENS = 400; // of an answer
const OWN = { parallel_tool_calls: false, chat_template_kwargs: { enable_thinking: false } }; // it would go on until it is cut
const QUESTION = "which mill?";
const Mill = z.object({ kind: z.enum(["wind", "water"]), sails: z.number().int().min(2).max(8) });
const Words = z.object({ word: z.string().max(5), old: z.boolean() });

// `run` gets a list for the calls that it has made, and checks its answer. `isCut`: is the error one with which a
// client says that an answer was cut, or that the model went on calling?
async function tried(what, run, isCut) {
  const calls = [];
  const left = new Map();
  let [ended, runs] = [0, 0];
  while (runs < MOST_RUNS && (ended < 2 || !calls.length)) {
    runs += 1;
    try {
      await run(calls);
      ended += 1;
    } catch (error) {
      if (!isCut(error)) throw error;
      const said = `${error.name}: ${String(error.message).split("\n")[0].slice(0, 90)}`;
      left.set(said, (left.get(said) ?? 0) + 1);
    }
  }
  console.log(`  ${what}: ${ended} of ${runs} runs ended, with ${calls.length || "no"} calls in all`);
  for (const [said, count] of left) console.log(`    ${count} cut: ${said}`);
  assert(ended, `no run of ${what} has ended`);
}

module.exports = { Mill, OWN, QUESTION, TOKENS, TURNS, Words, tried };
