"""Backends of recurrent states: beside the functions of transformers that they stand for, and beside
themselves however a row is cut into steps and whoever is in them."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.libraries import built
from torch import Tensor
from transformers.models.granitemoehybrid import modeling_granitemoehybrid
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.qwen3_5 import modeling_qwen3_5

from millstream_worker.engine.brain.batch.plan import Plan, packed_plan
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.self_check.deviation import Mismatch
from millstream_worker.engine.runner.self_check.state_check import (
    check_states,
    random_channels,
    random_heads,
)
from millstream_worker.engine.runner.states.module_state import BackedState
from millstream_worker.engine.runner.states.native_states import NativeStates, native_states
from millstream_worker.engine.runner.states.slot_segments import MOST_DRAFTS
from millstream_worker.engine.runner.states.spec import (
    ConvolutionSpec,
    RuleSpec,
    StateSpec,
    bytes_per_row,
)
from millstream_worker.engine.runner.states.state_backend import LayerStates, StateBackend
from millstream_worker.engine.runner.states.state_storage import StateStorage
from millstream_worker.engine.runner.states.torch_states import TorchStates

Over = Callable[[StateStorage], StateBackend]
MIXED = ConvolutionSpec(144, 4, activated=True)
KINDS = {
    "convolution": StateSpec(ConvolutionSpec(70, 3, activated=False)),
    "long-convolution": StateSpec(ConvolutionSpec(17, 6, activated=True)),
    "delta": StateSpec(MIXED, RuleSpec(2, 4, 12, 40)),
    "channels": StateSpec(MIXED, RuleSpec(3, 3, 40, 9, by_channel=True)),
    "scan": StateSpec(MIXED, RuleSpec(2, 8, 24, 20, corrects=False)),
    "wide": StateSpec(MIXED, RuleSpec(1, 2, 16, 300)),
    "wide-scan": StateSpec(MIXED, RuleSpec(1, 2, 16, 300, corrects=False)),
}
ROWS = 5
DTYPES = [torch.float32, torch.bfloat16]
Row = tuple[tuple[Tensor, ...], tuple[Tensor, ...] | None]  # of all its tokens, for both functions


@pytest.fixture(scope="module")
def library() -> Library:
    return built()


@pytest.fixture(params=["torch", "native"])
def over(request: pytest.FixtureRequest, library: Library) -> Over:
    return TorchStates if request.param == "torch" else partial(NativeStates, library=library)


def typed(kind: str, dtype: torch.dtype) -> StateSpec:
    """Scans are of float32 in models of any type."""
    spec = KINDS[kind]
    rule = replace(spec.rule, dtype=dtype) if spec.rule and spec.rule.corrects else spec.rule
    return StateSpec(replace(spec.convolution, dtype=dtype), rule)


def weights_of(spec: StateSpec) -> tuple[Tensor, Tensor]:
    _, weight, bias = random_channels(spec.convolution, 1, torch.Generator().manual_seed(5))
    return weight, bias


def row_of(spec: StateSpec, tokens: int, seed: int) -> Row:
    random = torch.Generator().manual_seed(seed)
    inputs, _, _ = random_channels(spec.convolution, tokens, random)
    return (inputs,), random_heads(spec.rule, tokens, random) if spec.rule is not None else None


def step_of(pieces: Sequence[tuple[int, int, int]], drafted: int | None = None) -> Plan:
    """With these pieces: slot, first token, end. The `drafted` slot's are drafts but for the first."""
    ends = [
        (slot, end, size)
        for slot, begin, last in pieces
        for end, size in (
            [(end, 1) for end in range(begin + 1, last + 1)] if slot == drafted else [(last, last - begin)]
        )
    ]
    slots, places, lens = (np.array(column, np.int32) for column in zip(*ends, strict=True))
    plan = packed_plan(lens, places, np.zeros((len(lens), int(places.max())), np.int32), 16)
    return replace(plan, row_slots=slots)


def answers(
    storage: StateStorage,
    backend: StateBackend,
    spec: StateSpec,
    pieces: Sequence[tuple[int, Row, int, int]],
    drafted: int | None = None,
) -> list[tuple[Tensor, ...]]:
    """Of a step with these pieces: slot, row, first token, end."""
    pieces = sorted(pieces, key=lambda piece: piece[3] - piece[2] > 1 and piece[0] != drafted)
    slots, rows, begins, ends = zip(*pieces, strict=True)
    lens = np.subtract(ends, begins)
    storage.begin(step_of(list(zip(slots, begins, ends, strict=True)), drafted))
    backend.begin()
    spans = list(zip(rows, begins, ends, strict=True))
    channels = torch.cat([row[0][0][begin:end] for row, begin, end in spans])
    weight, bias = (one.to(channels.dtype) for one in weights_of(spec))
    states = backend.layer(0)
    got = [states.convolve(channels, weight, bias).split(lens.tolist())]
    if spec.rule is not None:
        given = [[one[begin:end] for one in row[1] or ()] for row, begin, end in spans]
        got.append(states.advance(*map(torch.cat, zip(*given, strict=True))).split(lens.tolist()))
    found = dict(zip(slots, zip(*got, strict=True), strict=True))
    return [found[slot] for slot in sorted(found)]


