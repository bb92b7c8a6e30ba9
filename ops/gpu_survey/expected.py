"""Figures to stand beside: vLLM 0.25 on one H200, random weights, bfloat16, measured on 2026-11-20 on the
workloads of ops.bench. Output tokens/s; of `single`, milliseconds per token."""

from __future__ import annotations

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
