"""The highest possible rates of a machine: decode, prefill and requests, if reading and multiplying ran at
their measured rates, at the same time, and nothing else took any time.
"""

from __future__ import annotations

from ops.bench.load.arrivals import Prompts
from ops.bench.machine import Limits
from ops.bench.models.size import ModelSize


def decode_tokens_s(model: ModelSize, rows: float, context: int, limits: Limits) -> float:
    """Of steps in which `rows` rows sample a token, each the last of `context` tokens."""
    pairs = model.attended(context - 1, context)
    flops = rows * (_drawn_flops(model) + model.pair_flops * pairs)
    return rows / _least_s(flops, model.weight_bytes + rows * _kv_bytes(model, pairs), limits)


def prefill_tokens_s(model: ModelSize, context: int, limits: Limits) -> float:
    """Of prompts of `context` tokens."""
    flops = 2 * model.token_weights * context + model.pair_flops * model.attended(0, context)
    return context / _least_s(flops, 0.0, limits)


def drained_tokens_s(model: ModelSize, rows: float, prompt: int, output: int, limits: Limits) -> float:
    """Output tokens of prompts that are prefilled and then decoded, `rows` at once."""
    decode_s = output / decode_tokens_s(model, rows, prompt + output // 2, limits)
    return output / (prompt / prefill_tokens_s(model, prompt, limits) + decode_s)


def requests_s(model: ModelSize, prompts: Prompts, rows: int, shared: bool, limits: Limits) -> float:
    """Requests of that kind, with `rows` rows in each step. A shared prefix is never computed, and read once
    in a step. (A layer with a window soon leaves it behind: there it is read for each row.)
    """
    prompt = prompts.shared + prompts.own
    end = prompt + prompts.output - 1  # the last token is sampled, not computed
    start = prompts.shared if shared else 0
    flops = 2.0 * model.token_weights * (end - start) + 2.0 * model.head_weights * prompts.output
    flops += model.pair_flops * model.attended(start, end)
    read = float(model.attended(prompt, end))
    if shared:
        whole = sum(window is None for window in model.windows)
        read -= whole * prompts.shared * (prompts.output - 1) * (1 - 1 / rows)
    read_bytes = model.weight_bytes * prompts.output / rows + _kv_bytes(model, read)
    return 1 / _least_s(flops, read_bytes, limits)


def _drawn_flops(model: ModelSize) -> float:
    return 2.0 * (model.token_weights + model.head_weights)


def _kv_bytes(model: ModelSize, pairs: float) -> float:
    """Of attended tokens, counted in each layer."""
    return model.kv_token_bytes / len(model.windows) * pairs


def _least_s(flops: float, read_bytes: float, limits: Limits) -> float:
    return max(flops / limits.flops_s, read_bytes / limits.read_bytes_s)
