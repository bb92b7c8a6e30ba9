"""Checks a backend of recurrent states: each kind of module of the loaded model, in its dtype, beside plain
PyTorch in float32, with what it leaves in the slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan, packed_plan
from millstream_worker.engine.runner.self_check.deviation import TOLERANCE, compare
from millstream_worker.engine.runner.states.spec import RuleSpec, StateSpec
from millstream_worker.engine.runner.states.state_backend import StateBackend
from millstream_worker.engine.runner.states.state_storage import StateStorage
from millstream_worker.engine.runner.states.torch_states import TorchStates

_STEPS = ((9, 1, 3, 21, 2), (1, 1, 1, 1, 1), (1, 5, 1, 1, 17))  # new tokens of each slot


@torch.inference_mode()
def check_states(
    backend_over: Callable[[StateStorage], StateBackend],
    specs: Sequence[StateSpec],
    dtype: torch.dtype,
    mark: Callable[[], None] = lambda: None,
) -> float:
    """Returns the largest deviation, as a share of the largest expected value. `mark` is called on the way.
    Raises Mismatch, or what the backend raises."""
    worst = 0.0
    for spec in dict.fromkeys(specs):
        storage, exact = (StateStorage([spec], len(_STEPS[0]), 0) for _ in range(2))
        storage.memory.fill_(torch.nan)  # what was in a slot before a row does not count
        backend, reference = backend_over(storage), TorchStates(exact)
        states, wanted = backend.layer(0), reference.layer(0)
        random = torch.Generator().manual_seed(0)
        for plan in state_steps():
            storage.begin(plan)
            exact.begin(plan)
            backend.begin()
            reference.begin()
            inputs, weight, bias = random_channels(spec, plan.token_count, dtype, random)
            got = states.convolve(inputs, weight, bias)
            want = wanted.convolve(inputs.float(), weight.float(), bias.float())
            worst = max(worst, compare(got, want, "a convolution with a state", TOLERANCE[dtype]))
            if spec.rule is not None:
                heads = random_heads(spec.rule, plan.token_count, dtype, random)
                got = states.advance(*heads)
                want = wanted.advance(*(one.float() for one in heads))
                what = "a gated delta rule" if spec.rule.corrects else "a scan"
                worst = max(worst, compare(got, want, what, TOLERANCE[dtype]))
            mark()
        compare(storage.memory, exact.memory, "a recurrent state", TOLERANCE[torch.float32])
    return worst


def state_steps() -> Iterator[Plan]:
    """Yields steps of five rows, each in its slot: prompts, tokens one by one, and both."""
    slots = np.arange(len(_STEPS[0]), dtype=np.int32)
    ends = np.zeros_like(slots)
    for tokens in _STEPS:
        lens = np.array(tokens, np.int32)
        order = np.argsort(lens > 1, kind="stable")
        ends = ends + lens
        blocks = np.zeros((len(slots), int(ends.max())), np.int32)
        yield replace(packed_plan(lens[order], ends[order], blocks, 16), row_slots=slots[order])


def random_channels(
    spec: StateSpec, tokens: int, dtype: torch.dtype, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns inputs, weight and bias of a convolution."""
    channels, taps = spec.convolution.channels, spec.convolution.taps
    shapes = ((tokens, channels), (channels, taps), (channels,))
    inputs, weight, bias = (torch.randn(shape, generator=random).to(dtype) for shape in shapes)
    return inputs, weight, bias


def random_heads(
    rule: RuleSpec, tokens: int, dtype: torch.dtype, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns queries, keys and values, as views of one tensor, the decay's logarithm, and beta; these two
    are float32."""
    widths = [rule.key_heads * rule.key_dim] * 2 + [rule.heads * rule.value_dim]
    mixed = torch.randn(tokens, sum(widths), generator=random).to(dtype)
    query, key, value = torch.split(mixed, widths, dim=1)
    channels = (rule.key_dim,) if rule.by_channel else ()
    log_decay = -torch.rand(tokens, rule.heads, *channels, generator=random)
    return (
        query.view(tokens, rule.key_heads, rule.key_dim),
        key.view(tokens, rule.key_heads, rule.key_dim),
        value.view(tokens, rule.heads, rule.value_dim),
        log_decay,
        torch.rand(tokens, rule.heads, generator=random),
    )
