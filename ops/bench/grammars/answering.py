"""One engine that answers chats by a schema, and freely, in turns, in a process of its own: under the
interpreter that the engine is installed in.

    python -m ops.bench.grammars.answering ASSIGNMENT        a JSON object with the fields of `Assignment`
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Assignment:
    engine: str  # millstream | vllm
    folder: str
    prompts: list[list[int]]
    schema: str
    tokens: int  # of an answer, at most
    turns: int
    threads: int
    answer: str  # file that a line of JSON is appended to for each turn
    compile_model: str = "on"  # of ours


@dataclass(frozen=True, slots=True)
class Answers:
    seconds: float
    tokens: int
    steps: int
    finished: list[list[int]]  # tokens of those that came to their end


Ask = Callable[[bool, str], Answers]  # whether by the schema, and a salt


def millstream(given: Assignment) -> Ask:
    from dataclasses import replace

    from millstream_worker.engine.assembly import build
    from millstream_worker.engine.protocol.config import EngineConfig
    from millstream_worker.engine.protocol.outputs import Refused
    from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec, SamplingSpec

    config = EngineConfig(
        given.folder, device="cpu", threads=given.threads, compile_model=given.compile_model, kv_memory="2GiB"
    )
    engine, info = build(config, lambda message: None)
    spec = SamplingSpec(temperature=0.0, end_ids=info.eos_ids)

    def ask(bound: bool, salt: str) -> Answers:
        start = time.perf_counter()
        outputs: list[list[int]] = [[] for _ in given.prompts]
        reasons: dict[int, str] = {}
        steps = 0
        for handle, prompt in enumerate(given.prompts):
            request = EngineRequest(handle, tuple(prompt), given.tokens, spec, salt=salt)
            engine.add(
                replace(request, grammar=GrammarSpec("json_schema", given.schema)) if bound else request
            )
        while not engine.idle:
            for report in engine.take_compiled():
                assert not isinstance(report, Refused), report
            if (step := engine.step()) is None:
                continue
            steps += 1
            for handle, token in zip(step.handles, step.tokens, strict=True):
                outputs[handle].append(token)
            reasons.update(step.finished)
        finished = [outputs[handle] for handle, reason in reasons.items() if reason in ("stop", "complete")]
        return Answers(time.perf_counter() - start, sum(map(len, outputs)), steps, finished)

    return ask


def vllm(given: Assignment) -> Ask:
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
    from vllm.sampling_params import StructuredOutputsParams  # type: ignore[import-not-found]

    longest = max(map(len, given.prompts)) + given.tokens + 1
    model = LLM(given.folder, dtype="bfloat16", max_model_len=longest, seed=0)
    engine = model.llm_engine

    def ask(bound: bool, salt: str) -> Answers:
        start, steps = time.perf_counter(), 0
        form = StructuredOutputsParams(json=given.schema) if bound else None
        done = []
        for row, prompt in enumerate(given.prompts):
            wanted = SamplingParams(
                temperature=0.0, max_tokens=given.tokens, detokenize=False, structured_outputs=form
            )
            asked: Any = {"prompt_token_ids": prompt, "cache_salt": salt}
            engine.add_request(f"{salt}-{row}", asked, wanted)
        while engine.has_unfinished_requests():
            steps += 1
            done += [output.outputs[0] for output in engine.step() if output.finished]
        finished = [list(one.token_ids) for one in done if one.finish_reason == "stop"]
        return Answers(time.perf_counter() - start, sum(len(one.token_ids) for one in done), steps, finished)

    return ask


def main() -> None:
    given = Assignment(**json.loads(Path(sys.argv[1]).read_text()))
    ask = {"millstream": millstream, "vllm": vllm}[given.engine](given)
    with Path(given.answer).open("a") as answer:
        for turn in range(given.turns + 1):  # the first compiles and records
            for bound in (False, True):
                one = ask(bound, f"{turn}-{bound}")
                line = {"turn": turn, "bound": bound, "seconds": one.seconds, "tokens": one.tokens}
                answer.write(json.dumps(line | {"steps": one.steps, "finished": one.finished}) + "\n")
                answer.flush()
    sys.stdout.flush()
    os._exit(0)  # an engine's own exit may take long


if __name__ == "__main__":
    main()
