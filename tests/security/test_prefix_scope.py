"""Whose prompts a tenant can find in the KV cache: `cached_tokens`, and the time to the first token, tell
that a prompt was computed before. By default only to the tenant whose it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.models import checkpoints
from support.servers.servers import Server
from support.workers.counting_worker import REAL, serving, write_tokenizer

from millstream import AsyncClient

pytestmark = pytest.mark.slow

SECRET = " ".join(f"w{n}" for n in range(3, 83))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = checkpoints.build("llama", tmp_path_factory.mktemp("models"), max_position_embeddings=256)
    return write_tokenizer(folder)


@pytest.mark.parametrize(("scope", "seen_by_others"), [({}, 0), ({"prefix_scope": "all"}, 64)])
async def test_a_tenant_finds_prompts_of_others_only_where_all_share(
    valkey: Server, model: Path, scope: dict[str, str], seen_by_others: int
) -> None:
    async with AsyncClient(valkey.url) as client, serving(valkey, str(model), **REAL, **scope):

        async def cached(tenant: str, prompt: str = SECRET) -> int:
            job = await client.submit(prompt, max_tokens=1, temperature=0, tenant=tenant)
            return (await client.wait(job.id, timeout_s=60)).usage.cached_tokens

        assert await cached("victim") == 0
        assert await cached("spy") == seen_by_others
        assert await cached("victim", f"{SECRET} w1") == 80
