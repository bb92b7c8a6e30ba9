"""Engines on machines with less than this one: each starts and generates, and says what it computes with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.engine.whole_engine import engine_on, tokens_of
from support.models import checkpoints
from torch import nn

from millstream_worker.engine.runner.linear.panel import PanelLinear


def no_compiler(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("PATH", str(folder))
    patch.delenv("CXX", raising=False)


def no_wide_vectors(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """As on any processor of this kind, or on ARM: the compiler is not told what else this one has."""
    file = folder / "compiler"
    file.write_text('#!/bin/sh\nexec g++ $(printf "%s\\n" "$@" | grep -vx -e -march=native)\n')
    file.chmod(0o700)
    patch.setenv("CXX", str(file))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("lack", "reason"),
    [
        (no_compiler, "there is no C++ compiler"),
        pytest.param(no_wide_vectors, "attention: compiled for this processor", marks=pytest.mark.slow),
    ],
)
def test_an_engine_starts_and_generates(
    lack: Callable[[pytest.MonkeyPatch, Path], None],
    reason: str,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = checkpoints.build("llama", tmp_path)
    want = tokens_of(engine_on("cpu", checkpoint, attention="torch"))
    lack(monkeypatch, tmp_path)
    said: list[str] = []
    engine = engine_on("cpu", checkpoint, said.append, cache_dir=str(cache))
    assert [line for line in said if reason in line]
    kinds = {type(module) for module in engine.runner.model.loaded.model.modules()}
    assert nn.Linear in kinds
    assert PanelLinear not in kinds
    assert tokens_of(engine) == want


@pytest.mark.skipif(os.environ.get("ATEN_CPU_CAPABILITY") != "avx2", reason="make avx2 holds it down")
def test_torch_onednn_and_the_compiler_are_held_down_to_avx2(compiler_defines: frozenset[str]) -> None:
    assert torch.backends.cpu.get_cpu_capability() == "AVX2"
    assert not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert "__AVX2__" in compiler_defines
    assert "__AVX512F__" not in compiler_defines
