"""When the kernel that draws is taken: only where it can be launched, and attention's kernels have passed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from millstream_worker.engine.assembly import sampling_choice
from millstream_worker.engine.assembly.sampling_choice import choose_sampling
from millstream_worker.engine.runner.gpu.sampling.triton_chooser import TritonChooser
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.sampling.torch_chooser import TorchChooser
from millstream_worker.engine.runner.self_check.findings import Findings


class Draws:
    """Stands for the kernel's launches."""

    error: Exception | None = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def try_out(self, dtype: torch.dtype, device: torch.device) -> None:
        if self.error:
            raise self.error


@pytest.fixture
def loaded(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """Attention's kernels have passed their check."""
    monkeypatch.setattr(sampling_choice, "TritonDraws", Draws)
    folder = str(checkpoint("llama"))
    plain = load_model(folder, dtype=torch.float32, device=torch.device("cpu"), attention="torch")
    return replace(plain, attention="triton")


def test_it_is_taken_where_it_can_be_launched(loaded: LoadedModel) -> None:
    findings = Findings(lambda _: None)
    assert type(choose_sampling(loaded, findings)) is TritonChooser
    assert not findings.fallbacks


def test_a_sampling_kernel_that_fails_is_reported_and_not_used(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = Findings(lambda _: None)
    monkeypatch.setattr(Draws, "error", RuntimeError("Failed to find C compiler"))
    assert type(choose_sampling(loaded, findings)) is TorchChooser
    [reason] = findings.fallbacks
    assert (
        reason == "sampling: plain PyTorch, slower than one kernel: RuntimeError: Failed to find C compiler"
    )


def test_without_attention_s_kernels_it_is_not_tried(loaded: LoadedModel) -> None:
    findings = Findings(lambda _: None)
    assert type(choose_sampling(replace(loaded, attention="torch"), findings)) is not TritonChooser
    assert not findings.fallbacks
