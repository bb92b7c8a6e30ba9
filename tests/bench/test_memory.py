"""Peak memory of a process and its children, counted anew after a reset."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ops.bench.memory import peak_bytes, reset_peak

MIB = 2**20


def test_a_peak_is_seen_after_it_is_over_and_forgotten_by_a_reset() -> None:
    reset_peak()
    before = peak_bytes()
    block = b"x" * (96 * MIB)
    assert len(block) == 96 * MIB
    del block
    assert peak_bytes() - before > 80 * MIB
    reset_peak()
    assert peak_bytes() - before < 60 * MIB


def test_children_count() -> None:
    program = "block = b'x' * (64 << 20); print('ready', flush=True); input()"
    before = peak_bytes()
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    assert peak_bytes() - before > 60 * MIB
    child.communicate("\n")


def test_a_gpu_is_asked_by_its_driver_where_there_is_no_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    reset_peak("cuda")
    assert peak_bytes("cuda") == 0
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 1234\n")
    driver.chmod(0o700)
    assert peak_bytes("cuda") == 1234 * MIB
