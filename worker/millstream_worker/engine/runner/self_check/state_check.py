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
from millstream_worker.engine.runner.states.spec import ConvolutionSpec, RuleSpec, StateSpec
from millstream_worker.engine.runner.states.state_backend import StateBackend
from millstream_worker.engine.runner.states.state_storage import StateStorage
from millstream_worker.engine.runner.states.torch_states import TorchStates

# New tokens of each slot, and how many of them turn out right where they are drafts; 0: they are none.
_STEPS = (
    ((9, 0), (1, 0), (3, 0), (21, 0), (2, 0)),
    ((1, 0), (3, 1), (1, 0), (4, 3), (2, 2)),
    ((3, 2), (5, 0), (2, 1), (1, 0), (17, 0)),
    ((1, 0), (1, 0), (1, 0), (1, 0), (1, 0)),
)
_MOST_DRAFTS = 3


@torch.inference_mode()
def check_states(
    backend_over: Callable[[StateStorage], StateBackend],
    specs: Sequence[StateSpec],
    mark: Callable[[], None] = lambda: None,
) -> float:
    """Returns the largest deviation, as a share of the largest expected value. `mark` is called on the way.
    Raises Mismatch, or what the backend raises."""
    worst = 0.0
    for spec in dict.fromkeys(specs):
        storage, exact = (StateStorage([spec], len(_STEPS[0]), 0, _MOST_DRAFTS) for _ in range(2))
        limit = TOLERANCE[spec.convolution.dtype]
        storage.memory.fill_(torch.nan)  # what was in a slot before a row does not count
        backend, reference = backend_over(storage), TorchStates(exact)
        states, wanted = backend.layer(0), reference.layer(0)
        random = torch.Generator().manual_seed(0)
        for plan in state_steps():
            storage.begin(plan)
            exact.begin(plan)
            backend.begin()
            reference.begin()
            inputs, weight, bias = random_channels(spec.convolution, plan.token_count, random)
            got = states.convolve(inputs, weight, bias)
            want = wanted.convolve(inputs.float(), weight.float(), bias.float())
            worst = max(worst, compare(got, want, "a convolution with a state", limit))
            if spec.rule is not None:
                heads = random_heads(spec.rule, plan.token_count, random)
                got = states.advance(*heads)
                want = wanted.advance(*(one.float() for one in heads))
                what = "a gated delta rule" if spec.rule.corrects else "a scan"
                worst = max(worst, compare(got, want, what, TOLERANCE[spec.rule.dtype]))
            mark()
        compare(storage.memory, exact.memory, "a recurrent state", TOLERANCE[torch.float32])
    return worst


def state_steps() -> Iterator[Plan]:
    """Yields steps of five rows, each in its slot: prompts, single tokens, and drafts."""
    begins = [0] * len(_STEPS[0])
    for step in _STEPS:
        pieces: list[tuple[int, int, int]] = []
        for slot, (tokens, right) in enumerate(step):
            last = begins[slot] + tokens
            ends = range(begins[slot] + 1, last + 1) if right else [last]
            pieces += [(slot, end, 1 if right else tokens) for end in ends]
            begins[slot] += right or tokens
        pieces.sort(key=lambda piece: piece[2] > 1)
        slots, places, lens = (np.array(column, np.int32) for column in zip(*pieces, strict=True))
        blocks = np.zeros((len(slots), int(places.max())), np.int32)
        yield replace(packed_plan(lens, places, blocks, 16), row_slots=slots)


def random_channels(
    spec: ConvolutionSpec, tokens: int, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns inputs, weight and bias of a convolution."""
    channels, taps = spec.channels, spec.taps
    shapes = ((tokens, channels), (channels, taps), (channels,))
    inputs, weight, bias = (torch.randn(shape, generator=random).to(spec.dtype) for shape in shapes)
    return inputs, weight, bias


def random_heads(
    rule: RuleSpec, tokens: int, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns queries, keys and values, as views of one tensor, the decay's logarithm, and beta; these two
    are float32."""
    widths = [rule.key_heads * rule.key_dim] * 2 + [rule.heads * rule.value_dim]
    mixed = torch.randn(tokens, sum(widths), generator=random).to(rule.dtype)
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
