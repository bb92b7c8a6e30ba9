"""The engines that can be timed: each loads a checkpoint folder and runs a workload, greedy, to the exact
output lengths (no end of sequence). All on the same folder, dtype and thread count."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ops.bench.workloads import Workload


class Adapter(Protocol):
    """`run` answers the seconds from the first submission to the last token."""

    def run(self, workload: Workload) -> float: ...


class Millstream:
    """Our engine's loop in this process, without the queue around it."""

    def __init__(self, folder: Path, *, device: str, threads: int, kv_tokens: int) -> None:
        from millstream_worker.engine.assembly import build
        from millstream_worker.engine.config import EngineConfig

        blocks = kv_tokens // 16 + 256  # every row at once, and a last block each
        config = EngineConfig(
            str(folder),
            device=device,
            threads=threads,
            kv_memory=str(blocks * 16 * kv_token_bytes(folder)) if device == "cpu" else "0.8",
            max_rows=256,
        )
        self._engine, _ = build(config, lambda message: None)

    def run(self, workload: Workload) -> float:
        from millstream_worker.engine.request import EngineRequest, SamplingSpec

        start = time.perf_counter()
        for handle, (prompt, length) in enumerate(
            zip(workload.prompts, workload.output_lengths, strict=True)
        ):
            request = EngineRequest(handle, tuple(prompt), length, SamplingSpec(temperature=0.0))
            refused = self._engine.add(request)
            assert refused is None, refused
        drawn = 0
        while not self._engine.idle:
            step = self._engine.step()
            drawn += len(step.tokens) if step else 0
        assert drawn == workload.output_tokens, f"{drawn} tokens instead of {workload.output_tokens}"
        return time.perf_counter() - start


class StaticGenerate:
    """transformers' `generate` on padded batches: every row runs until the longest of its batch is done."""

    def __init__(self, folder: Path, *, device: str, threads: int, kv_tokens: int) -> None:
        self._model = _transformers_model(folder, device, threads)
        self._device = device
        self._rows = 32 if device == "cpu" else 256

    def run(self, workload: Workload) -> float:
        import torch

        start = time.perf_counter()
        pairs = list(zip(workload.prompts, workload.output_lengths, strict=True))
        for at in range(0, len(pairs), self._rows):
            batch = pairs[at : at + self._rows]
            width = max(len(prompt) for prompt, _ in batch)
            ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch])
            mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in batch])
            longest = max(length for _, length in batch)
            self._model.generate(
                ids.to(self._device),
                attention_mask=mask.to(self._device),
                do_sample=False,
                min_new_tokens=longest,
                max_new_tokens=longest,
                pad_token_id=0,
            )
        return time.perf_counter() - start


class ContinuousBatching:
    """transformers' own continuous batching, with its default configuration."""

    def __init__(self, folder: Path, *, device: str, threads: int, kv_tokens: int) -> None:
        self._model = _transformers_model(folder, device, threads)

    def run(self, workload: Workload) -> float:
        from transformers import GenerationConfig

        config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=8)
        start = time.perf_counter()
        with self._model.continuous_batching_context_manager(generation_config=config) as manager:
            for prompt, length in zip(workload.prompts, workload.output_lengths, strict=True):
                manager.add_request(prompt, max_new_tokens=length)
            drawn = 0
            for _ in workload.prompts:
                result = manager.get_result(timeout=600)
                assert result is not None, "no result within 600 s"
                assert not result.error, result.error
                drawn += len(result.generated_tokens)
        assert drawn == workload.output_tokens, f"{drawn} tokens instead of {workload.output_tokens}"
        return time.perf_counter() - start


def kv_token_bytes(folder: Path) -> int:
    """2 (keys, values) x 2 bytes x layers x KV heads x head size."""
    config = json.loads((folder / "config.json").read_text())
    return 2 * 2 * int(config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"])


def _transformers_model(folder: Path, device: str, threads: int) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    if threads:
        torch.set_num_threads(threads)
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(device).eval()


ADAPTERS: dict[str, Callable[..., Adapter]] = {
    "millstream": Millstream,
    "hf-static": StaticGenerate,
    "hf-continuous": ContinuousBatching,
}


def shaped_checkpoint(shape: str) -> Path:
    """A folder with random weights of that shape, made once and kept in the cache."""
    from ops.bench.shapes import SHAPES

    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "millstream" / "bench" / shape
    if not (folder / "model.safetensors").exists() and not (folder / "model.safetensors.index.json").exists():
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        fields = dict(SHAPES[shape])
        config = AutoConfig.for_model(fields.pop("model_type"), **fields)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder
