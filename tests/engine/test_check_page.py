"""`millstream-worker --check`: the page of a real engine, of one whose kernels are missing, and of none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def check(model: Path | str, cache: Path | str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millstream_worker", "--check", "--model", str(model)]
    command += ["--kv-memory", "1MiB", "--cache-dir", str(cache)]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=110
    )


@pytest.mark.slow
def test_what_is_checked_chosen_and_how_fast_it_is(checkpoint: Callable[[str], Path], own_cache: str) -> None:
    found = check(checkpoint("gemma2"), own_cache)
    assert found.returncode == 0, found.stderr
    assert re.search(r"^Python 3\S+, millstream \S+, torch \S+, ", found.stdout)
    assert re.search(r"^  checked     attention off by at most \de-\d\d$", found.stdout, re.MULTILINE)
    assert "slower" not in found.stdout
    times = re.findall(
        r"^  (.{44}) *[\d,]+ us +[\d,.]+ G(B|FLOP)/s(?: +\d+% of the bound)?$", found.stdout, re.M
    )
    assert [what.split(",")[0].split(" of")[0] for what, _ in times] == [
        "copy", "matrix product", "decode", "prompt", "chunk", "decode", "decode", "prompt", "chunk",
    ]  # fmt: skip
    assert "".join(unit[0] for _, unit in times) == "BFBFFBBFF"
    assert re.findall(r"^attention of a layer of .*$", found.stdout, re.M) == [
        "attention of a layer of 4 heads (2 KV) of 16, window 12, float32",
        "attention of a layer of 4 heads (2 KV) of 16, float32",
    ]


@pytest.mark.slow
def test_what_is_slower_and_why(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    found = check(checkpoint("llama"), tmp_path, CXX="no-such-compiler")
    assert found.returncode == 0, found.stderr
    assert re.search(
        r"^  slower      attention: plain PyTorch, .*no C\+\+ compiler", found.stdout, re.MULTILINE
    )


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = check(str(tmp_path), tmp_path)
    assert found.returncode == 1
    assert "cannot start: " in found.stdout
