"""A flood is as large as it is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest
from ops.bench.pieces.fairness import _submit

from millstream import AsyncClient, ClientOptions, QueueFull
from millstream.cli.embedded.embedded_server import EmbeddedServer


async def test_a_flood_that_is_not_taken_whole_is_an_error(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        async with AsyncClient(server.url, options=ClientOptions(max_entries=2)) as client:
            with pytest.raises(QueueFull):
                await _submit(client, [{"prompt": "w1", "max_tokens": 8}] * 5)
