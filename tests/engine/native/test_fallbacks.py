"""Engines on machines with less than this one: each starts and generates, and says what it computes with."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from support import checkpoints
from support.on_device import engine_on, tokens_of
from torch import nn

from millstream_worker.engine.runner.linear.panel import PanelLinear
from millstream_worker.engine.runner.native import build as building

PLAIN = tuple(flag for flag in building.FLAGS if flag != "-march=native")  # as the fixture plain_library's


def no_compiler(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("PATH", str(folder))
    patch.delenv("CXX", raising=False)


def broken_compiler(patch: pytest.MonkeyPatch, folder: Path) -> None:
    compiler = folder / "broken"
    compiler.write_text("#!/bin/sh\necho 'error: no headers' >&2\nexit 1\n")
    compiler.chmod(0o700)
    patch.setenv("CXX", str(compiler))


def no_wide_vectors(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(building, "build", partial(building.build, flags=PLAIN))


def arm(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """As far as it can be emulated: no instructions of x86."""
    no_wide_vectors(patch, folder)
    patch.setattr(platform, "machine", lambda: "aarch64")


@pytest.mark.usefixtures("plain_library")
@pytest.mark.parametrize(
    ("lack", "reason"),
    [
        (no_compiler, "there is no C++ compiler"),
        *(
            pytest.param(*lack, marks=pytest.mark.slow)
            for lack in (
                (broken_compiler, "broken failed with status 1: error: no headers"),
                (no_wide_vectors, "attention: compiled for this processor"),
                (arm, "attention: compiled for this processor"),
            )
        ),
    ],
    ids=["no compiler", "broken compiler", "no wide vectors", "ARM"],
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
    kinds = {type(module) for module in engine._runner.model.loaded.model.modules()}
    assert nn.Linear in kinds
    assert PanelLinear not in kinds
    assert tokens_of(engine) == want


@pytest.mark.skipif(os.environ.get("ATEN_CPU_CAPABILITY") != "avx2", reason="make avx2 holds it down")
def test_torch_onednn_and_the_compiler_are_held_down_to_avx2(compiler_defines: frozenset[str]) -> None:
    assert torch.backends.cpu.get_cpu_capability() == "AVX2"
    assert not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert "__AVX2__" in compiler_defines
    assert "__AVX512F__" not in compiler_defines
