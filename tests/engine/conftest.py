"""Checkpoints, both depths of the pipeline, one thread, and a compiler that has compiled nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine.libraries import put_into
from support.engine.whole_engine import engine_on, run
from support.models import checkpoints, tokenizers
from support.models.spelling import spelling_checkpoint, with_words
from tokenizers import Tokenizer
from torch._dynamo.utils import counters
from torch._inductor.utils import clear_inductor_caches

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.request import EngineRequest
from millstream_worker.engine.runner.model.load import LoadedModel, load_model


@pytest.fixture(params=[0, 1])
def depth(request: pytest.FixtureRequest) -> int:
    """Steps that are launched before the one ahead of them is settled."""
    return request.param


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tests run side by side: no spinning thread teams."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case's checkpoint, written once, when first asked for."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda case: checkpoints.build(case, folder))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Spells any text; it has the words of thoughts and calls."""
    return with_words(tokenizers.build("byte-level"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine[Any]:
    """A whole one, whose model has that tokenizer. What a step needs is compiled before any test's time."""
    folder = tmp_path_factory.mktemp("models")
    made = engine_on(
        "cpu", spelling_checkpoint(folder, words=True, max_position_embeddings=1024), cuda_graphs="off"
    )
    run(made, [EngineRequest(0, (30, 31), 2)])
    return made


@pytest.fixture
def own_cache(tmp_path: Path) -> str:
    """`tmp_path` as an engine's cache folder, that has nothing but its library: to compile one takes long."""
    return str(put_into(tmp_path))


@pytest.fixture
def attention_name() -> str:
    return "auto"


@pytest.fixture
def load(checkpoint: Callable[[str], Path], attention_name: str) -> Callable[[str], LoadedModel]:
    """The model of a case, loaded anew: a model serves one storage."""

    def get(case: str) -> LoadedModel:
        device = torch.device("cpu")
        return load_model(str(checkpoint(case)), dtype=torch.float32, device=device, attention=attention_name)

    return get


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
