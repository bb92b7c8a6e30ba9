"""Recorded runners on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support import checkpoints

from millstream_worker.engine.runner.model.load import LoadedModel, load_model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests run side by side: no spinning thread teams."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], LoadedModel]:
    """The model of a case, loaded anew: a model serves one storage."""

    def get(case: str) -> LoadedModel:
        folder = tmp_path / case
        if not folder.exists():
            checkpoints.build(case, tmp_path)
        # Of torch's operations alone, as on a GPU: the stand-in for a recorder sees no others.
        device = torch.device("cpu")
        return load_model(str(folder), dtype=torch.float32, device=device, attention="torch")

    return get
