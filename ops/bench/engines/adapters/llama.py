"""llama.cpp through llama-cpp-python's own bindings: rows are sequences of one context, and a new row takes
the place of a finished one.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import llama_cpp  # type: ignore[import-not-found]
import numpy as np
from ops.bench.engines.adapters.interface import Setup
from ops.bench.measures import Run, TokenRecorder
from ops.bench.workloads import Workload

STEP_TOKENS = 2048
CELLS = 256  # of a sequence's cache: its length is a multiple


@dataclass(slots=True)
class _Row:
    number: int
    sequence: int
    new: list[int]  # tokens to compute next
    left: int  # tokens still to sample
    position: int = 0  # tokens computed


class LlamaCpp:
    """It shares no prefixes between sequences by itself, and so it does not here."""

    def __init__(self, setup: Setup) -> None:
        self.version = llama_cpp.__version__
        llama_cpp.llama_backend_init()
        if setup.device != "cpu" and not llama_cpp.llama_supports_gpu_offload():
            raise ValueError("this llama-cpp-python was built without CUDA (CMAKE_ARGS=-DGGML_CUDA=on)")
        self._rows = min(setup.rows, setup.max_rows or llama_cpp.llama_max_parallel_sequences())
        self._step_tokens = setup.max_step_tokens or STEP_TOKENS
        model = llama_cpp.llama_model_default_params()
        model.n_gpu_layers = 0 if setup.device == "cpu" else 999
        self._model = llama_cpp.llama_model_load_from_file(setup.gguf.encode(), model)
        assert self._model, f"{setup.gguf} cannot be loaded"
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = self._rows * -(-setup.longest_row // CELLS) * CELLS
        context.n_seq_max = self._rows
        context.kv_unified = True  # 1.8 times as fast with 32 short rows as a cache for each
        context.n_batch = self._step_tokens
        context.n_threads = context.n_threads_batch = setup.threads or len(os.sched_getaffinity(0))
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        assert self._context, "no context of that size"
        self._batch = llama_cpp.llama_batch_init(self._step_tokens, 0, 1)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def run(self, workload: Workload, salt: str) -> Run:
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(memory, True)
        recorder = TokenRecorder(len(workload.prompts), time.perf_counter())
        waiting = deque(enumerate(zip(workload.prompts, workload.output_lengths, strict=True)))
        free = list(range(self._rows))
        running: list[_Row] = []
        steps = 0
        while running or waiting:
            while waiting and free:
                number, (prompt, length) = waiting.popleft()
                running.append(_Row(number, free.pop(), list(prompt), length))
            for row, token in self._step(running):
                recorder.record(row.number, time.perf_counter())
                row.new, row.left = [token], row.left - 1
                if not row.left:
                    llama_cpp.llama_memory_seq_rm(memory, row.sequence, -1, -1)
                    free.append(row.sequence)
            running = [row for row in running if row.left]
            steps += 1
        return recorder.run(workload.output_lengths, steps)

    def _step(self, rows: list[_Row]) -> list[tuple[_Row, int]]:
        """Decoding rows first, then prompts up to the step's size; returns the rows that sampled, with their
        tokens.
        """
        batch, used = self._batch, 0
        drawing: list[tuple[_Row, int]] = []
        for row in sorted(rows, key=lambda row: len(row.new)):
            taken, row.new = row.new[: self._step_tokens - used], row.new[self._step_tokens - used :]
            for token in taken:
                batch.token[used], batch.pos[used] = token, row.position
                batch.n_seq_id[used], batch.seq_id[used][0] = 1, row.sequence
                batch.logits[used] = 0
                row.position, used = row.position + 1, used + 1
            if taken and not row.new:
                batch.logits[used - 1] = 1
                drawing.append((row, used - 1))
        batch.n_tokens = used
        status = llama_cpp.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode returned {status}"
        return list(self._draw(drawing))

    def _draw(self, drawing: list[tuple[_Row, int]]) -> Iterator[tuple[_Row, int]]:
        for row, place in drawing:
            logits = llama_cpp.llama_get_logits_ith(self._context, place)
            yield row, int(np.ctypeslib.as_array(logits, shape=(self._vocab,)).argmax())