def fresh_answers(
    over: Over, spec: StateSpec, pieces: Sequence[tuple[int, Row, int, int]]
) -> list[tuple[Tensor, ...]]:
    storage = StateStorage([spec], ROWS, 0)
    return answers(storage, over(storage), spec, pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_each_computes_what_transformers_does(kind: str, over: Over) -> None:
    spec, tokens = KINDS[kind], 70
    row = row_of(spec, tokens, seed=1)
    [got] = fresh_answers(over, spec, [(3, row, 0, tokens)])
    weight, bias = weights_of(spec)
    [inputs] = row[0]
    activation = "silu" if spec.convolution.activated else None
    convolve = inspect.unwrap(modeling_qwen3_5.causal_conv1d_fn)
    torch.testing.assert_close(got[0].t()[None], convolve(inputs.t()[None], weight, bias, activation))
    if spec.rule is None or row[1] is None or not spec.rule.corrects:
        return
    query, key, value, log_decay, beta = (one[None] for one in row[1])
    rule = (
        modeling_kimi_linear.recurrent_kimi_delta_attention
        if spec.rule.by_channel
        else modeling_qwen3_5.torch_recurrent_gated_delta_rule
    )
    want, _ = inspect.unwrap(rule)(
        query,
        key,
        value,
        g=log_decay,
        beta=beta,
        initial_state=None,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    torch.testing.assert_close(got[1][None], want)


def test_scans_are_those_of_transformers(over: Over) -> None:
    """In two pieces, with all that a module may hand over."""
    spec, tokens = StateSpec(MIXED, RuleSpec(2, 8, 24, 20, corrects=False)), 50
    random = torch.Generator().manual_seed(2)
    given = [torch.randn(1, tokens, *shape, generator=random) for shape in ((8, 20), (8,), (2, 24), (2, 24))]
    x, dt, b, c = given
    a, d, bias = -torch.rand(8, generator=random), *torch.randn(2, 8, generator=random)
    options: dict[str, Any] = {"chunk_size": 16, "D": d, "dt_bias": bias, "dt_softplus": True}
    options["dt_limit"] = (0.1, 1.5)
    want = inspect.unwrap(modeling_granitemoehybrid.mamba2_chunk_scan)(x, dt, a, b, c, **options)
    storage = StateStorage([spec], 1, 0)
    backend = over(storage)
    state, found = BackedState(backend.layer(0)), []
    for begin, end in ((0, 17), (17, tokens)):
        storage.begin(step_of([(0, begin, end)]))
        backend.begin()
        piece = slice(begin, end)
        found.append(state.scan(x[:, piece], dt[:, piece], a, b[:, piece], c[:, piece], z=None, **options))
    torch.testing.assert_close(torch.cat(found, 1), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_library_passes_its_check(kind: str, dtype: torch.dtype, library: Library) -> None:
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    assert check_states(partial(NativeStates, library=library), [typed(kind, dtype)]) < limit


class _Wrong(TorchStates):
    """Forgets one thing."""

    def __init__(self, storage: StateStorage, what: str) -> None:
        super().__init__(storage)
        self._what = what

    def layer(self, number: int) -> LayerStates:
        self._right, self._state = super().layer(number), self._storage.rules[number]
        return self

    def convolve(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._right.convolve(inputs, weight, None if self._what == "bias" else bias)

    def advance(self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
        if self._what == "decay":
            log_decay = torch.zeros_like(log_decay)
        answer = self._right.advance(query, key, value, log_decay, beta)
        if self._what == "state" and self._state is not None:
            self._state[2] = 0
        held = self._storage.held[0].rule
        if self._what == "drafts" and held is not None:
            held.values.zero_()
        return answer


@pytest.mark.parametrize("what", ["bias", "decay", "drafts", "state"])
def test_the_check_sees_what_is_wrong(what: str) -> None:
    with pytest.raises(Mismatch):
        check_states(partial(_Wrong, what=what), [KINDS["delta"]])


def spliced(row: Row, other: Row, at: int) -> Row:
    """Up to that token the row, from there on the other."""

    def joined(one: tuple[Tensor, ...], more: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(torch.cat([begin[:at], end[at:]]) for begin, end in zip(one, more, strict=True))

    return joined(row[0], other[0]), joined(row[1], other[1]) if row[1] and other[1] else None


def cut(
    data: st.DataObject,
    backend: StateBackend,
    storage: StateStorage,
    spec: StateSpec,
    row: Row,
    others: list[Row],
    cuts: list[int],
) -> list[Tensor]:
    """The answers for a row that is cut there, in steps with others, in slots that held other rows, behind
    drafts that were wrong, and from checkpoints that were made on the way."""
    storage.memory.fill_(torch.nan)
    at, slot = [0] * len(others), 0
    found: list[tuple[Tensor, ...]] = []
    for begin, end in itertools.pairwise(cuts):
        lens = [data.draw(st.sampled_from([0, 1, 1, 3, 7])) for _ in others]
        beside = [
            (2 + number, other, at[number], at[number] + count)
            for number, (other, count) in enumerate(zip(others, lens, strict=True))
            if count
        ]
        wrong = data.draw(st.integers(0 if end > begin + 1 else 1, 3)) if data.draw(st.booleans()) else None
        if wrong is not None and end - begin + wrong <= storage.most_held:
            mistaken = spliced(row, others[0], end)
            pieces = [(slot, mistaken, begin, end + wrong), *beside]
            got = answers(storage, backend, spec, pieces, drafted=slot)[0]
            found.append(tuple(one[: end - begin] for one in got))
        else:
            found.append(answers(storage, backend, spec, [(slot, row, begin, end), *beside])[0])
            wrong = None
        at = [place + count for place, count in zip(at, lens, strict=True)]
        if wrong is None and end < cuts[-1] and data.draw(st.booleans()):  # comes back into another slot
            storage.end(replace(step_of([(0, 0, 1)]), state_saves=np.array([[slot, 1]], np.int32)))
            storage.memory[slot] = torch.nan
            slot = 1 - slot
            loads = np.array([[1, slot]], np.int32)
            storage.begin(replace(packed_plan([], [], np.zeros((0, 1), np.int32), 16), state_loads=loads))
    return list(map(torch.cat, zip(*found, strict=True)))


@settings(max_examples=25)
@given(
    data=st.data(),
    kind=st.sampled_from(sorted(KINDS)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_a_row_is_the_same_however_it_is_cut(data: st.DataObject, kind: str, dtype: torch.dtype) -> None:
    """Bit by bit by the library; by PyTorch but for rounding, which depends on where numbers lie."""
    spec, tokens = typed(kind, dtype), data.draw(st.integers(2, 40))
    row, others = row_of(spec, tokens, 1), [row_of(spec, 60, seed) for seed in range(2, 5)]
    cuts = sorted({0, tokens, *data.draw(st.lists(st.integers(1, tokens - 1), max_size=6))})
    over: Over = partial(NativeStates, library=built())
    [whole] = fresh_answers(over, spec, [(1, row, 0, tokens)])
    storage = StateStorage([spec], ROWS, 2, MOST_DRAFTS)
    assert all(map(torch.equal, cut(data, over(storage), storage, spec, row, others, cuts), whole))
    if dtype == torch.float32 and kind == "delta":
        found = cut(data, TorchStates(storage), storage, spec, row, others, cuts)
        for got, want in zip(found, whole, strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", KINDS)
def test_several_threads_compute_the_same(kind: str, library: Library) -> None:
    spec, rows = KINDS[kind], [row_of(KINDS[kind], 90, seed) for seed in range(ROWS)]
    pieces = [(slot, row, 0, 1 if slot < 2 else 60 + slot) for slot, row in enumerate(rows)]
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(fresh_answers(partial(NativeStates, library=library), spec, pieces))
    torch.set_num_threads(1)
    for one, three in zip(*found, strict=True):
        assert all(map(torch.equal, one, three))


def test_inputs_may_lie_in_any_way(over: Over) -> None:
    spec, tokens = KINDS["delta"], 9
    row = row_of(spec, tokens, seed=1)
    assert row[1] is not None
    turned = tuple(one.transpose(0, 1).contiguous().transpose(0, 1) for one in (*row[0], *row[1]))
    rows = row, (turned[:1], turned[1:])
    pieces = [fresh_answers(over, spec, [(0, one, 0, tokens)]) for one in rows]
    assert all(map(torch.equal, pieces[0][0], pieces[1][0]))


def test_a_convolution_too_long_for_the_library_is_pytorchs(library: Library) -> None:
    long = StateSpec(ConvolutionSpec(8, library.most_taps + 1, activated=False))
    assert isinstance(native_states(StateStorage([long], 1, 0), library), TorchStates)
    assert isinstance(native_states(StateStorage([KINDS["delta"]], 1, 0), library), NativeStates)


def test_a_slot_holds_no_more_tokens_than_it_has_places_for() -> None:
    storage = StateStorage([KINDS["delta"]], 1, 0, drafts=2)
    storage.begin(step_of([(0, 0, 3)], drafted=0))
    with pytest.raises(RuntimeError, match="a slot holds 3 tokens, and a row has 4"):
        storage.begin(step_of([(0, 3, 7)], drafted=0))


def test_a_checkpoint_is_all_of_a_rows_state() -> None:
    specs = list(KINDS.values())
    storage = StateStorage(specs, 3, 2)
    assert storage.memory.nbytes == 5 * bytes_per_row(specs)
    storage.memory.random_()
    before = storage.memory.clone()
    step = step_of([(1, 0, 1)])
    storage.end(replace(step, state_saves=np.array([[2, 0], [0, 1]], np.int32)))
    storage.begin(replace(step, state_loads=np.array([[1, 2]], np.int32)))
    assert torch.equal(storage.memory, before[[0, 1, 0, 2, 0]])
    parts = [part[4] for parts in (storage.convolutions, storage.rules) for part in parts if part is not None]
    assert sum(part.nbytes for part in parts) == bytes_per_row(specs)
