"""transformers' `generate` on padded batches: every row runs until the longest of its batch is done, and the
next batch begins after the last one has ended.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers
from ops.bench.engines.adapters.hf_model import load_model
from ops.bench.engines.adapters.interface import Setup
from ops.bench.measures import Run, TokenRecorder
from ops.bench.workloads import Workload
from transformers import StoppingCriteria, StoppingCriteriaList

ROWS = 256  # of a batch, as ours: a smaller one would read the weights more often


class StaticGenerate:
    """Its times are those of the hook that generate calls with each token; a caller gets the tokens only at
    the end of the batch.
    """

    def __init__(self, setup: Setup) -> None:
        self.version = transformers.__version__
        self._model = load_model(setup)
        # Without an end it needs no minimum length, which transformers enforces by three passes over all
        # logits in each step.
        self._model.generation_config.eos_token_id = None
        self._rows = setup.max_rows or ROWS

    def run(self, workload: Workload, salt: str) -> Run:
        recorder = TokenRecorder(len(workload.prompts), time.perf_counter())
        steps = 0
        for start in range(0, len(workload.prompts), self._rows):
            rows = range(start, min(start + self._rows, len(workload.prompts)))
            steps += self._batch(workload, rows, recorder)
        return recorder.run(workload.output_lengths, steps)

    def _batch(self, workload: Workload, rows: range, recorder: TokenRecorder) -> int:
        prompts = [workload.prompts[row] for row in rows]
        lengths = {row: workload.output_lengths[row] for row in rows}
        width, longest = max(map(len, prompts)), max(lengths.values())
        device = self._model.device
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
        mask = torch.tensor(
            [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device
        )
        self._model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=longest,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([_Watch(recorder, lengths)]),
        )
        return longest


class _Watch(StoppingCriteria):  # type: ignore[misc] # transformers ships no types
    """Called after each round of tokens; stops nothing. Surplus tokens of finished rows are not recorded."""

    def __init__(self, recorder: TokenRecorder, lengths: dict[int, int]) -> None:
        self._recorder = recorder
        self._left = dict(lengths)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **named: Any) -> torch.Tensor:
        now = time.perf_counter()
        for row, left in self._left.items():
            if left:
                self._recorder.record(row, now)
                self._left[row] = left - 1
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
