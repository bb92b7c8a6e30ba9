"""Prompts by torch's FlashAttention, with a stand-in for it that computes by its contract: which layers get
it, that all it is given is right, and that what it leaves to our kernel is computed. Run by test_kernels.py,
as kernels.py is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.attention.varlen
from support.engine.attention_step import DEVICE, INT8, Lens, Step, spec
from support.engine.serving import serve
from support.models import checkpoints
from torch import Tensor

from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.attention.interface import StaticSize
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.attention.triton import flash_prefill
from millstream_worker.engine.runner.attention.triton.triton_backend import TritonAttention
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.load import load_model
from millstream_worker.engine.runner.self_check.attention_check import check_attention

FRESH: Lens = [(0, 23), (0, 5), (0, 2)]
CACHED: Lens = [(18, 5), (30, 8), (0, 9)]
LEFT: Lens = [(30, 2), (50, 7)]  # to our kernel: more than four times the new tokens are cached
DECODES: Lens = [(0, 1), (37, 1), (6, 1)]


def varlen(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool = False,
) -> None:
    """As torch's documentation has it: causal where the right window is 0, aligned at the last token. What
    has no keys gets no numbers."""
    out.fill_(torch.nan)
    counts, starts = cu_seq_q.tolist(), cu_seq_k.tolist()
    assert (counts[-1], starts[-1]) == (len(query), len(key))
    assert max(b - a for a, b in pairwise(counts)) == max_q
    assert max(b - a for a, b in pairwise(starts)) == max_k
    assert enable_gqa == (query.shape[1] != key.shape[1])
    for rows, places in zip(map(slice, *_ends(counts)), map(slice, *_ends(starts)), strict=True):
        keys, values = (
            given[places].repeat_interleave(query.shape[1] // key.shape[1], 1) for given in (key, value)
        )
        if not len(keys):
            continue
        seen = torch.arange(len(keys), device=query.device)
        own = seen[len(keys) - (rows.stop - rows.start) :, None]
        hidden = (seen > own + window_size[1]) | ((window_size[0] >= 0) & (seen < own - window_size[0]))
        scores = torch.einsum("qhd,khd->hqk", query[rows], keys) * scale
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, values)


def _ends(places: list[int]) -> tuple[list[int], list[int]]:
    return places[:-1], places[1:]


class Called:
    """The stand-in, for every layer; what it was called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[Tensor] = []
        monkeypatch.setattr(flash_prefill, "choose", self.choose)

    def choose(self, storage: KVStorage) -> list[flash_prefill.Attend]:
        return [partial(self.attend, layer) for layer in storage.layers]

    def attend(self, layer: LayerSpec, *given: Tensor) -> None:
        self.keys.append(given[2])
        window = (-1 if layer.window is None else layer.window - 1, 0)
        varlen(
            *given,  # type: ignore[arg-type]
            scale=layer.scale,
            window_size=window,
            enable_gqa=layer.heads != layer.kv_heads,
        )


