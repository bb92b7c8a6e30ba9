"""Peak memory of a process and its children, counted anew after a reset."""

from __future__ import annotations

import subprocess
import sys

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
