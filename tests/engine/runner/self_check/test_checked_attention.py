"""What becomes of attention that fails at start, in the ways in which it does on GPUs: PyTorch's takes its
place, and the reason is kept; unless the operator has named the one that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CalledProcessError

import pytest
import torch
from support.engine.serving import serve
from triton.runtime.errors import OutOfResources

from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.checked_attention import checked_attention
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.self_check.findings import Findings

FAILURES = {
    "CalledProcessError: Command '['gcc', 'main.c']'": CalledProcessError(1, ["gcc", "main.c"]),
    "OutOfResources: out of resource: shared memory, Required: 102784, Hardware limit: 101376": (
        OutOfResources(102_784, 101_376, "shared memory")
    ),
    "AssertionError: libcuda.so cannot found!": AssertionError("libcuda.so cannot found!\nPossible files"),
}


@pytest.fixture
def loaded(checkpoint: Callable[[str], Path]) -> LoadedModel:
    device = torch.device("cpu")
    return load_model(str(checkpoint("llama")), dtype=torch.float32, device=device, attention="torch")


class Wrong(TorchAttention):
    def attend(self, layer: int, *given: torch.Tensor | None) -> torch.Tensor:
        return super().attend(layer, *given).mul_(1.01)  # type: ignore[arg-type]


def failing(error: Exception) -> Callable[[KVStorage], TorchAttention]:
    def build(storage: KVStorage) -> TorchAttention:
        raise error

    return build


def tokens(loaded: LoadedModel) -> dict[int, list[int]]:
    request = EngineRequest(1, (3, 9, 8, 7), 6, SamplingSpec(temperature=0.0))
    return dict(serve(loaded, [(0, request)], blocks=9).tokens)


@pytest.mark.parametrize("starts", FAILURES)
def test_an_engine_serves_without_and_keeps_the_reason(starts: str, loaded: LoadedModel) -> None:
    want, findings = tokens(loaded), Findings(lambda _: None)
    broken = replace(loaded, attention="triton", attend_over=failing(FAILURES[starts]))
    served = checked_attention(broken, "auto", 16, findings)
    assert served.attention == "torch"
    assert tokens(served) == want
    [reason] = findings.fallbacks
    assert reason.startswith(f"attention: plain PyTorch, slower than triton: {starts}")
    assert "\n" not in reason


def test_wrong_numbers_are_a_reason_too(loaded: LoadedModel) -> None:
    findings = Findings(lambda _: None)
    broken = replace(loaded, attention="triton", attend_over=Wrong)
    assert checked_attention(broken, "auto", 16, findings).attention == "torch"
    assert "float32 is off by 0.01 of the largest value" in findings.fallbacks[0]
    assert not findings.checks


def test_what_the_operator_has_named_is_not_replaced(loaded: LoadedModel) -> None:
    broken = replace(loaded, attention="triton", attend_over=failing(RuntimeError("no driver")))
    with pytest.raises(
        ValueError, match=r"attention 'triton' does not work here: RuntimeError: no driver; use"
    ):
        checked_attention(broken, "triton", 16, Findings(lambda _: None))


def test_too_little_memory_is_no_reason_to_compute_more_slowly(loaded: LoadedModel) -> None:
    full, findings = failing(torch.OutOfMemoryError("CUDA out of memory")), Findings(lambda _: None)
    served = checked_attention(replace(loaded, attention="triton", attend_over=full), "auto", 16, findings)
    assert (served.attention, served.attend_over) == ("triton", full)
    assert findings.checks == ["attention not checked: OutOfMemoryError: CUDA out of memory"]
    assert not findings.fallbacks


def test_what_is_right_is_said(checkpoint: Callable[[str], Path]) -> None:
    loaded = load_model(str(checkpoint("llama")), dtype=torch.float32, device=torch.device("cpu"))
    said: list[str] = []
    served = checked_attention(loaded, "auto", 16, Findings(said.append))
    assert (served.attention, served.attend_over) == (loaded.attention, loaded.attend_over)
    assert said[0] == "checking attention"
    assert said[1].startswith("attention checked: off by at most ")