@pytest.mark.parametrize("layer", [spec(dim=16), spec(6, 2, 24, window=7), spec(2, 2, 16)])
@pytest.mark.parametrize(
    ("lens", "keys"),
    [
        (FRESH, 30),
        ([*DECODES, *FRESH], 30),
        ([*DECODES, *CACHED], 23 + 38 + 9),
        ([*FRESH, *LEFT], 30),
        ([*DECODES, *CACHED, *LEFT], 23 + 38 + 9),
        (DECODES, 0),  # it is not called for nothing
        (LEFT, 0),
        ([*DECODES, *LEFT], 0),
    ],
)
def test_it_is_given_what_it_needs(
    layer: LayerSpec, lens: Lens, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = Called(monkeypatch)
    step = Step(layer, lens)
    step.check(error=1e-5)
    assert [len(given) for given in called.keys] == [keys] * (keys > 0)


def test_fresh_keys_are_those_of_the_step_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    called = Called(monkeypatch)
    step = Step(spec(dim=16), FRESH)
    key, value = step.new
    backend = TritonAttention(step.storage)
    backend.begin(step.plan)
    backend.attend(0, step.query, key, value)
    assert called.keys[0].data_ptr() == key.data_ptr()


@pytest.mark.parametrize("case", ["llama", "mistral"])
def test_an_engine_draws_the_tokens_of_the_plain_backend(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Prompts in chunks, prefixes from the cache, rows that decode beside them."""
    folder = checkpoints.build(case, tmp_path)
    common = tuple(range(3, 20))
    requests = [
        (handle, EngineRequest(handle, (*common, *range(handle + 9, 60)), 4, SamplingSpec(temperature=0.0)))
        for handle in range(4)
    ]
    tokens = []
    called = Called(monkeypatch)
    for backend in (TorchAttention, TritonAttention):
        loaded = load_model(str(folder), dtype=torch.float32, device=DEVICE)
        tokens.append(serve(replace(loaded, attend_over=backend), requests, blocks=60).tokens)
    assert tokens[0] == tokens[1]
    assert called.keys


def test_the_check_at_start_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    called = Called(monkeypatch)
    check_attention(TritonAttention, [spec(dim=16)], torch.float32, DEVICE, 16, (1, 16, 17, 40))
    assert called.keys


def chosen(*layers: LayerSpec, dtype: torch.dtype = torch.bfloat16) -> list[bool]:
    storage = KVStorage(layers, 1, 16, dtype, torch.device("meta"))
    return [attend is not None for attend in flash_prefill.choose(storage)]


def older(out: Tensor, query: Tensor, key: Tensor, *rest: Tensor, is_causal: bool = False) -> None:
    """Without windows."""


def test_which_layers_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_prefill, "find", lambda: varlen)
    monkeypatch.setattr(flash_prefill, "capability", lambda device: (8, 0))
    plain = spec(8, 2, 128)
    assert chosen(plain) == [True]
    assert chosen(spec(8, 2, 80, window=9), dtype=torch.float16) == [True]
    assert chosen(plain, dtype=torch.float32) == [False]
    others = [spec(8, 2, 64, softcap=9.0), spec(8, 2, 32, sinks=True), spec(8, 2, 512), spec(8, 2, 12)]
    others += [spec(8, 2, 64, value_dim=32), spec(8, 2, 64, **INT8)]
    assert chosen(plain, *others) == [True, *[False] * len(others)]
    assert chosen(plain, replace(plain, softcap=9.0)) == [False, False], "layers of a shape share tiles"
    monkeypatch.setattr(flash_prefill, "find", lambda: older)
    assert chosen(plain) == [False]
    monkeypatch.setattr(flash_prefill, "find", lambda: varlen)
    monkeypatch.setattr(flash_prefill, "capability", lambda device: (7, 5))
    assert chosen(plain) == [False]
    monkeypatch.undo()
    assert chosen(plain) == [False], "it needs a GPU"


def test_this_torch_takes_what_it_is_given() -> None:
    function = flash_prefill.find()
    assert function is not None
    attend = flash_prefill._prepared(function, spec(8, 2, 64, window=9), torch.bfloat16)
    assert attend is not None
    query, key = (torch.empty(30, heads, 64, dtype=torch.bfloat16, device="meta") for heads in (8, 2))
    starts = torch.zeros(4, dtype=torch.int32, device="meta")
    with torch.inference_mode():
        attend(torch.empty_like(query), query, key, key, starts, starts, 23, 23)


def test_a_torch_whose_function_makes_its_answer_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def anew(query: Tensor, key: Tensor, *, scale: float, window_size: tuple[int, int]) -> Tensor:
        return query * scale

    monkeypatch.setattr(torch.nn.attention.varlen, "__all__", ["varlen_attn"])
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", anew)
    function = flash_prefill.find()
    assert function is not None
    attend = flash_prefill._prepared(function, spec(8, 2, 64, window=9), torch.bfloat16)
    assert attend is not None
    query, out = torch.ones(3, 8, 64), torch.zeros(3, 8, 64)
    attend(out, query, query)
    assert (out == 64**-0.5).all()


def test_recorded_steps_are_our_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording would keep how long the longest prompt was."""
    called = Called(monkeypatch)
    step = Step(spec(dim=16), FRESH)
    backend = TritonAttention(step.storage)
    held = backend.reserve(StaticSize(4, 30, 4, 8, prefix_groups=True))
    backend.begin(step.plan)
    backend.hold(held)
    held.fill(step.plan)
    found = backend.attend(0, step.query, *step.new)
    assert torch.allclose(found.double(), step.expected(), atol=1e-5)
    assert not called.keys
