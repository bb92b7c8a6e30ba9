"""transformers' own continuous batching."""

from __future__ import annotations

import time
from typing import Any

import transformers
from ops.bench.engines.adapters.hf_model import load_model
from ops.bench.engines.adapters.interface import Setup
from ops.bench.measures import Run, TokenRecorder
from ops.bench.workloads import Workload
from transformers import ContinuousBatchingConfig, GenerationConfig

RESULT_S = 600.0
# On a CPU its defaults, made for flash attention on a GPU, cost most of its speed: a step's mask is dense
# over all tokens and keys of the step, the cache is 60 % of the memory, a page is longer than our prefixes.
PAGE = 16
STEP_TOKENS = 512
MAX_ROWS = 256


class ContinuousBatching:
    """Each run has a manager, and so a prefix cache, of its own; its start is not timed."""

    def __init__(self, setup: Setup) -> None:
        self.version = transformers.__version__
        self._model = load_model(setup)
        self._sizes = sizes(setup)

    def run(self, workload: Workload, salt: str) -> Run:
        config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=8)
        with self._model.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=self._sizes
        ) as manager:
            manager.add_request([1, 2, 3], max_new_tokens=1)
            _result(manager)
            return self._timed(manager, workload)

    def _timed(self, manager: Any, workload: Workload) -> Run:
        forwards = _Forwards(self._model)
        recorder = TokenRecorder(len(workload.prompts), time.perf_counter())
        rows = {
            manager.add_request(prompt, max_new_tokens=length, record_timestamps=True): row
            for row, (prompt, length) in enumerate(
                zip(workload.prompts, workload.output_lengths, strict=True)
            )
        }
        for _ in rows:
            result = _result(manager)
            for moment, _token in zip(result.timestamps, result.generated_tokens, strict=True):
                recorder.record(rows[result.request_id], moment)
        forwards.remove()
        return recorder.run(workload.output_lengths, forwards.count or None)


def sizes(setup: Setup) -> ContinuousBatchingConfig:
    """On a GPU its own, except for requested sizes."""
    if setup.device != "cpu":
        return ContinuousBatchingConfig(
            max_batch_tokens=setup.max_step_tokens or None, max_requests_per_batch=setup.max_rows or None
        )
    return ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=setup.kv_tokens // PAGE + setup.rows + 1,
        max_batch_tokens=setup.max_step_tokens or STEP_TOKENS,
        max_requests_per_batch=setup.max_rows or MAX_ROWS,
    )


def _result(manager: Any) -> Any:
    result = manager.get_result(timeout=RESULT_S)
    assert result is not None, f"no result within {RESULT_S:.0f} s"
    assert not result.error, result.error
    return result


class _Forwards:
    """Counts calls of the model; 0 if it runs in some other way (a captured graph)."""

    def __init__(self, model: Any) -> None:
        self.count = 0
        self._hook = model.register_forward_pre_hook(self._call)

    def remove(self) -> None:
        self._hook.remove()

    def _call(self, *_: Any) -> None:
        self.count += 1
