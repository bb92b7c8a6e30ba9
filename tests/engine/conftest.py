"""For tests that compile a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import clear_inductor_caches


@pytest.fixture
def fresh_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What is compiled, and where it is kept, is the process' own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.set_stance("default")  # another test may have left it as an engine does
    torch.compiler.reset()
    clear_inductor_caches()
    counters.clear()
    yield
    torch.compiler.set_stance("default")
    torch.compiler.reset()
    counters.clear()
