"""Figures to stand beside, of the workloads of ops.bench: output tokens/s; of `single`, milliseconds per
token. All are of random weights in bfloat16."""

from __future__ import annotations

# vLLM 0.25 on one H200, measured on 2026-11-20 with the same prompts and lengths.
VLLM_H200: dict[str, dict[str, float]] = {
    "llama8b": {
        "decode": 17802, "document": 3850, "shared": 16323, "shareddoc": 5913, "ragged": 13229,
         "single": 4.931,
    },
    "qwen06b": {
        "decode": 45006, "document": 16964, "shared": 27442, "shareddoc": 9318, "ragged": 38763,
         "single": 1.615,
    },
}  # fmt: skip
