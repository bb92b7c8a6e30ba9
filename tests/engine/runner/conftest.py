"""Checkpoints for the runner's tests: written once, when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support import checkpoints

from millstream_worker.engine.runner.model.load import LoadedModel, load_model

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests run side by side: no spinning thread teams."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case's checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoints")
    built: dict[str, Path] = {}

    def get(case: str) -> Path:
        if case not in built:
            built[case] = checkpoints.build(case, folder)
        return built[case]

    return get


@pytest.fixture
def load(checkpoint: Callable[[str], Path]) -> Callable[[str], LoadedModel]:
    """The model of a case, loaded anew: a model serves one storage."""

    def get(case: str) -> LoadedModel:
        return load_model(str(checkpoint(case)), dtype=torch.float32, device=CPU)

    return get
