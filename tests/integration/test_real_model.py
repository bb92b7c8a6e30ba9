"""A real (tiny, random) model in float32 behind the real queue: its answers are what transformers would
generate. What kills do to it: `chaos/test_real_engine.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.models import checkpoints
from support.servers.servers import Server
from support.workers.counting_worker import worker_process, write_tokenizer

from millstream import Client

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = checkpoints.build(
        "llama", tmp_path_factory.mktemp("models"), max_position_embeddings=512, num_hidden_layers=4
    )
    return write_tokenizer(folder)


def test_greedy_is_what_transformers_generates(valkey: Server, model: Path) -> None:
    settings: dict[str, Any] = {"dtype": "float32", "device": "cpu", "threads": 1, "kv_memory": "4MiB"}
    with Client(valkey.url) as client, worker_process(valkey, str(model), engine_command="", **settings):
        ids = [
            client.submit(token_ids=[3, 5, 8, n], max_tokens=30, temperature=0, ignore_eos=True).id
            for n in range(4)
        ]
        results = [client.wait(job_id, timeout_s=90) for job_id in ids]
    reference = checkpoints.plain(model)
    for n, result in enumerate(results):
        assert list(result.choices[0].token_ids) == checkpoints.generate(reference, [3, 5, 8, n], 30)
        assert result.choices[0].finish_reason == "length"
