"""A model computed by compiled code around its layers: the same logits, and a model that goes on without."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._dynamo import eval_frame
from torch._dynamo.utils import counters

from millstream_worker.engine.runner import around
from millstream_worker.engine.runner.compiled import _Blank, compile_layers
from millstream_worker.engine.runner.model import LoadedModel, forward, occupy

Load = Callable[[str], LoadedModel]
pytestmark = pytest.mark.usefixtures("fresh_compiler")


def logits(loaded: LoadedModel, tokens: int, wanted: int) -> torch.Tensor:
    """Of tokens that do not attend to each other."""
    for module, spec in zip(loaded.modules, loaded.layers, strict=True):
        occupy(module, _Blank(spec, lambda: None))
    with torch.inference_mode():
        places = torch.arange(tokens)
        ids, wanted_places = places * 7 % loaded.vocab_size, places[tokens - wanted :].clone()
    return forward(loaded.model, ids, places, wanted_places)


_SLOW = [pytest.param(case, marks=pytest.mark.slow) for case in ("gpt2", "gemma2", "gpt_oss")]


@pytest.mark.parametrize("case", ["llama", *_SLOW])
def test_the_logits(case: str, load: Load, tmp_path: Path) -> None:
    plain, compiled = load(case), load(case)
    said: list[str] = []
    compile_layers(compiled, tmp_path, said.append, backend="aot_eager")
    assert not [message for message in said if "not compiled" in message]
    assert around._COMPILED in vars(compiled.model)
    assert eval_frame._stance.skip_guard_eval_unsafe, "it looks up in each step what cannot change"
    before = counters["stats"]["unique_graphs"]
    for tokens, wanted in [(1, 1), (1, 0), (2, 1), (2, 2), (40, 0), (40, 1), (40, 17), (61, 61)]:
        got = logits(compiled, tokens, wanted)
        assert got.shape == (wanted, compiled.vocab_size)
        torch.testing.assert_close(got, logits(plain, tokens, wanted), atol=1e-4, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] == before


@pytest.mark.slow
def test_what_no_step_has(load: Load, tmp_path: Path) -> None:
    """Tensors made elsewhere, or one that is given twice, would not suit the code, which is not asked."""
    plain, compiled = load("llama"), load("llama")
    compile_layers(compiled, tmp_path, lambda message: None, backend="aot_eager")
    want = logits(plain, 3, 3)
    logits(compiled, 3, 3)
    places = torch.arange(3)
    ids = places * 7 % compiled.vocab_size
    torch.testing.assert_close(forward(compiled.model, ids, places, places), want, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_a_model_whose_own_code_cannot_be_traced(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, loaded, said = load("llama"), load("llama"), list[str]()
    head = type(loaded.model)
    original = head.forward

    def broken(self: torch.nn.Module, *args: object, **options: object) -> object:
        torch._dynamo.graph_break()
        return original(self, *args, **options)

    monkeypatch.setattr(head, "forward", broken)
    compile_layers(loaded, tmp_path, said.append, backend="aot_eager")
    assert [message for message in said if message.startswith("what is around the layers is not compiled: ")]
    assert around._COMPILED not in vars(loaded.model)
    for tokens in (1, 5):
        torch.testing.assert_close(logits(loaded, tokens, 1), logits(plain, tokens, 1), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_its_layers_are_forgotten_with_the_model(load: Load, tmp_path: Path) -> None:
    gc.collect()
    loaded, before = load("llama"), set(around._registered)
    compile_layers(loaded, tmp_path, lambda message: None, backend="aot_eager")
    assert len(set(around._registered) - before) == 1
    del loaded
    torch.compiler.reset()
    gc.collect()
    assert set(around._registered) <= before
