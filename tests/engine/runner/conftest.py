"""The models of the runner's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from millstream_worker.engine.runner.model.load import LoadedModel, load_model

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None: ...


@pytest.fixture
def load(checkpoint: Callable[[str], Path]) -> Callable[[str], LoadedModel]:
    """The model of a case, loaded anew: a model serves one storage."""

    def get(case: str) -> LoadedModel:
        return load_model(str(checkpoint(case)), dtype=torch.float32, device=CPU)

    return get
