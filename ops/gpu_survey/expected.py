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

# Ours on one H200, expected before any run: arithmetic from measured rates of products and memory.
EXPECTED: dict[str, dict[str, tuple[float, float]]] = {
    "llama8b": {
        "decode": (18500, 20000), "document": (3600, 3850), "shared": (17000, 19000),
        "shareddoc": (9500, 12000), "ragged": (12500, 14500), "single": (4.8, 5.5),
    },
    "qwen06b": {
        "decode": (55000, 65000), "document": (16000, 19000), "shared": (35000, 45000),
        "shareddoc": (25000, 35000), "ragged": (40000, 50000), "single": (1.2, 1.5),
    },
}  # fmt: skip
