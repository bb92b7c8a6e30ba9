"""vLLM, for the GPU or for the CPU, as an offline engine: its own step loop, its own defaults."""

from __future__ import annotations

import time
from typing import Any

import vllm  # type: ignore[import-not-found]
from ops.bench.engines.adapters.interface import Setup
from ops.bench.measures import Run, TokenRecorder
from ops.bench.workloads import Workload
from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]


class Vllm:
    """It takes and returns token ids: no text on either side, as with ours. On a GPU its engine core is a
    process of its own, as by default.
    """

    def __init__(self, setup: Setup) -> None:
        self.version = vllm.__version__
        chosen: dict[str, Any] = {}
        if setup.max_rows:
            chosen["max_num_seqs"] = setup.max_rows
        if setup.max_step_tokens:
            chosen["max_num_batched_tokens"] = setup.max_step_tokens
        model = vllm.LLM(
            setup.folder,
            dtype=setup.dtype,  # for a float32 checkpoint its own choice differs
            skip_tokenizer_init=True,
            max_model_len=setup.longest_row + 1,
            seed=0,
            enable_prefix_caching=True,  # by default it is off for models with recurrent states
            **chosen,
        )
        self._engine = model.llm_engine
        self._model = model

    def run(self, workload: Workload, salt: str) -> Run:
        pairs = zip(workload.prompts, workload.output_lengths, strict=True)
        recorder = TokenRecorder(len(workload.prompts), time.perf_counter())
        for row, (prompt, length) in enumerate(pairs):
            asked = {"prompt_token_ids": prompt, "cache_salt": salt}
            self._engine.add_request(f"{salt}-{row}", asked, _greedy(length))
        steps = 0
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter()
            steps += bool(outputs)  # steps that computed only prompts are not visible here
            for output in outputs:
                tokens = len(output.outputs[0].token_ids)
                if tokens:
                    recorder.record(int(output.request_id.rpartition("-")[2]), now, tokens)
        return recorder.run(workload.output_lengths, steps)


def _greedy(length: int) -> Any:
    return vllm.SamplingParams(
        temperature=0.0,
        max_tokens=length,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
