"""The FLOPs and bytes of a workload on a model, for any engine, and the least time that the machine needs for
them. The definitions behind MBU, MFU and the limit in the tables.

A prefix that all prompts share is counted once in prefill, and read once in each step: an engine need not do
more. Additional work (padding, prefixes computed again) is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ops.bench.machine import Limits
from ops.bench.models.size import ModelSize
from ops.bench.workloads import Workload


@dataclass(frozen=True, slots=True)
class Work:
    """Of a whole workload. `kv_bytes`: read by the decode steps; `rounds`: tokens of the longest row, the
    fewest steps there can be."""

    prefill_flops: float
    decode_flops: float
    kv_bytes: float
    weight_bytes: float  # of one step
    rounds: int

    @property
    def flops(self) -> float:
        return self.prefill_flops + self.decode_flops

    def least_s(self, limits: Limits) -> float:
        """Prefill and, after it, decode, each at its memory's or its matrix units' measured rate, whichever
        takes longer. Only an engine that overlapped the two phases perfectly could pass it.
        """
        prefill_s = max(self.prefill_flops / limits.flops_s, self.weight_bytes / limits.read_bytes_s)
        read = self.weight_bytes * (self.rounds - 1) + self.kv_bytes
        return prefill_s + max(self.decode_flops / limits.flops_s, read / limits.read_bytes_s)

    def mbu(self, steps: int, seconds: float, limits: Limits) -> float:
        """(bytes of parameters + bytes of live KV read in a step) / step time / bandwidth, over all steps."""
        return (self.weight_bytes * steps + self.kv_bytes) / seconds / limits.read_bytes_s

    def mfu(self, seconds: float, limits: Limits) -> float:
        """Model FLOPs / time / matrix rate, over the whole run."""
        return self.flops / seconds / limits.flops_s


def work_of(workload: Workload, model: ModelSize) -> Work:
    """2 FLOPs for each weight that a token is multiplied with, and attention: 2 x 2 x heads x head size for
    each pair of tokens. The last token of a row is sampled, and never computed.
    """
    rows = list(zip(workload.prompts, workload.output_lengths, strict=True))
    shared, rounds = workload.shared_tokens, max(workload.output_lengths)
    prompt_pairs = model.attended(0, shared) + sum(model.attended(shared, len(p)) for p, _ in rows)
    output_pairs = sum(model.attended(len(p), len(p) + length - 1) for p, length in rows)
    drawn = 2.0 * model.head_weights
    prefill = 2.0 * model.token_weights * workload.distinct_prompt_tokens + drawn * len(rows)
    decoded = workload.output_tokens - len(rows)
    return Work(
        prefill_flops=prefill + model.pair_flops * prompt_pairs,
        decode_flops=(2.0 * model.token_weights + drawn) * decoded + model.pair_flops * output_pairs,
        kv_bytes=_kv_read(workload, model, shared),
        weight_bytes=float(model.weight_bytes),
        rounds=rounds,
    )


def _kv_read(workload: Workload, model: ModelSize, shared: int) -> float:
    """Keys and values that decode steps read: each row's own context, and the shared part once a step. (A
    layer with a window soon leaves that behind: there it is counted for each row.)"""
    rows = list(zip(workload.prompts, workload.output_lengths, strict=True))
    each = sum(model.attended(len(prompt), len(prompt) + length - 1) for prompt, length in rows)
    decoded = workload.output_tokens - len(rows)
    again = shared * (decoded - (max(workload.output_lengths) - 1))
    whole = sum(window is None for window in model.windows)
    return model.kv_token_bytes / len(model.windows) * (each - whole * again)
